"""Lightning's `Trainer`: what it makes anew and what not, and its checkpoints, with its own library and ranks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.launch import Reports
from tests.frameworks.samples import ROWS, expected

pytestmark = pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="Lightning is not installed")


def batches_of(epochs: dict[str, list[list[int]]]) -> list[list[int]]:
    """The batches of a run, one epoch behind the other."""
    return [batch for epoch in sorted(epochs, key=int) for batch in epochs[epoch]]


def assert_exact(run: dict[str, Any], least: int) -> None:
    """Each run that was resumed reads what the whole one read from that step on, in the same epochs."""
    whole = run["whole"]
    assert len(run["resumed"]) >= least
    for step, resumed in run["resumed"].items():
        assert batches_of(resumed) == batches_of(whole)[int(step) :], f"resumed at step {step}"
        assert all(batches == whole[epoch][-len(batches) :] for epoch, batches in resumed.items())


def test_any_data_gives_the_samples_of_torchs_loader(lightened: Reports) -> None:
    for told in lightened:
        assert told["any_data"]["forebay"] == told["any_data"]["torch"]


def test_any_data_predicts_the_samples_of_torchs_loader(lightened: Reports) -> None:
    for told in lightened:
        assert told["any_predicted"]["forebay"] == told["any_predicted"]["torch"]


def test_workers_stay_between_epochs_and_go_with_the_training(lightened: Reports) -> None:
    for told in lightened:
        assert told["any_data"]["forebay's workers"] == told["any_data"]["torch's workers"] == 2
        assert told["any_data"]["children"] == 0


@pytest.mark.parametrize("where", ["outside", "hook"])
def test_a_loader_made_anew_keeps_every_setting(lightened: Reports, where: str) -> None:
    for told in lightened:
        found = told["settings_kept"][where]
        assert found["type"].startswith("forebay.")
        assert found["used"] == found["given"]
        assert (found["sampler"] == "DistributedSampler") == (len(lightened) > 1)


@pytest.mark.parametrize("job", ["any_checkpoints", "any_checkpoints_without_workers"])
def test_any_data_goes_on_from_a_checkpoint_in_mid_epoch(lightened: Reports, job: str) -> None:
    for told in lightened:
        assert_exact(told[job], least=4)


def test_shards_go_on_from_a_checkpoint_in_mid_epoch(lightened: Reports) -> None:
    for told in lightened:
        assert_exact(told["shard_checkpoints"], least=4)


def test_shards_go_on_from_a_checkpoint_between_epochs(lightened: Reports) -> None:
    for told in lightened:
        assert_exact(told["shard_checkpoints_after_epochs"], least=3)


def test_shards_are_divided_once(lightened: Reports, shards: Path) -> None:
    for rank, told in enumerate(lightened):
        trained = told["shards_in_training"]
        alone = expected(shards, 2, rank=rank, world_size=len(lightened))
        held_out = expected(shards, 1, rank=rank, world_size=len(lightened), shuffle=False)[0]
        assert trained["same object"]
        assert trained["epochs"] == {"0": alone[0], "1": alone[1]}
        assert trained["steps"] == 2 * -(-len(alone[0]) // 3)
        assert trained["validated"] == held_out * 2


def test_shards_that_are_opened_anew_for_each_epoch_are_read_in_another_order(lightened: Reports, shards: Path) -> None:
    for rank, told in enumerate(lightened):
        alone = expected(shards, 2, rank=rank, world_size=len(lightened))
        assert told["shards_from_a_hook"] == {"0": alone[0], "1": alone[1]}


def test_overfitting_reads_the_same_shards_again(lightened: Reports, shards: Path) -> None:
    for rank, told in enumerate(lightened):
        stored = expected(shards, 1, rank=rank, world_size=len(lightened), shuffle=False)[0]
        assert told["shards_overfitted"] == {"0": stored[:2], "1": stored[:2]}


def test_predictions_leave_out_no_sample_of_the_shards(lightened: Reports) -> None:
    predicted = [label for told in lightened for batch in told["shards_predicted"] for label in batch]
    assert sorted(predicted) == list(range(ROWS))
