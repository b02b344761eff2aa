"""accelerate's `prepare`, gradient accumulation, metrics and checkpoints, with its own library and torchrun's ranks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.frameworks.launch import Reports
from tests.frameworks.samples import ROWS, expected

pytestmark = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")


def test_any_data_gives_the_samples_of_torchs_loader(accelerated: Reports) -> None:
    for told in accelerated:
        assert told["any_data"]["forebay"] == told["any_data"]["torch"]


def test_any_data_keeps_our_engine_in_accelerates_wrapper(accelerated: Reports) -> None:
    for told in accelerated:
        kept = told["any_data_kept"]
        assert kept["engine"].startswith("forebay.")
        assert kept["epochs"] == told["any_data"]["torch"]
        assert kept["workers"] == 2  # in three epochs: they stay


def test_any_data_in_the_wrapper_goes_on_from_accelerates_checkpoint(accelerated: Reports) -> None:
    for told in accelerated:
        kept = told["any_data_kept"]
        assert kept["rest"] == [kept["epochs"][1][3:], kept["epochs"][2]]


def test_a_loader_of_shards_stays_itself_and_is_divided_once(accelerated: Reports, shards: Path) -> None:
    size = len(accelerated)
    for rank, told in enumerate(accelerated):
        assert told["shard_epochs"]["same object"]
        assert not told["shard_epochs"]["in use after"]
        assert told["shard_epochs"]["epochs"] == expected(shards, 2, rank=rank, world_size=size, even=True)
    for epoch in range(2):
        batches = [batch for told in accelerated for batch in told["shard_epochs"]["epochs"][epoch]]
        assert sorted({label for batch in batches for label in batch}) == list(range(ROWS))


def test_gradients_are_flushed_at_the_end_of_an_epoch_of_shards(accelerated: Reports) -> None:
    steps = -(-ROWS // (4 * len(accelerated)))
    wanted = [(step + 1) % 3 == 0 or step == steps - 1 for step in range(steps)]
    for told in accelerated:
        assert told["shard_training"]["flushed"] == [wanted, wanted]


def test_metrics_of_shards_see_each_sample_once(accelerated: Reports) -> None:
    for told in accelerated:
        assert [sorted(labels) for labels in told["shard_training"]["evaluated"]] == [list(range(ROWS))] * 2


def test_shards_go_on_from_accelerates_checkpoint(accelerated: Reports) -> None:
    for told in accelerated:
        assert told["shard_checkpoint"]["resumed"] == told["shard_checkpoint"]["after"]


def test_the_last_batch_of_shards_is_even_over_ranks_until_accelerate_says_otherwise(accelerated: Reports) -> None:
    even, uneven = zip(*(told["uneven"] for told in accelerated), strict=True)
    assert len({len(batch) for batch in even}) == 1
    left = list(range(ROWS - ROWS % (4 * len(accelerated)), ROWS))
    assert [label for batch in even for label in batch][: len(left)] == left
    assert [label for batch in uneven for label in batch] == left


def test_skipping_in_accelerates_way_says_what_to_do_instead(accelerated: Reports) -> None:
    for told in accelerated:
        assert "ignore_data_skip=True" in told["skipping"]
