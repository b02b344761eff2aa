"""One file of decoded samples: every sample of a shard has its place in it, filled in any order by any process.

    header    magic, rows, checksum of the header and the places
    places    int64 (rows + 1): where each sample's room begins, and the last one ends
    entries   (rows): height, width, checksum of what was filled; all 0 before
    pixels    uint8 (height, width, 3) each, in its room

A sample's pixels are written before its entry, and the checksum covers both, so an entry is never believed without its
pixels, whatever a crash left. It knows no budget; who gets room for a file is decided in `folder.py`.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

__all__ = ["DecodedFile", "Filled", "file_layout", "pixels_checksum"]

Ints = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]

_MAGIC = b"forebay decoded1"
_HEADER = struct.Struct("<16sQQ")
_ENTRY = np.dtype([("height", "<u4"), ("width", "<u4"), ("checksum", "<u8")])
_ALIGNMENT = 64


class Filled(NamedTuple):
    """What is known of some samples: arrays (n,), 0 of those that are not filled."""

    heights: Ints
    widths: Ints
    offsets: Ints
    """Where the pixels begin in the file."""
    checksums: npt.NDArray[np.uint64]


def pixels_checksum(pixels: Pixels) -> int:
    """Of uint8 (height, width, 3) in C order: xxh3-64 with the size as its seed; `native/decoded.h` computes it too."""
    height, width, _ = pixels.shape
    return xxhash.xxh3_64_intdigest(pixels.data, height << 32 | width)


def file_layout(nbytes: Sequence[int]) -> tuple[bytes, int]:
    """The beginning of a file that is to hold samples of these sizes, no sample filled; and the file's whole size.

    Args:
        nbytes: by row, room for its pixels; 0 for a sample that will not be stored.
    """
    rows = len(nbytes)
    places = np.zeros(rows + 1, "<i8")
    rooms = -(-np.array(nbytes, np.int64) // _ALIGNMENT) * _ALIGNMENT
    begin = _HEADER.size + places.nbytes + rows * _ENTRY.itemsize
    places[0] = -(-begin // 4096) * 4096
    places[1:] = places[0] + np.cumsum(rooms)
    return _head(rows, places) + places.tobytes() + bytes(rows * _ENTRY.itemsize), int(places[-1])


def _head(rows: int, places: npt.NDArray[np.int64]) -> bytes:
    checksum = xxhash.xxh3_64_intdigest(_HEADER.pack(_MAGIC, rows, 0) + places.tobytes())
    return _HEADER.pack(_MAGIC, rows, checksum)


def _check(start: bytes, places: Ints, nbytes: int) -> None:
    if start[: _HEADER.size] != _head(len(places) - 1, places.astype("<i8")):
        raise ValueError("its header is damaged")
    if nbytes < places[-1]:
        raise ValueError("it was cut short")


class DecodedFile:
    """An open file of decoded samples. Thread-safe; closed by whoever opened it, when nobody reads it any more.

    Args:
        fd: of the file, to read and write; taken over, also when this raises.
        rows: samples of the shard.

    Raises:
        ValueError: the file is damaged, or not of this shard.
        OSError: it cannot be read.
    """

    def __init__(self, fd: int, rows: int) -> None:
        self.fd = fd
        self.rows = rows
        self._lock = threading.Lock()
        self._entries_at = _HEADER.size + 8 * (rows + 1)
        try:
            nbytes = self._entries_at
            start = _pread(fd, nbytes, 0)
            self._places = np.frombuffer(start, "<i8", offset=_HEADER.size).astype(np.int64)
            _check(start, self._places, os.fstat(fd).st_size)
            self._entries: npt.NDArray[Any] = np.zeros(rows, _ENTRY)
            self.refresh()
        except BaseException:
            os.close(fd)
            raise

    def refresh(self) -> None:
        """Learn what other processes have filled.

        Raises:
            OSError: the file cannot be read.
        """
        with self._lock:
            entries = _pread(self.fd, self.rows * _ENTRY.itemsize, self._entries_at)
            self._entries = np.frombuffer(entries, _ENTRY).copy()

    def find(self, rows: Ints) -> Filled:
        """What is filled of some samples, int64 (n,), as far as is known here."""
        with self._lock:
            entries = self._entries[rows]
        heights, widths = entries["height"].astype(np.int64), entries["width"].astype(np.int64)
        fits = (heights > 0) & (heights * widths * 3 <= self.room(rows))
        return Filled(
            np.where(fits, heights, 0), np.where(fits, widths, 0), self._places[rows], entries["checksum"].copy()
        )

    def room(self, rows: Ints) -> Ints:
        """Bytes that each of some samples may have, int64 (n,); 0 for those that are not stored."""
        room: Ints = self._places[rows + 1] - self._places[rows]
        return room

    def offset(self, row: int) -> int:
        """Where a sample's pixels begin."""
        return int(self._places[row])

    def kept(self) -> bool:
        """Whether the file still has a name: what is written to one that was evicted is lost."""
        return os.fstat(self.fd).st_nlink > 0

    def num_filled(self) -> int:
        """How many samples are filled, as far as is known here."""
        with self._lock:
            return int(np.count_nonzero(self._entries["height"]))

    def read(self, row: int) -> Pixels | None:
        """A sample's pixels, uint8 (height, width, 3), verified; None when it is not filled, or damaged.

        Raises:
            OSError: the file cannot be read.
        """
        heights, widths, offsets, checksums = self.find(np.array([row]))
        if not heights[0]:
            return None
        height, width = int(heights[0]), int(widths[0])
        block = bytearray(_pread(self.fd, height * width * 3, int(offsets[0])))
        pixels: Pixels = np.frombuffer(block, np.uint8).reshape(height, width, 3)
        return pixels if pixels_checksum(pixels) == checksums[0] else None

    def write(self, row: int, pixels: Pixels) -> bool:
        """Fill a sample: uint8 (height, width, 3) in C order; whether it has room for them.

        Raises:
            OSError: it cannot be written.
        """
        if pixels.nbytes > self.room(np.array([row]))[0]:
            return False
        view, offset = pixels.reshape(-1).data, self.offset(row)
        while view:
            written = os.pwrite(self.fd, view, offset)
            view, offset = view[written:], offset + written
        self.note(row, pixels.shape[0], pixels.shape[1], pixels_checksum(pixels))
        return True

    def note(self, row: int, height: int, width: int, checksum: int) -> None:
        """Make known a sample whose pixels were written at its `offset`.

        Raises:
            OSError: it cannot be written.
        """
        entry = np.array([(height, width, checksum)], _ENTRY)
        os.pwrite(self.fd, entry.tobytes(), self._entries_at + row * _ENTRY.itemsize)
        with self._lock:
            self._entries[row] = entry[0]

    def damaged_rows(self) -> list[int]:
        """Read everything that is filled; the rows whose pixels are not as they were written.

        Raises:
            OSError: the file cannot be read.
        """
        with self._lock:
            filled = np.flatnonzero(self._entries["height"]).tolist()
        return [row for row in filled if self.read(row) is None]

    def forget(self, row: int) -> None:
        """Make a sample one that is not filled.

        Raises:
            OSError: it cannot be written.
        """
        self.note(row, 0, 0, 0)

    def close(self) -> None:
        """Close the file. Once only, when nobody reads it any more."""
        os.close(self.fd)


def _pread(fd: int, nbytes: int, offset: int) -> bytes:
    """All of a range.

    Raises:
        ValueError: the file ends before.
        OSError: it cannot be read.
    """
    pieces = []
    while nbytes:
        piece = os.pread(fd, nbytes, offset)
        if not piece:
            raise ValueError("it was cut short")
        pieces.append(piece)
        nbytes, offset = nbytes - len(piece), offset + len(piece)
    return b"".join(pieces)
