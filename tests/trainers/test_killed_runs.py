"""Runs by FSDP2 and pipelined ones that are killed: what is started again gives the losses of the undisturbed run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.trainers.launch import launch, read_result


@pytest.mark.parametrize(
    ("kind", "call", "step"),
    [("fsdp2", 17, 17), ("1f1b", 4 * 8 + 2, 8)],  # four micro-batches a step, each with a loss
)
def test_a_killed_run_goes_on_to_the_bit(kind: str, call: int, step: int, points: Path, tmp_path: Path) -> None:
    whole, run, alone = tmp_path / "whole", tmp_path / "run", tmp_path / "alone"
    whole.mkdir()
    run.mkdir()
    done = launch(2, "killed", points, whole, kind, tmp_path / "a")
    assert done.returncode == 0, done.stderr
    killed = launch(2, "killed", points, run, kind, tmp_path / "b", call)
    assert killed.returncode != 0
    assert "SIGKILL" in killed.stderr
    assert not list(tmp_path.glob("b.*"))
    shutil.copytree(run, alone)
    again = launch(2, "killed", points, run, kind, tmp_path / "b")
    assert again.returncode == 0, again.stderr
    for rank in range(2):
        expected, repeated = read_result(tmp_path / "a", rank), read_result(tmp_path / "b", rank)
        assert step - 6 <= repeated["first_step"] <= step  # a checkpoint every 3 steps, the newest perhaps half written
        assert repeated["losses"] == expected["losses"][repeated["first_step"] :]
        assert repeated["validation"] == expected["validation"]
    if kind == "fsdp2":  # and on another number of ranks, to rounding
        again = launch(1, "killed", points, alone, kind, tmp_path / "c")
        assert again.returncode == 0, again.stderr
        expected, repeated = read_result(tmp_path / "a"), read_result(tmp_path / "c")
        assert repeated["losses"] == pytest.approx(expected["losses"][repeated["first_step"] :], rel=2e-4)
