"""Hugging Face's `Trainer`: samples, evaluation and resume by the README's recipes, with its own library and ranks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.frameworks.launch import Reports
from tests.frameworks.samples import ROWS, expected

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


def test_any_data_gives_the_samples_of_torchs_loader(hugged: Reports) -> None:
    for told in hugged:
        assert told["any_data"]["forebay"] == told["any_data"]["torch"]
        assert told["any_data"]["forebay's workers"] == told["any_data"]["torch's workers"] == 2


@pytest.mark.parametrize("job", ["any_checkpoints", "shard_checkpoints", "shard_checkpoints_between_epochs"])
def test_a_run_goes_on_from_a_checkpoint_exactly(hugged: Reports, job: str) -> None:
    for told in hugged:
        assert len(told[job]["resumed"]) >= 3
        for step, batches in told[job]["resumed"].items():
            assert batches == told[job]["whole"][int(step) :], f"resumed at step {step}"


def test_shards_are_divided_once_and_all_gradients_make_a_step(hugged: Reports, shards: Path) -> None:
    size = len(hugged)
    for rank, told in enumerate(hugged):
        alone = expected(shards, 2, rank=rank, world_size=size, even=True)
        assert told["shards_with_evaluation"]["batches"] == alone[0] + alone[1]
        assert told["shards_with_evaluation"]["steps"] == 2 * -(-len(alone[0]) // 3)


def test_an_evaluation_of_shards_sees_each_sample_once(hugged: Reports) -> None:
    for told in hugged:
        assert told["shards_with_evaluation"]["seen"] == [list(range(ROWS))] * 2
        assert told["shards_with_evaluation"]["given"] == [list(range(ROWS))] * 2


def test_skipping_in_the_trainers_way_says_what_to_do_instead(hugged: Reports) -> None:
    for told in hugged:
        assert "ignore_data_skip=True" in told["skipping"]
