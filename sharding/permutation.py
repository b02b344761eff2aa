"""Keyed pseudorandom permutations of `range(n)`: computed where they are asked for, with no array of n entries.

Shuffles for training, repeatable and well mixed; not secret and no encryption. The C source is `_order.c`; without it
numpy gives the same, five times as slowly.

A permutation is a Feistel network over Z_a × Z_b, with a and b near the square root of n and a * b hardly above n. An
index that leaves `range(n)` goes through the network again until it is back (Black and Rogaway 2002, "Ciphers with
arbitrary finite domains", methods 2 and 3). Each of the a * b - n outside points lies on one such way at most, so an
index costs a * b / n calls on average: below 1.03 for every n of 1,000 and more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

__all__ = ["CHUNK", "Permutation", "PermutationFamily", "derive_key", "subkeys"]

CHUNK: Final = 1 << 15
"""Indices computed at a time: half a dozen arrays of 8-byte numbers of this length stay in a core's own cache."""

_permute: Callable[..., None] | None
try:
    from forebay.sharding._order import permute as _permute
except ImportError:
    _permute = None

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_SHIFT: Final = np.uint64(32)
_STIR: Final = np.uint64(0xD6E8FEB86659FD93)
_LESS: Final = np.arange(0, 16, 2)[:, np.newaxis]
_NONE: Final = np.empty(0, np.int64)


def _mixed(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014): 64 bits to 64 bits, one to one."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


_ROUNDS: Final = np.array([_mixed(number * _GOLDEN & _MASK) | 1 for number in range(1, 25)], np.uint64)
"""The odd multiplier of each round."""

_FEW: Final = 256
"""Below this many elements a permutation takes all 24 rounds, from there on the first 10. Over many keys, all
permutations of 2 to 8 elements then come equally often, and so do all images of two elements of a larger range, as far
as chi-square tells (z < 3). For that 8 rounds are enough from 200 elements on, 12 from 9 on, 16 not for 8 elements."""

_ROUNDS_OF_MANY: Final = 10


def derive_key(fingerprint: str, seed: int, epoch: int, purpose: str) -> int:
    """A key of 64 bits for one purpose in one epoch; any integer is a seed.

    Args:
        fingerprint: of the data set, so that equal seeds shuffle two data sets differently.
        seed: the user's.
        epoch: from 0.
        purpose: what the key is for, e.g. "rows"; keys of different purposes are unrelated.
    """
    return xxhash.xxh3_64_intdigest(f"{fingerprint}\0{seed}\0{epoch}\0{purpose}".encode())


