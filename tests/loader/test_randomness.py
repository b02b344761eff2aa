"""Philox4x64-10 against Random123 and numpy, and the independence that its keys promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.loader.randomness import DrawKey, generator, philox4x64, uniforms, uniforms_of_batch

WORD = st.integers(0, 2**64 - 1)
ONES = 2**64 - 1


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, (0, 0), "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
        ([ONES] * 4, (ONES, ONES), "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
        (
            [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
            (0x452821E638D01377, 0xBE5466CF34E90C6C),
            "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_it_gives_the_known_answers_of_random123(counter: list[int], key: tuple[int, int], expected: str) -> None:
    found = philox4x64(np.array(counter, dtype=np.uint64), key)
    assert " ".join(f"{int(word):016x}" for word in found) == expected


@settings(max_examples=50, deadline=None)
@given(counter=st.lists(WORD, min_size=4, max_size=4).filter(lambda c: c[0] < ONES), key=st.tuples(WORD, WORD))
def test_it_is_numpys_philox(counter: list[int], key: tuple[int, int]) -> None:
    theirs = np.random.Philox(counter=np.array(counter, dtype=np.uint64), key=np.array(key, dtype=np.uint64))
    following = np.array([counter[0] + 1, *counter[1:]], dtype=np.uint64)  # numpy counts up before it draws
    assert philox4x64(following, key).tolist() == theirs.random_raw(4).tolist()


def draw(seed: int = 1, output: str = "image", transform: str = "Crop#0", epoch: int = 0, occurrence: int = 0) -> bytes:
    key = DrawKey(seed, output, transform, epoch)
    return uniforms(key, np.arange(5), np.full(5, occurrence), 6).tobytes()


def test_each_part_of_the_key_gives_other_numbers() -> None:
    others = [draw(seed=2), draw(output="view"), draw(transform="Crop#1"), draw(epoch=1), draw(occurrence=1)]
    assert len({draw(), *others}) == 6
    assert draw() == draw()


@settings(max_examples=30, deadline=None)
@given(indices=st.lists(st.integers(0, 2**48 - 1), min_size=1, max_size=20), count=st.integers(1, 11))
def test_a_samples_numbers_do_not_depend_on_its_batch(indices: list[int], count: int) -> None:
    key = DrawKey(3, "image", "Crop#0", 7)
    batch = uniforms(key, np.array(indices), np.zeros(len(indices), np.int64), count)
    alone = [uniforms(key, np.array([i]), np.zeros(1, np.int64), count)[0] for i in indices]
    assert batch.shape == (len(indices), count)
    assert np.array_equal(batch, np.array(alone))
    assert ((batch >= 0) & (batch < 1)).all()


def test_transforms_drawn_together_get_the_numbers_that_each_gets_alone() -> None:
    streams = [(DrawKey(3, "image", f"Crop#{k}", 7), count) for k, count in enumerate((1, 24, 4, 2))]
    indices, occurrences = np.array([5, 0, 2**40]), np.array([0, 1, 0])
    together = uniforms_of_batch(streams, indices, occurrences)
    for (key, count), numbers in zip(streams, together, strict=True):
        assert np.array_equal(numbers, uniforms(key, indices, occurrences, count))
    assert uniforms_of_batch([], indices, occurrences) == []


def test_numbers_are_uniform_and_uncorrelated() -> None:
    numbers = uniforms(DrawKey(0, "image", "Crop#0", 0), np.arange(50_000), np.zeros(50_000, np.int64), 2)
    assert abs(numbers.mean() - 0.5) < 0.005
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 50  # chi-square with 19 degrees of freedom: one in 10,000
    assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.02
    assert abs(np.corrcoef(numbers[:, 0], numbers[:, 1])[0, 1]) < 0.02


def test_a_generator_repeats_for_the_same_sample_only() -> None:
    key = DrawKey(3, "image", "blur#0", 7)
    first = generator(key, index=5, occurrence=0).random(4).tolist()
    assert first == generator(key, index=5, occurrence=0).random(4).tolist()
    assert first != generator(key, index=6, occurrence=0).random(4).tolist()
    assert first != generator(key, index=5, occurrence=1).random(4).tolist()


def test_golden_numbers_stay_as_they_are() -> None:
    """Users' runs depend on these values."""
    numbers = uniforms(DrawKey(1, "image", "RandomResizedCrop#0", 2), np.array([3, 4]), np.array([0, 0]), 2)
    assert numbers.round(12).tolist() == GOLDEN


GOLDEN = [[0.871723435328, 0.337893693333], [0.99303312307, 0.416496921825]]
