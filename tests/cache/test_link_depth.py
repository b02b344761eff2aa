from __future__ import annotations

import statistics
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.cache.link_depth import LinkDepth

PIECE = 2 << 20


def fill(depth: LinkDepth, *, rate: float, delay_s: float, seconds: float, start: float = 0.0) -> None:
    """A link that answers one after the other, kept as full as `depth` says."""
    now, free_at = start, start
    under_way = deque[tuple[float, float]]()  # when it was asked for, when it is there
    while now < start + seconds:
        while len(under_way) * PIECE < depth.nbytes():
            free_at = max(free_at, now + delay_s) + PIECE / rate
            under_way.append((now, free_at))
        asked, now = under_way.popleft()
        depth.add(PIECE, now - asked, now=now)


@settings(deadline=None)
@given(st.floats(5e6, 2e9), st.floats(0.001, 0.3))
def test_a_link_is_filled_and_hardly_more(rate: float, delay_s: float) -> None:
    depth = LinkDepth(2 * PIECE, 1 << 40)
    seen = []
    for start in range(0, 60, 5):  # also when what was seen first has been forgotten
        fill(depth, rate=rate, delay_s=delay_s, seconds=5, start=start)
        seen.append(depth.nbytes())
    carried = rate * delay_s
    assert statistics.median(seen) >= carried
    assert max(seen) <= 4 * (carried + 2 * PIECE)


@given(st.lists(st.tuples(st.integers(0, 1 << 30), st.floats(1e-6, 100), st.floats(0, 1000)), max_size=50))
def test_it_stays_within_its_bounds_whatever_comes(answers: list[tuple[int, float, float]]) -> None:
    depth = LinkDepth(1000, 5000)
    now = 0.0
    for nbytes, seconds, pause in answers:
        now += pause
        depth.add(nbytes, seconds, now=now)
        assert 1000 <= depth.nbytes() <= 5000


def test_a_link_that_has_become_slow_is_noticed() -> None:
    depth = LinkDepth(2 * PIECE, 1 << 40)
    fill(depth, rate=1e9, delay_s=0.1, seconds=5)
    fast = depth.nbytes()
    fill(depth, rate=1e8, delay_s=0.1, seconds=30, start=6)
    assert depth.nbytes() < fast / 3
    assert depth.nbytes() >= 1e7


def test_before_anything_is_known_it_is_the_least() -> None:
    assert LinkDepth(1000, 5000).nbytes() == 1000
    assert LinkDepth(9000, 5000).nbytes() == 5000