def subkeys(key: int, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """The numbered keys under a key: splitmix64's stream that starts at `key`, at any places of it.

    Args:
        key: from `derive_key`.
        numbers: int64 (N,), e.g. shards or blocks.

    Returns:
        uint64 (N,), all different for different numbers.
    """
    state = (numbers.view(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _factors(sizes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Factors a and b near the square root, a * b >= n as tight as the best of a few candidates allows.

    One of them is even: over two odd ones the network would reach even permutations only.
    """
    root = np.ceil(np.sqrt(sizes.astype(np.float64)) * 0.5).astype(np.int64) * 2
    a = np.maximum(root - np.minimum(_LESS, (root >> 3) * 2), 2)  # (candidates, D), from the root down by a quarter
    b = (sizes + (a - 1)) // a
    best = np.argmin(a * b, axis=0)
    each = np.arange(len(sizes))
    return a[best, each].view(np.uint64), np.maximum(b[best, each], 1).view(np.uint64)


_Words: TypeAlias = npt.NDArray[np.uint64]


def _encipher(indices: _Words, a: _Words, b: _Words, keys: _Words, rounds: _Words) -> _Words:
    """One call of the network: (N,) to a new (N,) within `range(a * b)`; a, b and keys are (N,) or (1,)."""
    left = indices // b
    right = indices - left * b
    hashed = np.empty_like(indices)
    spare = np.empty_like(indices)
    half, other, size, other_size = left, right, a, b
    for multiplier in rounds:
        # half = (half + hash of other, scaled to range(size)) mod size
        np.add(other, keys, out=hashed)
        np.multiply(hashed, multiplier, out=hashed)
        np.right_shift(hashed, _SHIFT, out=spare)
        np.bitwise_xor(hashed, spare, out=hashed)
        np.multiply(hashed, _STIR, out=hashed)
        np.right_shift(hashed, _SHIFT, out=hashed)
        np.multiply(hashed, size, out=hashed)
        np.right_shift(hashed, _SHIFT, out=hashed)
        np.add(half, hashed, out=half)
        np.subtract(half, size, out=hashed)  # wraps to something huge where half < size
        np.minimum(half, hashed, out=half)
        half, other, size, other_size = other, half, other_size, size
    np.multiply(left, b, out=left)
    np.add(left, right, out=left)
    return left


class PermutationFamily:
    """Many permutations, each of its own `range(n)`, all different, under one key.

    Immutable, hence thread-safe.

    Args:
        sizes: int64 (D,), each n, from 0 to 2**62, where halves of 31 bits still leave the sums of a round room in 64.
        key: 64 bits, of any kind: those for 0 and 1 are as unrelated as any others.
        numbers: int64 (D,), what each permutation is called under the key, e.g. its shard or block.
    """

    def __init__(self, sizes: npt.NDArray[np.int64], key: int, numbers: npt.NDArray[np.int64]) -> None:
        self._sizes = sizes.view(np.uint64)
        self._keys = subkeys(key, numbers)
        self._a, self._b = _factors(sizes)
        self._few = sizes < _FEW
        self._any_few = bool(self._few.any())
        rounds = np.where(self._few, len(_ROUNDS), _ROUNDS_OF_MANY).astype(np.uint64)
        self._members = np.stack((self._sizes, self._keys, self._a, self._b, rounds), axis=1)

    def permute(
        self, indices: npt.NDArray[np.int64], which: npt.NDArray[np.intp] | None = None
    ) -> npt.NDArray[np.int64]:
        """Where each index goes.

        Args:
            indices: int64 (N,), each in the range of its permutation.
            which: (N,), the number of the permutation of each index; None: the first one, for all of them.

        Returns:
            int64 (N,), a new array.

        Raises:
            IndexError: an index outside of the range.
        """
        if _permute is not None:
            chosen = _NONE if which is None else np.ascontiguousarray(which, np.int64)
            moved = np.empty(len(indices), np.int64)
            _permute(self._members, _ROUNDS, np.ascontiguousarray(indices, np.int64), chosen, moved)
            return moved
        return self._permute_here(indices, np.zeros(len(indices), np.intp) if which is None else which)

    def _permute_here(self, indices: npt.NDArray[np.int64], which: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        if (indices.view(np.uint64) >= self._sizes[which]).any():
            raise IndexError("an index outside of the range that its permutation is of")
        if not self._any_few:
            return self._walk(indices, which, _ROUNDS[:_ROUNDS_OF_MANY])
        few = self._few[which]
        out = np.empty_like(indices)
        for chosen, rounds in ((np.flatnonzero(few), _ROUNDS), (np.flatnonzero(~few), _ROUNDS[:_ROUNDS_OF_MANY])):
            if len(chosen):
                out[chosen] = self._walk(indices[chosen], which[chosen], rounds)
        return out

    def mean_calls(self) -> npt.NDArray[np.float64]:
        """float64 (D,): calls of the network that an index takes, on average over the range, at most."""
        return (self._a * self._b).astype(np.float64) / np.maximum(self._sizes, 1)

    def _walk(
        self, indices: npt.NDArray[np.int64], which: npt.NDArray[np.intp], rounds: _Words
    ) -> npt.NDArray[np.int64]:
        sizes, keys, a, b = self._sizes[which], self._keys[which], self._a[which], self._b[which]
        out = _encipher(indices.view(np.uint64), a, b, keys, rounds)
        outside = np.flatnonzero(out >= sizes)
        while len(outside):
            again = _encipher(out[outside], a[outside], b[outside], keys[outside], rounds)
            out[outside] = again
            outside = outside[again >= sizes[outside]]
        return out.view(np.int64)


class Permutation:
    """One permutation of `range(size)`. Immutable, hence thread-safe.

    Args:
        size: n, from 0 to 2**62.
        key: 64 bits, of any kind.
    """

    def __init__(self, size: int, key: int) -> None:
        self._family = PermutationFamily(np.array([size], np.int64), key, np.zeros(1, np.int64))

    def permute(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where each index goes: int64 (N,) in `range(size)` to a new int64 (N,). Computed `CHUNK` at a time."""
        out = np.empty_like(indices)
        for begin in range(0, len(indices), CHUNK):
            out[begin : begin + CHUNK] = self._family.permute(indices[begin : begin + CHUNK])
        return out

    def mean_calls(self) -> float:
        """Calls of the network that an index takes, on average over the range, at most."""
        return float(self._family.mean_calls()[0])
