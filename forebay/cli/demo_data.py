"""The demo's photographs: drawn, or the user's own, as two listings, to train on and to validate with."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

from forebay.cli.console import progress_bar
from forebay.errors import ConfigError
from forebay.sharding import ImageFile, ImageFolder, list_class_folders

__all__ = ["DemoFolder", "hold_out", "list_photographs", "photographs_of_demo", "thin_out"]

HELD_OUT = 6
"""One in so many photographs of a class validates, where no folder of their own is there."""
DRAWN_TRAIN = 60
DRAWN_VALIDATION = 15
"""Photographs a class."""


class DemoFolder:
    """The folder that a demo writes into: its own, known by a marker file, so that nothing else is ever removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.photographs = path / "photographs"
        self.shards = path / "shards"
        self.cache = path / "cache"
        self.run = path / "run"
        self._marker = path / "forebay-demo.json"
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file; give a folder for the demo with --out")
        if path.is_dir() and os.listdir(path) and not self._marker.is_file():
            raise ConfigError(f"{path} is not empty, and no demo wrote it; give an empty or new folder with --out")
        path.mkdir(parents=True, exist_ok=True)
        if not self._marker.is_file():
            self.remember({})

    def remember(self, facts: dict[str, Any]) -> None:
        """Keep what a later run may rely on."""
        self._marker.write_text(json.dumps({"written_by": "forebay demo", **facts}, indent=2) + "\n")

    def remembered(self) -> dict[str, Any]:
        """What an earlier run kept; nothing if it was killed while it wrote."""
        try:
            facts = json.loads(self._marker.read_text())
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def begin_anew(self) -> None:
        """Remove shards, cache and checkpoints of an earlier demo; its photographs may be used again."""
        for folder in (self.shards, self.cache, self.run):
            shutil.rmtree(folder, ignore_errors=True)


def photographs_of_demo(folder: DemoFolder, *, seed: int, console: Console) -> tuple[Path, Path]:
    """Draw the demo's photographs, or find those that an earlier run drew."""
    from forebay.benchmarks import CLASSES, draw_folder  # imports torch

    train, validation = folder.photographs / "train", folder.photographs / "validation"
    facts = {"seed": seed, "train": DRAWN_TRAIN, "validation": DRAWN_VALIDATION, "classes": list(CLASSES)}
    if folder.remembered().get("photographs") == facts and train.is_dir() and validation.is_dir():
        console.print("They are still there from the last time.")
        return train, validation
    shutil.rmtree(folder.photographs, ignore_errors=True)
    bars = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar("drawing", *bars) as progress:
        task = progress.add_task("", total=len(CLASSES) * (DRAWN_TRAIN + DRAWN_VALIDATION))
        for path, first, count in ((train, 0, DRAWN_TRAIN), (validation, DRAWN_TRAIN, DRAWN_VALIDATION)):
            draw_folder(path, per_class=count, first=first, seed=seed, progress=lambda _: progress.advance(task))
    folder.remember({"photographs": facts})
    return train, validation


def list_photographs(data: Path) -> tuple[ImageFolder, ImageFolder, str]:
    """What to train on and to validate with, of a user's folder, and where the latter comes from.

    `data` holds class folders, or `train` and `validation` with class folders each, or is such a `train`. Without a
    validation folder, one in six photographs of each class is held out, always the same ones.
    """
    if not data.is_dir():
        raise ConfigError(f"{data} is not a folder; give a folder of class folders of images with --data")
    for train, validation in ((data / "train", data / "validation"), (data, data.parent / "validation")):
        if train.name == "train" and train.is_dir() and validation.is_dir():
            listed, held_out = list_class_folders(train), list_class_folders(validation)
            if listed.classes != held_out.classes:
                raise ConfigError(
                    f"{train} and {validation} have different class folders, {', '.join(listed.classes['label'])} and "
                    f"{', '.join(held_out.classes['label'])}; labels would mean different things"
                )
            return listed, held_out, str(validation)
    return *hold_out(list_class_folders(data)), f"one in {HELD_OUT} of each class, held out"


def hold_out(folder: ImageFolder) -> tuple[ImageFolder, ImageFolder]:
    """Every sixth image of each class is to validate with, at least one of each.

    Raises:
        ConfigError: a class has one image only.
    """
    seen: dict[int, int] = {}
    train: list[ImageFile] = []
    validation: list[ImageFile] = []
    for image in folder.images:
        label = image.values["label"]
        seen[label] = seen.get(label, 0) + 1
        (validation if seen[label] % HELD_OUT == 2 else train).append(image)
    alone = [folder.classes["label"][label] for label, count in sorted(seen.items()) if count < 2]
    if alone:
        raise ConfigError(f"class folder {alone[0]!r} of {folder.root} has one image; give each class two at least")
    return dataclasses.replace(folder, images=train), dataclasses.replace(folder, images=validation)


def thin_out(folder: ImageFolder, most: int) -> ImageFolder:
    """At most `most` of the images, evenly chosen: a demo of a million photographs would be none."""
    if len(folder.images) <= most:
        return folder
    chosen = [folder.images[index * len(folder.images) // most] for index in range(most)]
    return dataclasses.replace(folder, images=chosen)
