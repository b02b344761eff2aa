"""The checkpoints of a run on the disk: a folder each, whole once it has its last file, the last few kept.

It knows names, checksums and what is whole; what is inside, `torch.distributed.checkpoint` writes and reads.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

from forebay.errors import ConfigError, SourceError

__all__ = ["CheckpointConfig", "CheckpointFolder", "checksums"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d{10,})")
_COMPLETE = "complete.json"
"""Written last; tells the length and checksum of every other file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """Where a run keeps its checkpoints, and how often it writes one."""

    path: Path
    """Folder of this run alone, that all ranks see; made when missing."""
    every_steps: int = 500
    """Optimizer steps between two, besides one at the end of each epoch: what a killed run has to repeat at most."""
    keep: int = 2
    """How many to keep. Two: a disk that tears the newest leaves the one before."""

    def __post_init__(self) -> None:
        if self.every_steps < 1:
            raise ConfigError(f"every_steps={self.every_steps}; give at least 1 step between two checkpoints")
        if self.keep < 1:
            raise ConfigError(f"keep={self.keep}; give at least 1, best 2: the newest may be torn by a failing disk")


def checksums(folder: Path, prefix: str) -> dict[str, list[int | str]]:
    """Length and xxh3-64 of each file in `folder` whose name begins with `prefix`."""
    told: dict[str, list[int | str]] = {}
    for path in sorted(folder.glob(f"{prefix}*")):
        digest, nbytes = xxhash.xxh3_64(), 0
        with path.open("rb") as file:
            while piece := file.read(1 << 22):
                digest.update(piece)
                nbytes += len(piece)
        told[path.name] = [nbytes, digest.hexdigest()]
    return told


class CheckpointFolder:
    """The folder of one run. Changed by one process, the one of rank 0; any number may read.

    A checkpoint is written aside, in `step-0000001500.tmp`, and renamed when it has everything: a kill at any moment
    leaves the former ones untouched.
    """

    def __init__(self, path: Path, *, keep: int) -> None:
        self.path = path
        self._keep = keep

    def aside(self, step: int) -> Path:
        """Where the checkpoint after `step` steps is written until it is whole."""
        return self.path / f"step-{step:010d}.tmp"

    def whole(self, step: int) -> Path:
        """Where it is then."""
        return self.path / f"step-{step:010d}"

    def paths(self) -> list[Path]:
        """The checkpoints there are, oldest first."""
        return sorted((path for path in self.path.glob("step-*") if _NAME.fullmatch(path.name)), key=_step_of)

    def publish(self, step: int, files: Mapping[str, list[int | str]]) -> Path:
        """Make what lies aside the checkpoint of `step`; then drop the oldest beyond `keep`.

        Raises:
            OSError: the disk does not take it.
        """
        aside, path = self.aside(step), self.whole(step)
        with (aside / _COMPLETE).open("w") as file:
            json.dump({"step": step, "files": dict(files)}, file)
            file.flush()
            os.fsync(file.fileno())
        _sync(aside)
        if path.exists():
            shutil.rmtree(path)
        aside.rename(path)
        _sync(self.path)
        for older in self.paths()[: -self._keep]:
            shutil.rmtree(older)
        return path

    def newest(self) -> int | None:
        """The step of the newest checkpoint that is whole; None when there is none.

        One that is torn is passed over for the one before, with a warning.

        Raises:
            SourceError: there are checkpoints, and none of them is whole.
        """
        paths = self.paths()
        for path in reversed(paths):
            reason = _fault(path)
            if reason is None:
                return _step_of(path)
            logger.warning("checkpoint %s is not whole: %s; trying the one before", path, reason)
        if paths:
            raise SourceError(
                f"none of the {len(paths)} checkpoints in {self.path} is whole, the newest is {paths[-1].name}; "
                "restore one from a copy, or remove them to begin anew",
                path=str(self.path),
            )
        return None

    def go_on_from(self, step: int | None) -> None:
        """Remove what a killed writer left, and checkpoints later than `step`, which are torn."""
        later = [path for path in self.paths() if step is None or _step_of(path) > step]
        for path in [*self.path.glob("step-*.tmp"), *later]:
            shutil.rmtree(path)


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _fault(path: Path) -> str | None:
    """Why the checkpoint cannot be used; None when every file is as it was written."""
    try:
        files = json.loads((path / _COMPLETE).read_text())["files"]
    except (OSError, ValueError, KeyError) as error:
        return f"{_COMPLETE}: {error}"
    found = checksums(path, "")
    differing = [name for name, told in files.items() if found.get(name) != told]
    return f"the bytes of {differing[0]} are not those that were written" if differing else None


def _sync(folder: Path) -> None:
    """Make the names in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
