"""Decoded recordings kept in the cache: a stretch is read, and verified, without decoding; what is not there is stored.

    a recording's room    head, one checksum for each piece of it, values float32 (frames, channels)

Where rooms lie, and how a file is filled and evicted, is told by `forebay.cache.DecodedFile` and `DecodedStore`.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import xxhash
from torch import Tensor

from forebay.cache import CacheConfig, DecodedFile, DecodedStore
from forebay.errors import DecodeError
from forebay.loader.audio import Cut, Floats, Recording, audio_size, find_stretch, memory_for, soundfile_version
from forebay.loader.decode import Scratch
from forebay.loader.readers import ReaderPool
from forebay.sharding import StoredDataset

__all__ = ["AudioStore", "room_nbytes"]

log = logging.getLogger(__name__)

_HEAD = struct.Struct("<QIIQ")
"""Checksum of all that follows up to the values; rate, channels, frames."""
_PIECE = 1 << 14
"""Frames that have one checksum: 64 kB of one channel."""
_MOST_VALUES = 1 << 24
"""A longer recording is not kept: to store it, all of it would be decoded for the first stretch."""
_MOST_OPEN = 128


def room_nbytes(frames: int, channels: int) -> int:
    """What a recording takes, a multiple of 3 as of pixels; 0 for one that is not kept."""
    if not 0 < frames * channels <= _MOST_VALUES:
        return 0
    return -(-(_values_at(frames) + 4 * frames * channels) // 3) * 3


def _values_at(frames: int) -> int:
    return -(-(_HEAD.size + 8 * -(-frames // _PIECE)) // 64) * 64


def _packed(values: Floats, rate: int) -> bytearray:
    """What is stored of values (frames, channels)."""
    frames, channels = values.shape
    sums = [xxhash.xxh3_64_intdigest(values[k : k + _PIECE].data) for k in range(0, frames, _PIECE)]
    table = np.array(sums, "<u8").tobytes()
    told = _HEAD.pack(0, rate, channels, frames)[8:] + table
    packed = bytearray(room_nbytes(frames, channels))
    packed[: 8 + len(told)] = xxhash.xxh3_64_intdigest(told).to_bytes(8, "little") + told
    begin = _values_at(frames)
    packed[begin : begin + values.nbytes] = values.tobytes()
    return packed


class AudioStore:
    """The kept recordings of one column, in one pass. Thread-safe.

    Args:
        cache: that shards are kept in; the budget is one.
        data: of the data set.
        column: of audio.
        pool: reads shards; stays the caller's.
        keeps: whether what is decoded is stored now.

    Raises:
        CacheError: the cache cannot be used.
    """

    def __init__(
        self, cache: CacheConfig, data: StoredDataset, column: str, pool: ReaderPool, keeps: Callable[[], bool]
    ) -> None:
        self._store = DecodedStore(cache, data, json.dumps([column, "audio", 1, soundfile_version()]))
        self._data, self._column, self._pool, self._keeps = data, column, pool, keeps
        self._open: OrderedDict[int, DecodedFile] = OrderedDict()
        self._users: dict[DecodedFile, int] = {}
        self._without = set[int]()
        self._lock = threading.Lock()
        self._of_thread = threading.local()

    def recording(self, data: bytes | memoryview, shard: int, row: int) -> Recording:
        """A recording that is read from the store where it is there, and stored where it is not."""
        return Recording(data, store=_Place(self, shard, row))

    @contextmanager
    def lease(self, shard: int) -> Iterator[DecodedFile | None]:
        """The file of a shard, made when there is room; None when there is none."""
        with self._lock:
            file = self._find(shard)
            if file is not None:
                self._users[file] = self._users.get(file, 0) + 1
        try:
            yield file
        finally:
            if file is not None:
                with self._lock:
                    self._users[file] -= 1

    def _find(self, shard: int) -> DecodedFile | None:
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        if shard in self._without:
            return None
        file = self._store.open(shard)
        if file is None and self._keeps() and not self._store.is_full(shard):
            file = self._store.make(shard, self._sizes(shard))
            if file is None:
                self._without.add(shard)
        if file is not None:
            idle = [other for other, old in self._open.items() if not self._users.get(old)]
            for other in idle[: max(0, 1 + len(self._open) - _MOST_OPEN)]:
                self._users.pop(self._open[other], None)
                self._open.pop(other).close()
            self._open[shard] = file
        return file

    def _sizes(self, shard: int) -> list[int]:
        """By row, the room of its recording; told by the headers."""
        rows = int(self._data.shard_rows[shard])
        sizes = []
        for low in range(0, rows, 64):
            some = range(low, min(low + 64, rows))
            for data in self._pool.read_column(shard, some, self._column):
                try:
                    sizes.append(room_nbytes(*audio_size(data)))
                except DecodeError:  # whoever reads that sample raises
                    sizes.append(0)
        return sizes

    def scratch(self) -> Scratch:
        """Memory of this thread."""
        if not hasattr(self._of_thread, "scratch"):
            self._of_thread.scratch = Scratch()
        found: Scratch = self._of_thread.scratch
        return found

    def give_up(self, shard: int, error: OSError) -> None:
        """Store nothing more where a shard's file lies: it could not be written."""
        self._store.give_up(shard, error)

    def close(self) -> None:
        """Close all files; nobody uses any of them any more. Calling it again does nothing."""
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()
            self._users.clear()
        self._store.close()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one recording is kept. Conforms to `audio.Keeper`."""

    store: AudioStore
    shard: int
    row: int

    def read(self, cuts: Sequence[Cut], place: Tensor | None) -> tuple[Tensor, int] | None:
        """A stretch, verified; None when it is not there."""
        with self.store.lease(self.shard) as file:
            if file is None or not file.find(np.array([self.row])).heights[0]:
                return None
            try:
                found = self._read(file, cuts, place)
            except OSError as error:
                log.warning("row %d of decoded shard %d cannot be read: %s", self.row, self.shard, str(error))
                return None
            if found is None:  # a flipped byte: it is decoded again
                log.warning("row %d of decoded shard %d is damaged; it is stored again", self.row, self.shard)
                file.forget(self.row)
            return found

    def _read(self, file: DecodedFile, cuts: Sequence[Cut], place: Tensor | None) -> tuple[Tensor, int] | None:
        start = file.offset(self.row)
        checksum, rate, channels, frames = _HEAD.unpack(os.pread(file.fd, _HEAD.size, start))
        if room_nbytes(frames, channels) == 0 or room_nbytes(frames, channels) > file.room(np.array([self.row]))[0]:
            return None
        told = os.pread(file.fd, _HEAD.size - 8 + 8 * -(-frames // _PIECE), start + 8)
        if xxhash.xxh3_64_intdigest(told) != checksum:
            return None
        sums = np.frombuffer(told, "<u8", offset=_HEAD.size - 8).tolist()
        first, number = find_stretch(cuts, frames, rate)
        values = memory_for(number, channels, place)
        there = max(0, min(first + number, frames) - first)
        values[there:] = 0
        if there:
            low, high = first // _PIECE, -(-(first + there) // _PIECE)
            begin, end = low * _PIECE, min(high * _PIECE, frames)
            pieces = self._pieces(4 * channels * (end - begin))
            if os.preadv(file.fd, [pieces], start + _values_at(frames) + 4 * channels * begin) != len(pieces):
                return None
            step = 4 * channels * _PIECE
            for k in range(low, high):
                if xxhash.xxh3_64_intdigest(pieces[(k - low) * step : (k + 1 - low) * step]) != sums[k]:
                    return None
            read = np.frombuffer(pieces, np.float32).reshape(end - begin, channels)
            values[:there] = read[first - begin : first - begin + there]
        return torch.from_numpy(np.ascontiguousarray(values.T)), rate

    def _pieces(self, nbytes: int) -> memoryview:
        block = self.store.scratch().take(nbytes)
        return memoryview(bytearray(nbytes)) if block is None else block.data[:nbytes]

    def has_room(self) -> bool:
        """Whether what is decoded can be stored."""
        with self.store.lease(self.shard) as file:
            return file is not None and bool(file.room(np.array([self.row]))[0])

    def keep(self, values: Tensor, rate: int) -> None:
        """Store all of a recording, (channels, frames)."""
        packed = np.frombuffer(_packed(np.ascontiguousarray(values.numpy().T), rate), np.uint8)
        with self.store.lease(self.shard) as file:
            if file is None or not file.kept():
                return
            try:
                file.write(self.row, packed.reshape(1, -1, 3))
            except OSError as error:
                self.store.give_up(self.shard, error)
