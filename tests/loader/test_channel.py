"""The hand-over between threads: order, bounds, and both ways of ending."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.loader.channel import Channel, ChannelClosed, ChannelEnd


def test_things_come_out_in_order_and_then_the_end() -> None:
    channel: Channel[int] = Channel(capacity=8)
    for i in range(5):
        channel.put(i)
    channel.finish()
    assert list(channel) == [0, 1, 2, 3, 4]
    with pytest.raises(ChannelEnd):
        channel.get()


def test_what_came_before_an_error_is_delivered_before_it() -> None:
    channel: Channel[int] = Channel(capacity=8)
    channel.put(1)
    channel.finish(OSError("disk"))
    assert channel.get() == 1
    for _ in range(2):
        with pytest.raises(OSError, match="disk"):
            channel.get()


def test_leaving_early_stops_an_endless_producer() -> None:
    channel: Channel[int] = Channel(capacity=1)
    stopped = threading.Event()

    def produce() -> None:
        try:
            while True:
                channel.put(0)
        except ChannelClosed:
            stopped.set()

    thread = threading.Thread(target=produce)
    thread.start()
    assert channel.get() == 0
    channel.abandon()
    channel.abandon()
    thread.join(timeout=10)
    assert stopped.is_set()
    with pytest.raises(ChannelEnd):
        channel.get()


def test_abandoning_wakes_a_waiting_reader() -> None:
    channel: Channel[int] = Channel(capacity=1)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.extend(channel))
    thread.start()
    channel.abandon()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert seen == []


def test_a_reader_with_a_limit_gives_up() -> None:
    with pytest.raises(TimeoutError):
        Channel[int](capacity=1).get(timeout_s=0.01)


def test_bytes_are_bounded_but_one_large_thing_passes() -> None:
    channel: Channel[str] = Channel(capacity=10, capacity_nbytes=100)
    channel.put("larger than the bound", 1000)
    second = threading.Thread(target=channel.put, args=("small", 1))
    second.start()
    second.join(timeout=0.05)
    assert second.is_alive(), "the bound in bytes did not hold"
    assert channel.get() == "larger than the bound"
    second.join(timeout=10)
    assert channel.get() == "small"
    assert channel.put_wait_s > 0


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=4), readers=st.integers(1, 4), capacity=st.integers(1, 5)
)
def test_many_producers_and_readers_lose_and_double_nothing(counts: list[int], readers: int, capacity: int) -> None:
    channel: Channel[tuple[int, int]] = Channel(capacity=capacity)
    seen: list[list[tuple[int, int]]] = [[] for _ in range(readers)]

    def produce(p: int) -> None:
        for i in range(counts[p]):
            channel.put((p, i))

    producers = [threading.Thread(target=produce, args=(p,)) for p in range(len(counts))]
    consumers = [threading.Thread(target=lambda r=r: seen[r].extend(channel)) for r in range(readers)]
    for thread in producers + consumers:
        thread.start()
    for thread in producers:
        thread.join()
    channel.finish()
    for thread in consumers:
        thread.join()
    assert sorted(x for part in seen for x in part) == [(p, i) for p in range(len(counts)) for i in range(counts[p])]
    for part in seen:
        for p in range(len(counts)):
            mine = [i for q, i in part if q == p]
            assert mine == sorted(mine)
