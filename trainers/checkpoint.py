"""Checkpoints of a training run: one file each, whole or not at all, the last few kept.

It knows files and generators of random numbers, not what training is: what goes in comes out.
"""

from __future__ import annotations

import logging
import os
import pickle
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from forebay.errors import ConfigError, SourceError

__all__ = ["CheckpointConfig", "Checkpoints", "random_state", "restore_random_state"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d{10,})\.([0-9a-f]{16})\.pt")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """Where a run keeps its checkpoints, and how often it writes one."""

    path: Path
    """Folder of this run alone; made when missing."""
    every_steps: int = 500
    """Optimizer steps between two, besides one at the end of each epoch: what a killed run has to repeat at most."""
    keep: int = 2
    """How many to keep. Two: a disk that tears the newest leaves the one before."""

    def __post_init__(self) -> None:
        if self.every_steps < 1:
            raise ConfigError(f"every_steps={self.every_steps}; give at least 1 step between two checkpoints")
        if self.keep < 1:
            raise ConfigError(f"keep={self.keep}; give at least 1, best 2: the newest may be torn by a failing disk")


class Checkpoints:
    """The checkpoints in one folder. Written by one process; any number may read.

    A file's name tells its step and its checksum (`step-0000001500.d24ec4f1a98c6e5b.pt`), since torch does not notice a
    flipped byte in a tensor.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write `state` as the checkpoint after `step` steps; then drop the oldest beyond `keep`.

        Written aside, flushed to the disk, renamed: a kill at any moment leaves the former ones untouched. Blocks for
        as long as the disk takes.

        Raises:
            SourceError: it cannot be written; the former ones are still there.
            ConfigError: it holds a value that is neither tensor nor plain, so that nobody could safely read it.
        """
        folder = self._config.path
        aside = folder / f"step-{step:010d}.pt.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                torch.save(dict(state), file)
                file.flush()
                os.fsync(file.fileno())
            torch.load(aside, map_location="meta", weights_only=True, mmap=True)  # reads no tensor
            path = aside.replace(folder / f"step-{step:010d}.{_checksum(aside)}.pt")
            _sync_folder(folder)
            self._drop(keeping=path)
        except pickle.UnpicklingError as error:
            aside.unlink(missing_ok=True)
            raise ConfigError(
                f"the checkpoint of step {step} would hold a value that is neither tensor nor plain "
                f"({_first_line(error)}); look for it in the state_dict() of model, optimizer and scheduler"
            ) from error
        except (OSError, RuntimeError) as error:  # torch's zip writer makes a RuntimeError of a full disk
            aside.unlink(missing_ok=True)
            raise SourceError(
                f"the checkpoint of step {step} cannot be written to {folder}: {_first_line(error)}; make room there "
                "or choose another folder, then start again: the run goes on from the checkpoint before",
                path=str(folder),
            ) from error
        return path

    def _drop(self, *, keeping: Path) -> None:
        """Remove the oldest, a killed writer's leavings, and what is later than `keeping`: it could not be read."""
        step = _step_of(keeping)
        older = [path for path in self.paths() if _step_of(path) < step]
        later = [path for path in self.paths() if _step_of(path) >= step and path != keeping]
        aside = list(self._config.path.glob("step-*.pt.tmp"))
        for path in older[: max(0, len(older) - self._config.keep + 1)] + later + aside:
            path.unlink(missing_ok=True)

    def paths(self) -> list[Path]:
        """The checkpoints there are, oldest first."""
        return sorted(path for path in self._config.path.glob("step-*.pt") if _NAME.fullmatch(path.name))

    def load(self, step: int | None = None) -> tuple[int, dict[str, Any]] | None:
        """Read the newest checkpoint that is whole, or the one of `step`.

        One that is torn is passed over for the one before, with a warning. Nothing but tensors and plain values is
        ever unpickled.

        Returns:
            Its step and state, tensors on the CPU; None when there is none.

        Raises:
            SourceError: there are checkpoints, and none of them can be read.
        """
        paths = self.paths()
        if step is not None:
            paths = [path for path in paths if _step_of(path) == step]
        for path in reversed(paths):
            try:
                if _checksum(path) == _match(path)[2]:
                    return _step_of(path), torch.load(path, map_location="cpu", weights_only=True)
                reason = "its bytes are not those that were written"
            except (OSError, RuntimeError) as error:
                reason = _first_line(error)
            logger.warning("checkpoint %s is not whole: %s; trying the one before", path, reason)
        if paths:
            raise SourceError(
                f"none of the {len(paths)} checkpoints in {self._config.path} can be read, the newest is "
                f"{paths[-1].name}; restore one from a copy, or remove them to begin anew",
                path=str(self._config.path),
            )
        return None


def _match(path: Path) -> re.Match[str]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return match


def _step_of(path: Path) -> int:
    return int(_match(path)[1])


def _checksum(path: Path) -> str:
    """xxh3-64 of the file, in hexadecimal."""
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def random_state(device: torch.device) -> dict[str, Any]:
    """The generators that a model or loss may draw from: Python's, numpy's, torch's, and the device's.

    Returns:
        Tensors and plain values.
    """
    version, words, gauss = random.getstate()
    name, key, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": (version, torch.tensor(words, dtype=torch.int64), gauss),
        "numpy": (str(name), torch.from_numpy(np.asarray(key).astype(np.int64)), int(position), int(has_gauss), cached),
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Set the generators as they were when `random_state` was called."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, key, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, key.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["device"] is not None:
        torch.cuda.set_rng_state(state["device"], device)
