"""How a run ends early: an error, a kill, a loss that is no number, Ctrl-C. All ranks end, and the cause is told."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.trainers.jobs import make_loader, make_trainer, told
from tests.trainers.launch import JOBS, command, environment, launch, read_result

STEP = 13  # of 36; the newest checkpoint then is that of step 12


@pytest.fixture(scope="module")
def undisturbed(points: Path) -> list[float]:
    losses: list[float] = told(make_trainer(str(points)).fit())["losses"]
    return losses


def assert_goes_on(points: Path, folder: Path, undisturbed: list[float], *, ranks: int, stage_ranks: int = 0) -> None:
    done = launch(ranks, "resumed", points, folder, stage_ranks)
    assert done.returncode == 0, done.stderr
    resumed = read_result(folder / "resumed")
    assert resumed["first_step"] > 0
    assert resumed["losses"] == pytest.approx(undisturbed[resumed["first_step"] :], rel=2e-4)


def test_an_exception_on_one_rank_is_told_on_all_and_pipelines_go_on_with_the_run(
    points: Path, tmp_path: Path, undisturbed: list[float]
) -> None:
    done = launch(2, "faulty", points, tmp_path, "raise", 1, STEP)
    assert done.returncode != 0
    assert read_result(tmp_path / "raise", 1)["error"] == "ValueError: the dog ate it"
    other = read_result(tmp_path / "raise", 0)["error"]
    assert other == "RankFailedError: rank 1 failed first: ValueError: the dog ate it"
    assert_goes_on(points, tmp_path, undisturbed, ranks=2, stage_ranks=2)


def test_a_killed_rank_ends_all_and_one_rank_goes_on_alone(
    points: Path, tmp_path: Path, undisturbed: list[float]
) -> None:
    done = launch(2, "faulty", points, tmp_path, "kill", 1, STEP)
    assert done.returncode != 0
    assert "Signal 9 (SIGKILL)" in done.stderr.partition("Root Cause")[2]
    assert_goes_on(points, tmp_path, undisturbed, ranks=1)


def test_a_loss_that_is_no_number_stops_with_the_samples_of_its_batch(points: Path, tmp_path: Path) -> None:
    done = launch(2, "faulty", points, tmp_path, "nan", 1, 4)
    assert done.returncode != 0
    failed = read_result(tmp_path / "nan", 1)
    assert failed["error"].startswith("LossError: the loss of step 4 is nan on rank 1, of the samples")
    with make_loader(str(points)) as loader:
        batches = [batch["__index__"].tolist() for batch in loader]
    assert failed["samples"] == batches[4][4:]
    assert "LossError" in read_result(tmp_path / "nan", 0)["error"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_saves_the_step_at_hand_and_leaves_nothing_behind(
    points: Path, tmp_path: Path, undisturbed: list[float], ranks: int
) -> None:
    os.mkfifo(tmp_path / "here")
    with subprocess.Popen(
        command(ranks, JOBS, "faulty", points, tmp_path, "wait", 0, STEP),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        assert (tmp_path / "here").read_text() == "now"
        os.killpg(job.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, errors = job.communicate(timeout=120)
    assert job.returncode != 0, errors
    for rank in range(ranks):
        ended = read_result(tmp_path / "wait", rank)
        assert ended["error"] == "KeyboardInterrupt: ", errors
        with pytest.raises(ProcessLookupError):
            os.kill(ended["pid"], 0)
    saved = max((tmp_path / "run").iterdir()).name
    assert saved in ("step-0000000014", "step-0000000015")  # ranks hear of it one step later
    assert_goes_on(points, tmp_path, undisturbed, ranks=ranks)
