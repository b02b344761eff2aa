"""What a step does with gradients: accumulation, precision, clipping, learning rates. And reports of time."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forebay import DataLoader, ShardDataset
from forebay.errors import ConfigError
from forebay.trainers import (
    DataParallelConfig,
    DataParallelTrainer,
    EpochReport,
    NoProgress,
    RankTime,
    TrainReport,
    overlap_efficiency,
    scale_learning_rate,
    warm_up,
)


def loss_of(scores: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
    assert scores.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return F.cross_entropy(scores, batch["label"])


def fit(points: Path, *, batch_size: int = 7, columns: list[str] | None = None, **config: Any) -> TrainReport:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    loader = DataLoader(ShardDataset(points / "train", columns=columns), batch_size, shuffle=True, seed=2)
    return DataParallelTrainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss_of,
        loader,
        epochs=2,
        config=DataParallelConfig(**config),
        inputs="x",
        device="cpu",
        progress=NoProgress(),
    ).fit()


def test_accumulated_batches_step_as_one_large_batch(points: Path) -> None:
    whole, halves = fit(points, batch_size=14), fit(points, batch_size=7, accumulate=2)
    assert len(halves.losses) == 10
    assert halves.losses == pytest.approx(whole.losses, rel=1e-4)


def test_an_epoch_ends_a_step_that_has_fewer_batches(points: Path) -> None:
    assert len(fit(points, batch_size=7, accumulate=4).losses) == 2 * 3  # of 4, 4 and 2 batches


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_nearly_the_same(points: Path, precision: str) -> None:
    full, half = fit(points), fit(points, precision=precision)
    assert half.losses != full.losses
    assert half.losses == pytest.approx(full.losses, abs=0.05)


def test_clipping_bounds_how_far_a_step_goes(points: Path) -> None:
    free, held = fit(points), fit(points, clip_norm=1e-4)
    assert free.epochs[1].loss < 0.8 * free.epochs[0].loss
    assert held.epochs[1].loss > 0.99 * held.epochs[0].loss


def test_outputs_come_in_the_order_of_the_data_set(points: Path) -> None:
    model = nn.Linear(6, 3)
    dataset = ShardDataset(points / "train", columns=["x", "__index__"])
    trainer = DataParallelTrainer(
        model,
        torch.optim.SGD(model.parameters()),
        loss_of,
        DataLoader(dataset, 8),
        epochs=0,
        inputs="x",
        device="cpu",
        progress=NoProgress(),
    )
    outputs = trainer.predict(DataLoader(dataset, 8, shuffle=True, seed=1))
    expected = model(torch.stack([torch.as_tensor(dataset[i]["x"]) for i in range(len(dataset))]))
    torch.testing.assert_close(outputs, expected)
    with pytest.raises(ConfigError, match="__index__"):
        trainer.predict(DataLoader(ShardDataset(points / "train"), 8))
    dataset.close()


def test_learning_rates_scale_in_proportion_and_rise(points: Path) -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    scale_learning_rate(optimizer, 8)
    schedule = warm_up(optimizer, 4, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
    rates = []
    for _ in range(9):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.2, 0.35, 0.5, 0.65, 0.8, 0.8, 0.4, 0.4, 0.2])
    with pytest.raises(ConfigError, match="factor=0"):
        scale_learning_rate(optimizer, 0)
    with pytest.raises(ConfigError, match="steps=0"):
        warm_up(optimizer, 0)


def test_settings_that_cannot_work_are_refused() -> None:
    for settings, words in (
        ({"strategy": "dp"}, "strategy='dp'"),
        ({"accumulate": 0}, "accumulate=0"),
        ({"comm_hook": "int8"}, "comm_hook='int8'"),
        ({"comm_hook": "fp16", "strategy": "fsdp2"}, "leave it out"),
    ):
        with pytest.raises(ConfigError, match=words):
            DataParallelConfig(**settings)


def test_a_report_tells_of_the_worst_rank_and_of_what_was_hidden() -> None:
    ranks = [
        RankTime(samples=50, steps=10, seconds=10.0, stall_s=0.0, load_s=5.0),
        RankTime(samples=50, steps=10, seconds=10.0, stall_s=2.0, load_s=9.0),
    ]
    report = EpochReport.of_ranks(ranks, epoch=0, loss=1.0, validation={}, data_ranks=1)
    assert report.samples == 50
    assert report.worst_rank == 1
    assert report.stall_share == pytest.approx(0.1)
    assert ranks[1].step_s == pytest.approx(0.8)
    assert ranks[0].overlap == 1.0
    assert ranks[1].overlap == pytest.approx(7 / 8)
    assert "rank 1 20.0%" in str(report)
    assert EpochReport.from_dict(dataclasses.asdict(report)) == report
    assert overlap_efficiency(load_s=2, step_s=3, seconds=5) == 0.0
