from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from forebay.cache.byte_ranges import ByteRanges

SIZE = 30
ranges = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda pair: (min(pair), max(pair)))


@example([("add", (0, 2)), ("remove", (1, 1))], (0, 0))
@given(st.lists(st.tuples(st.sampled_from(["add", "remove"]), ranges)), ranges)
def test_it_is_a_set_of_bytes(steps: list[tuple[str, tuple[int, int]]], asked: tuple[int, int]) -> None:
    found, expected = ByteRanges(), set[int]()
    for what, (begin, end) in steps:
        if what == "add":
            found.add(begin, end)
            expected |= set(range(begin, end))
        else:
            found.remove(begin, end)
            expected -= set(range(begin, end))
    held = list(found)
    assert {byte for begin, end in held for byte in range(begin, end)} == expected
    assert all(left[1] < right[0] for left, right in itertools.pairwise(held)), "disjoint, and none touch"
    assert found.nbytes == len(expected)
    wanted = set(range(*asked))
    gaps = list(found.gaps(*asked))
    assert {byte for begin, end in gaps for byte in range(begin, end)} == wanted - expected
    assert all(begin < end for begin, end in gaps)
    assert found.covers(*asked) == (wanted <= expected)
    assert found.meets(*asked) == bool(wanted & expected)


def test_an_emptied_set_has_nothing() -> None:
    found = ByteRanges()
    found.add(3, 5)
    found.clear()
    assert list(found) == []
    assert list(found.gaps(0, 9)) == [(0, 9)]
