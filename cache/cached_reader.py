"""A shard read from the cache, which goes on with the source when the cache's copy turns out damaged.

Copies are verified when they are fetched, and every sample again when it is read: a bad disk costs a fetch, not a run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from forebay.errors import ShardCorruptError
from forebay.sharding import FileRange, JpegLayout, JpegPlaces, ReadMemory, ShardReader

__all__ = ["CachedReader"]


class CachedReader(ShardReader):
    """A `ShardReader` over the cache's copy. Thread-safe.

    Args:
        copy: over the cache's file.
        give_up_copy: called once, with the error, when a sample of the copy is damaged: removes the file, opens the
            shard in its source. An error there, or in the source's bytes, is raised.
    """

    def __init__(self, copy: ShardReader, give_up_copy: Callable[[ShardCorruptError], ShardReader]) -> None:
        self.dataset = copy.dataset
        self.shard = copy.shard
        self.rows = copy.rows
        self._copy = copy
        self._origin: ShardReader | None = None
        self._give_up_copy = give_up_copy
        self._healing = threading.Lock()

    def _instead(self, error: ShardCorruptError) -> ShardReader:
        with self._healing:
            if self._origin is None:
                self._origin = self._give_up_copy(error)
            return self._origin

    def read(self, row: int, column: str, memory: ReadMemory | None = None) -> memoryview:
        """See `ShardReader.read`."""
        if self._origin is not None:
            return self._origin.read(row, column, memory)
        try:
            return self._copy.read(row, column, memory)
        except ShardCorruptError as error:
            return self._instead(error).read(row, column, memory)

    def fileno(self) -> int:
        """See `ShardReader.fileno`. What is damaged there is healed by whoever then reads it alone, by `read`."""
        return (self._origin or self._copy).fileno()

    @property
    def far(self) -> bool:
        """See `ShardReader.far`. The copy is near."""
        return self._origin is not None and self._origin.far

    def range_of(self, offset: int, nbytes: int) -> FileRange:
        """See `ShardReader.range_of`."""
        return (self._origin or self._copy).range_of(offset, nbytes)

    def ranges_of(self, row: int, column: str) -> list[FileRange]:
        """See `ShardReader.ranges_of`."""
        return (self._origin or self._copy).ranges_of(row, column)

    def places(self, row: int, column: str) -> tuple[int, int, int]:
        """See `ShardReader.places`. The footer tells it, and was verified when the copy was opened."""
        return self._copy.places(row, column)

    def read_unverified(self, row: int, column: str, begin: int, nbytes: int, memory: ReadMemory) -> memoryview:
        """See `ShardReader.read_unverified`. Healed as what is read from `fileno`."""
        return (self._origin or self._copy).read_unverified(row, column, begin, nbytes, memory)

    def jpeg_places(self, column: str) -> JpegPlaces | None:
        """See `ShardReader.jpeg_places`. As `places`."""
        return self._copy.jpeg_places(column)

    def jpeg_layout(self, row: int, column: str) -> JpegLayout | None:
        """See `ShardReader.jpeg_layout`. As `places`."""
        return self._copy.jpeg_layout(row, column)

    def read_jpeg(
        self, row: int, column: str, top: int, height: int, memory: ReadMemory | None = None
    ) -> tuple[memoryview, memoryview, int]:
        """See `ShardReader.read_jpeg`."""
        if self._origin is not None:
            return self._origin.read_jpeg(row, column, top, height, memory)
        try:
            return self._copy.read_jpeg(row, column, top, height, memory)
        except ShardCorruptError as error:
            return self._instead(error).read_jpeg(row, column, top, height, memory)

    def scalars(self, column: str) -> npt.NDArray[Any]:
        """See `ShardReader.scalars`."""
        if self._origin is not None:
            return self._origin.scalars(column)
        try:
            return self._copy.scalars(column)
        except ShardCorruptError as error:
            return self._instead(error).scalars(column)

    def scalar(self, row: int, column: str) -> Any:
        """See `ShardReader.scalar`."""
        if self._origin is not None:
            return self._origin.scalar(row, column)
        try:
            return self._copy.scalar(row, column)
        except ShardCorruptError as error:
            return self._instead(error).scalar(row, column)

    def shape(self, row: int, column: str) -> tuple[int, ...]:
        """See `ShardReader.shape`."""
        if self._origin is not None:
            return self._origin.shape(row, column)
        try:
            return self._copy.shape(row, column)
        except ShardCorruptError as error:
            return self._instead(error).shape(row, column)

    def value(self, row: int, column: str) -> Any:
        """See `ShardReader.value`."""
        if self._origin is not None:
            return self._origin.value(row, column)
        try:
            return self._copy.value(row, column)
        except ShardCorruptError as error:
            return self._instead(error).value(row, column)

    def close(self) -> None:
        """See `ShardReader.close`. Closes whatever was opened in its place too."""
        self._copy.close()
        with self._healing:
            if self._origin is not None:
                self._origin.close()
