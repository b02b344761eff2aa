"""Random numbers that belong to a sample: Philox4x64-10, a function of counter and key, drawn for a batch at once.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: *Parallel Random Numbers: As Easy as 1, 2, 3*, SC 2011.
Key: (seed, hash of the output's name). Counter: (number of the draw, hash of the transform's name and occurrence in its
list, sample index and occurrence, epoch). So adding a transform leaves the others' draws alone, two outputs of one
column differ, and no draw depends on a thread, a rank or a batch.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch.utils.data import get_worker_info

__all__ = ["DrawKey", "generator", "hash_name", "philox4x64", "seeded_globals", "uniforms", "uniforms_of_batch"]

Words = npt.NDArray[np.uint64]

_MULTIPLIERS = np.array([[0xD2E7470EE14C6C93], [0xCA5A826395121157]], np.uint64)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_MASK = (1 << 64) - 1
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_LOW_HALVES, _HIGH_HALVES = _MULTIPLIERS & _LOW, _MULTIPLIERS >> _HALF
OCCURRENCE_BITS = 48
"""The sample's index takes the low 48 bits of its counter word, its occurrence in the epoch the high 16."""


@dataclass(frozen=True, slots=True)
class DrawKey:
    """Which stream of numbers: everything of key and counter but the sample."""

    seed: int
    output: str
    transform: str
    """Name and occurrence in the list, such as `RandomResizedCrop#0`."""
    epoch: int

    @property
    def key(self) -> tuple[int, int]:
        """The two words of the key."""
        return self.seed, hash_name(self.output)


def hash_name(name: str) -> int:
    """xxh3-64 of a name in UTF-8."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8"))


def philox4x64(counter: Words, key: tuple[int, int]) -> Words:
    """Philox4x64-10, for many counters at once.

    Args:
        counter: uint64 (..., 4), lowest word first.
        key: two integers below 2**64.

    Returns:
        uint64 (..., 4), as Random123 orders them.
    """
    words = counter.reshape(-1, 4).T
    even, odd = np.ascontiguousarray(words[::2]), np.ascontiguousarray(words[1::2])
    k0, k1 = key
    for _ in range(_ROUNDS):
        high, low = _multiply(even)
        even, odd = high[::-1] ^ odd ^ np.array([[k0], [k1]], np.uint64), low[::-1]
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return np.stack((even, odd), axis=-1).transpose(1, 0, 2).reshape(counter.shape)


def _multiply(b: Words) -> tuple[Words, Words]:
    """High and low 64 bits of the multipliers times b (2, n), by halves: numpy has no 128-bit product."""
    b_low, b_high = b & _LOW, b >> _HALF
    cross = _HIGH_HALVES * b_low + ((_LOW_HALVES * b_low) >> _HALF)
    other = _LOW_HALVES * b_high + (cross & _LOW)
    high = _HIGH_HALVES * b_high + (cross >> _HALF) + (other >> _HALF)
    return high, _MULTIPLIERS * b


def uniforms(
    key: DrawKey, indices: npt.NDArray[np.int64], occurrences: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1), 53 bits each.

    Args:
        key: the stream.
        indices: int64 (B,) of the samples in the data set.
        occurrences: int64 (B,) of each sample in the epoch, 0 the first time.
        count: numbers a sample.

    Returns:
        float64 (B, count).
    """
    return uniforms_of_batch([(key, count)], indices, occurrences)[0]


def uniforms_of_batch(
    streams: Sequence[tuple[DrawKey, int]], indices: npt.NDArray[np.int64], occurrences: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.float64]]:
    """`uniforms` of several transforms of one output, by one call of the cipher: its cost is numpy's, a call.

    Args:
        streams: keys, which differ in the transform only, and how many numbers of each a sample needs.
        indices: int64 (B,) of the samples in the data set.
        occurrences: int64 (B,) of each sample in the epoch, 0 the first time.

    Returns:
        By stream, float64 (B, count).
    """
    if not streams:
        return []
    blocks = [-(-count // 4) for _, count in streams]
    counter = np.empty((len(indices), sum(blocks), 4), dtype=np.uint64)
    counter[:, :, 0] = np.concatenate([np.arange(n, dtype=np.uint64) for n in blocks])
    counter[:, :, 1] = np.repeat(np.array([hash_name(key.transform) for key, _ in streams], dtype=np.uint64), blocks)
    samples = indices.astype(np.uint64) | (occurrences.astype(np.uint64) << np.uint64(OCCURRENCE_BITS))
    counter[:, :, 2] = samples[:, None]
    counter[:, :, 3] = streams[0][0].epoch
    words = philox4x64(counter, streams[0][0].key).reshape(len(indices), 4 * sum(blocks))
    numbers = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    ends = np.cumsum(blocks) * 4
    return [
        numbers[:, end - 4 * n : end - 4 * n + count]
        for end, n, (_, count) in zip(ends.tolist(), blocks, streams, strict=True)
    ]


def generator(key: DrawKey, *, index: int, occurrence: int) -> np.random.Generator:
    """Numpy's generator on the same stream, for a callable that draws what it likes for one sample."""
    counter = [0, hash_name(key.transform), index | occurrence << OCCURRENCE_BITS, key.epoch]
    return np.random.Generator(
        np.random.Philox(counter=np.array(counter, dtype=np.uint64), key=np.array(key.key, dtype=np.uint64))
    )


@contextlib.contextmanager
def seeded_globals(rng: np.random.Generator) -> Iterator[None]:
    """Seed `random`, numpy's and torch's global generators from `rng`; outside worker processes, put them back."""
    kept = None
    if get_worker_info() is None:
        kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    words = rng.integers(0, 1 << 32, 4, dtype=np.uint64)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.default_generator.manual_seed(int(words[2] << np.uint64(31) | words[3]))
    try:
        yield
    finally:
        if kept is not None:
            random.setstate(kept[0])
            np.random.set_state(kept[1])
            torch.set_rng_state(kept[2])
