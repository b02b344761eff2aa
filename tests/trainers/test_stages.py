"""Cutting a model into stages, and a batch into micro-batches: plans, without ranks."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from forebay.errors import ConfigError
from forebay.trainers import PipelineConfig
from forebay.trainers.microbatches import MicroLoss, filled
from forebay.trainers.stages import StageModules, check_cuts, cut_evenly, stages_of_rank


def largest(sizes: list[int], cuts: tuple[int, ...] | list[int]) -> int:
    bounds = [0, *cuts, len(sizes)]
    return max(sum(sizes[a:b]) for a, b in itertools.pairwise(bounds))


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=9), data=st.data())
def test_no_other_cut_has_a_smaller_largest_stage(sizes: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(sizes)))
    cuts = cut_evenly(sizes, parts)
    assert check_cuts(cuts, len(sizes), parts) == cuts
    every = itertools.combinations(range(1, len(sizes)), parts - 1)
    assert largest(sizes, cuts) == min(largest(sizes, other) for other in every)


def test_cuts_that_make_no_such_stages_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot make 4 stages"):
        cut_evenly([1, 2, 3], 4)
    for cuts in ([2], [2, 2], [0, 2], [1, 5]):
        with pytest.raises(ConfigError, match="do not make 3 stages"):
            check_cuts(cuts, 5, 3)


def test_interleaved_stages_go_round_the_ranks() -> None:
    assert [stages_of_rank(rank, ranks=3, stages=6) for rank in range(3)] == [[0, 3], [1, 4], [2, 5]]


def test_a_stage_names_its_parameters_as_the_whole_model_does() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    stage = StageModules(list(model)[1:], 1)
    assert list(stage.state_dict()) == ["2.weight", "2.bias"]
    x = torch.rand(4, 3)
    assert torch.equal(stage(x), model[2](model[1](x)))


def loss(outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.mse_loss(outputs, batch["y"])


@pytest.mark.parametrize("samples", [1, 3, 5, 7, 8])
def test_micro_batches_of_a_short_batch_have_the_loss_of_the_whole(samples: int) -> None:
    outputs, y = torch.rand(8), torch.rand(samples)
    batch = filled({"y": y}, 8)
    micro = MicroLoss(loss, 4)
    micro.take(batch, 0.5, 8)
    losses = [micro(outputs[2 * i : 2 * i + 2], number) for i, number in enumerate(micro.numbers)]
    assert torch.stack(losses).mean().item() == pytest.approx(0.5 * F.mse_loss(outputs[:samples], y).item())


def test_a_full_batch_is_cut_without_a_copy() -> None:
    batch = {"y": torch.rand(8), "weight": torch.tensor(1.0)}
    assert filled(batch, 8) is batch
    seen = []
    micro = MicroLoss(lambda outputs, views: seen.append(views["y"].data_ptr()) or outputs.mean(), 4)  # type: ignore[func-returns-value]
    micro.take(batch, 1.0, 8)
    micro(torch.rand(2), micro.numbers[3])
    assert seen == [batch["y"][6:].data_ptr()]


def test_schedules_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="stages_per_rank=1"):
        PipelineConfig(schedule="interleaved")
    with pytest.raises(ConfigError, match="stages_per_rank=2"):
        PipelineConfig(schedule="1f1b", stages_per_rank=2)
    with pytest.raises(ConfigError, match="microbatches=0"):
        PipelineConfig(microbatches=0)
    with pytest.raises(ConfigError, match="fp16"):
        PipelineConfig(precision="fp16")
