"""Ranges of files, read and verified together, with the native part and without."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.sharding import FILLED, Ranges, ranges

CONTENT = np.random.default_rng(7).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
Pieces = list[tuple[int, int, int]]


@pytest.fixture(scope="module")
def fd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("ranges") / "content"
    path.write_bytes(CONTENT)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(params=["native", "python"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "native" and ranges._load is None:
        pytest.skip("forebay was installed without its native parts")
    if request.param == "python":
        monkeypatch.setattr(ranges, "_load", None)
    return str(request.param)


def load(of: Ranges, pieces: Pieces, checksums: list[int]) -> npt.NDArray[np.bool_]:
    return of.load(np.array(pieces, np.int64).reshape(-1, 3), np.array(checksums, np.uint64))


def checksum(begin: int, end: int) -> int:
    return xxhash.xxh3_64_intdigest(CONTENT[begin:end])


@settings(max_examples=100, deadline=None)
@given(
    bounds=st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 70_000)), max_size=12),
    cuts=st.integers(0, 4),
    wrong=st.sets(st.integers(0, 11)),
    filled=st.sets(st.integers(0, 11)),
)
def test_each_range_is_filled_and_each_of_its_pieces_is_verified(
    fd: int, bounds: list[tuple[int, int]], cuts: int, wrong: set[int], filled: set[int]
) -> None:
    of, pieces, checksums = Ranges(), [], []
    for i, (offset, nbytes) in enumerate(bounds):
        end = min(offset + nbytes, len(CONTENT))
        if i in filled:
            assert of.add(memoryview(CONTENT[offset:end]), FILLED, 0) == i
        else:
            assert of.add(memoryview(bytearray(end - offset)), fd, offset) == i
        edges = np.linspace(0, end - offset, cuts + 1).astype(int).tolist() if cuts else [0]
        for begin, stop in itertools.pairwise(edges):
            pieces.append((i, begin, stop))
            checksums.append(checksum(offset + begin, offset + stop) ^ (i in wrong))
    sound = load(of, pieces, checksums)
    assert sound.tolist() == [i not in wrong or not cuts for i in range(len(bounds))]
    for (offset, nbytes), view in zip(bounds, of.views, strict=True):
        assert view == CONTENT[offset : min(offset + nbytes, len(CONTENT))]


def test_a_file_that_ends_early_and_a_closed_one_are_not_sound(fd: int) -> None:
    of = Ranges()
    gone = os.dup(fd)
    os.close(gone)
    for descriptor, offset in ((fd, len(CONTENT) - 9), (fd, len(CONTENT) + 1), (gone, 0), (fd, 100), (fd, -1)):
        of.add(memoryview(bytearray(10)), descriptor, offset)
    assert load(of, [(3, 0, 10)], [checksum(100, 110)]).tolist() == [False, False, False, True, False]


def test_pieces_outside_their_range_are_refused(fd: int, way: str) -> None:
    if way == "python":
        return  # slices end where their range ends
    for piece in ((0, 0, 11), (0, -1, 5), (0, 6, 5), (1, 0, 5), (-1, 0, 5)):
        of = Ranges()
        of.add(memoryview(bytearray(10)), fd, 0)
        with pytest.raises(ValueError, match="outside their views"):
            load(of, [piece], [0])
    of = Ranges()
    for _ in range(2):
        of.add(memoryview(bytearray(10)), fd, 0)
    with pytest.raises(ValueError, match="out of order"):
        load(of, [(1, 0, 5), (0, 0, 5)], [0, 0])


def test_memory_that_cannot_be_written_is_refused_before_anything_is_read(fd: int) -> None:
    of = Ranges()
    of.add(memoryview(bytes(10)), fd, 0)
    with pytest.raises((BufferError, TypeError)):
        load(of, [], [])


def test_what_cannot_be_read_at_an_offset_is_not_sound() -> None:
    """A pipe: an error other than an end, and nothing to wait for."""
    reading, writing = os.pipe()
    try:
        of = Ranges()
        of.add(memoryview(bytearray(10)), reading, 0)
        assert load(of, [], []).tolist() == [False]
        with pytest.raises(OSError, match=os.strerror(errno.ESPIPE)):
            os.preadv(reading, [bytearray(1)], 0)
    finally:
        os.close(reading)
        os.close(writing)
