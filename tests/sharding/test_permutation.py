"""Keyed permutations: one to one, as good as random by the tests that matter for shuffling, and the same for ever."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.sharding import permutation
from forebay.sharding.permutation import Permutation, PermutationFamily, derive_key, subkeys

KEYS = st.integers(0, 2**64 - 1)


def images(size: int, num_keys: int, indices: list[int], key: int = 0) -> npt.NDArray[np.int64]:
    """(num_keys, len(indices)): where the indices go under many keys."""
    family = PermutationFamily(np.full(num_keys, size), key, np.arange(num_keys))
    which = np.arange(num_keys)
    return np.stack([family.permute(np.full(num_keys, index), which) for index in indices], axis=1)


def chi_square_z(counts: npt.NDArray[np.int64], odds: npt.NDArray[np.int64] | float = 1.0) -> float:
    """How many standard deviations the counts of outcomes are from what chance gives."""
    weights = np.broadcast_to(odds, counts.shape)
    expected = counts.sum() * weights / weights.sum()
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


@settings(max_examples=60, deadline=None)
@given(size=st.integers(0, 3000), key=KEYS)
def test_every_index_goes_to_a_place_of_its_own(size: int, key: int) -> None:
    moved = Permutation(size, key).permute(np.arange(size))
    assert np.array_equal(np.sort(moved), np.arange(size))


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(0, 600), min_size=1, max_size=30), key=KEYS)
def test_a_member_of_a_family_does_not_depend_on_the_others(sizes: list[int], key: int) -> None:
    numbers = np.arange(len(sizes)) * 3
    which = np.repeat(np.arange(len(sizes)), sizes)
    indices = np.concatenate([np.arange(size) for size in sizes])
    shuffled = np.random.default_rng(0).permutation(len(which))
    moved = PermutationFamily(np.array(sizes), key, numbers).permute(indices[shuffled], which[shuffled])
    alone = []
    for size, number in zip(sizes, numbers, strict=True):
        member = PermutationFamily(np.array([size]), key, np.array([number]))
        alone.append(member.permute(np.arange(size), np.zeros(size, np.intp)))
    assert np.array_equal(moved, np.concatenate(alone)[shuffled])


@settings(max_examples=40, deadline=None)
@given(size=st.integers(10**6, 2**62), key=KEYS, start=st.integers(0, 2**62))
def test_huge_ranges_are_permuted_without_collisions(size: int, key: int, start: int) -> None:
    first = start % (size - 5000)
    indices = np.concatenate([np.arange(first, first + 4000), [size - 1]])
    moved = Permutation(size, key).permute(np.unique(indices))
    assert len(np.unique(moved)) == len(np.unique(indices))
    assert moved.min() >= 0
    assert moved.max() < size


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7])
def test_all_permutations_of_a_few_elements_come_equally_often(size: int) -> None:
    codes = images(size, math.factorial(size) * 60, list(range(size))) @ size ** np.arange(size)
    values, counts = np.unique(codes, return_counts=True)
    assert len(values) == math.factorial(size)
    assert chi_square_z(counts) < 4


@pytest.mark.parametrize("size", [8, 9, 20, 33, 100, 255, 256, 257, 300])
def test_two_elements_go_to_all_pairs_of_places_equally_often(size: int) -> None:
    for other in (1, size // 2, size - 1):
        moved = images(size, min(40 * size * size, 400_000), [0, other], key=other)
        counts = np.bincount(moved[:, 0] * size + moved[:, 1], minlength=size * size).reshape(size, size)
        assert counts.trace() == 0
        assert chi_square_z(counts[~np.eye(size, dtype=bool)]) < 4


@pytest.mark.parametrize("size", [1000, 4096, 100_003, 400_000])
def test_neighbours_move_apart_by_any_distance_equally_often(size: int) -> None:
    possible = np.bincount(np.arange(1, size) * 97 // size, minlength=97)
    for lag in (1, 2, round(math.sqrt(size))):
        counts = np.zeros(97, np.int64)
        for key in range(400_000 // size):
            moved = Permutation(size, key).permute(np.arange(size))
            distances = (moved[lag:] - moved[:-lag]) % size
            counts += np.bincount(distances * 97 // size, minlength=97)
        assert chi_square_z(counts, possible) < 4


@pytest.mark.parametrize("size", [20, 21, 50, 300])
def test_no_two_keys_agree_on_twenty_elements_and_more(size: int) -> None:
    moved = images(size, 50_000, list(range(20)))
    assert len(np.unique(moved, axis=0)) == 50_000


def test_the_number_of_cycles_is_that_of_random_permutations() -> None:
    size, num_keys = 500, 300
    cycles = []
    for key in range(num_keys):
        moved = Permutation(size, derive_key("cycles", key, 0, "test")).permute(np.arange(size)).tolist()
        seen: set[int] = set()
        count = 0
        for start in range(size):
            if start not in seen:
                count += 1
                while start not in seen:
                    seen.add(start)
                    start = moved[start]
        cycles.append(count)
    expected = sum(1 / k for k in range(1, size + 1))
    spread = math.sqrt(sum(1 / k - 1 / k**2 for k in range(1, size + 1)))
    assert abs(np.mean(cycles) - expected) < 4 * spread / math.sqrt(num_keys)


def test_an_index_takes_less_than_1_03_calls_for_a_thousand_elements_and_more() -> None:
    sizes = np.concatenate([np.arange(1000, 200_000), np.geomspace(200_000, 2**62, 100_000).astype(np.int64)])
    assert PermutationFamily(sizes, 0, sizes).mean_calls().max() < 1.03


@pytest.mark.parametrize("size", [10, 1000, 1093, 4097, 70_001])
def test_the_calls_that_are_made_stay_under_the_bound_that_is_told(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    encipher = permutation._encipher

    def counting(indices: Any, *rest: Any) -> Any:
        nonlocal calls
        calls += len(indices)
        return encipher(indices, *rest)

    monkeypatch.setattr(permutation, "_encipher", counting)
    monkeypatch.setattr(permutation, "_permute", None)
    shuffle = Permutation(size, 3)
    shuffle.permute(np.arange(size))
    assert size <= calls <= round(size * shuffle.mean_calls())


def test_a_key_depends_on_everything_it_is_made_from() -> None:
    base = ("fingerprint", 1, 2, "rows")
    others = [("fingerprinu", 1, 2, "rows"), ("fingerprint", 2, 2, "rows"), ("fingerprint", 1, 1, "rows")]
    others += [("fingerprint", 12, 0, "rows"), ("fingerprint", 1, 2, "block"), ("fingerprint", -1, 2, "rows")]
    assert len({derive_key(*args) for args in [base, *others]}) == 7


def test_subkeys_are_the_stream_of_splitmix64() -> None:
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert subkeys(1234567, np.arange(4)).tolist() == published
    assert subkeys(1234567, np.array([3, 1])).tolist() == [published[3], published[1]]


def test_golden_values() -> None:
    twenty = [13, 11, 12, 10, 1, 3, 2, 9, 14, 19, 7, 6, 18, 0, 4, 16, 8, 15, 17, 5]
    assert Permutation(20, 1).permute(np.arange(20)).tolist() == twenty
    assert Permutation(1000, 1).permute(np.arange(8)).tolist() == [976, 386, 586, 117, 67, 860, 557, 519]
    assert Permutation(10**12, 2**63).permute(np.arange(3)).tolist() == [321487580011, 588060525853, 913867546629]
    assert derive_key("f", 0, 0, "rows") == 8010637320876731146
