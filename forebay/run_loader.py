"""This loader in torch's place, for a script that imports torch's, and a record of every loader that it makes.

It runs no script and prints nothing. Records hold counts, never a loader or a data set.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.utils.data
import torch.utils.data.dataloader
from typing_extensions import TypeVar

import forebay.loader
from forebay.loader import LoaderStats

__all__ = ["DataLoader", "LoaderRecord", "records", "take_torchs_place"]

Batch_co = TypeVar("Batch_co", covariant=True, default=Any)


@dataclass(slots=True)
class LoaderRecord:
    """One loader that the script made; it may be gone by now."""

    name: str
    """Its class, and the file and line that made it."""
    workers: int
    """Processes or threads; 0: samples are made where the batch is asked for."""
    stats: Callable[[], LoaderStats]


records: list[LoaderRecord] = []
"""Of this process, in the order in which the loaders were made."""


class DataLoader(forebay.loader.DataLoader[Batch_co]):
    """`forebay.DataLoader`, recorded."""

    # Whoever makes a loader like another one reads the names of its arguments here.
    @functools.wraps(forebay.loader.DataLoader.__init__)  # type: ignore[misc]  # mypy wants constructors undecorated
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        workers = self.num_workers if self._room is None else self._room.meter.threads
        self._record = LoaderRecord(f"{type(self).__name__} at {_maker(self)}", workers, self._counts())
        records.append(self._record)

    def reset_stats(self) -> None:
        """Begin to count anew."""
        super().reset_stats()
        self._record.stats = self._counts()

    @property
    def _room(self) -> Any:
        return self._sampled if self._shards is None else self._shards._room

    def _counts(self) -> Callable[[], LoaderStats]:
        """What tells the stats: the counts alone, since a loop over a loader without a name outlives the loader."""
        if self._room is not None:
            counts: Callable[[], LoaderStats] = self._room.meter.stats
            return counts
        return functools.partial(self._passes.tally.stats, self.num_workers)


def _maker(loader: DataLoader) -> str:
    """Where the script, or a library of its, makes this loader, in words."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_locals.get("self") is loader:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def take_torchs_place() -> None:
    """Have `from torch.utils.data import DataLoader` give this one from now on, and forebay's own names too."""
    for module in (torch.utils.data, torch.utils.data.dataloader, forebay.loader, forebay):
        module.DataLoader = DataLoader  # type: ignore[attr-defined]
