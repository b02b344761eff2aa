"""However the model is divided, by copies, parts or stages, the losses are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainers.conftest import write_points
from tests.trainers.jobs import EPOCHS, SCHEDULES, loss_of, make_loader, make_model, make_trainer
from tests.trainers.jobs import told as told_of
from tests.trainers.launch import launch, read_result


@pytest.fixture(scope="module")
def by_hand(points: Path) -> list[float]:
    """The losses of a loop as one would write it, in one process."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    losses = []
    with make_loader(str(points)) as loader:
        for _ in range(EPOCHS):
            for batch in loader:
                loss = loss_of(model(batch["x"]), batch)
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    return losses


def check(told: dict[str, Any], by_hand: list[float]) -> None:
    assert len(by_hand) > 30
    expected = told["ddp"]["validation"]
    for name, run in told.items():
        assert run["losses"] == pytest.approx(by_hand, rel=2e-4), name
        assert run["validation"][-1] == pytest.approx(expected[-1], rel=2e-4), name
        assert run["samples"] == [70] * EPOCHS, name


@pytest.mark.parametrize(("ranks", "stage_ranks"), [(2, 2), (3, 3), (4, 2)])
def test_losses_are_those_of_one_process(
    points: Path, tmp_path: Path, by_hand: list[float], ranks: int, stage_ranks: int
) -> None:
    done = launch(ranks, "equal", points, tmp_path / "r", stage_ranks)
    assert done.returncode == 0, done.stderr
    for rank in range(ranks):
        told = read_result(tmp_path / "r", rank)
        check(told, by_hand)
        needed = {0: ["x"], stage_ranks - 1: ["label"]}.get(rank % stage_ranks, [])
        for schedule in SCHEDULES:
            assert told[schedule]["outputs"] == needed, (schedule, rank)
            assert told[schedule]["unread_nbytes"] > 0


def test_ranks_without_samples_of_their_own_end_with_the_others(tmp_path: Path) -> None:
    for rows, name in ((1, "one"), (2, "two")):
        for part in ("train", "validation"):
            write_points(tmp_path / name / part, rows, 1)
    done = launch(3, "few", tmp_path, tmp_path / "r")
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        told = read_result(tmp_path / "r", rank)
        for rows, name in ((1, "one"), (2, "two")):
            alone = alone_on(tmp_path / name)
            for how in ("ddp", "fsdp2", "gpipe"):
                assert told[f"{name} {how}"]["losses"] == pytest.approx(alone["losses"], rel=1e-4), (how, rows)
                assert told[f"{name} {how}"]["validation"][-1] == pytest.approx(alone["validation"][-1], rel=1e-4)


def alone_on(points: Path) -> dict[str, Any]:
    values: dict[str, Any] = told_of(make_trainer(str(points)).fit())
    return values


def test_gradients_are_sent_in_half_where_the_backend_can(points: Path, tmp_path: Path, by_hand: list[float]) -> None:
    done = launch(2, "hooks", points, tmp_path / "r")
    assert done.returncode == 0, done.stderr
    told = read_result(tmp_path / "r", 1)
    assert told["losses"] == pytest.approx(by_hand, abs=0.1)
    assert "comm_hook='bf16' does not work on gloo" in told["error"]
    assert 'give "fp16"' in told["error"]
