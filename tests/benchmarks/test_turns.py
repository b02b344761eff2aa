"""Passes in turn: each side warmed up once, each first in turn, and ratios of what was measured in one round."""

from __future__ import annotations

from functools import partial

import torch

from forebay.benchmarks.turns import Ratio, take_turns, time_pass


def test_each_side_begins_a_round_in_its_turn() -> None:
    order: list[str] = []
    told: list[str] = []
    sides = {name: partial(order.append, name) for name in "abc"}
    results = take_turns(sides, rounds=4, progress=told.append)
    assert "".join(order) == "".join(told) == "abc" + "abc" + "bca" + "cab" + "abc"
    assert {name: len(passes) for name, passes in results.items()} == {"a": 5, "b": 5, "c": 5}


def test_a_pass_counts_images_and_shows_every_batch_to_the_check() -> None:
    seen: list[int] = []
    batches = [torch.zeros(4, 1), torch.zeros(2, 1)]
    told = time_pass(lambda: batches, lambda batch: seen.append(len(batch)))
    assert (told.images, seen) == (6, [4, 2])
    assert 0 <= told.first_batch_s <= told.seconds
    assert told.images_per_s > 0


def test_a_ratio_is_of_pairs() -> None:
    assert Ratio.of([100, 200, 300], [50, 200, 100]) == (2, 1, 3)
