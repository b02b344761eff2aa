"""Checkpoints: whole or not at all, the last two kept, a torn one passed over."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from forebay.errors import ConfigError, SourceError
from forebay.trainers import CheckpointConfig
from forebay.trainers.checkpoint import Checkpoints, random_state, restore_random_state

CPU = torch.device("cpu")


def state_of(step: int) -> dict[str, object]:
    return {"model": {"weight": torch.full((50, 50), float(step))}, "step": step, "names": ["a", None, (1, 2.5)]}


def make_checkpoints(folder: Path, keep: int = 2) -> Checkpoints:
    return Checkpoints(CheckpointConfig(path=folder, keep=keep))


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    checkpoints = make_checkpoints(tmp_path / "run")
    assert checkpoints.load() is None
    checkpoints.save(7, state_of(7))
    found = checkpoints.load()
    assert found is not None
    step, state = found
    assert step == 7
    assert torch.equal(state["model"]["weight"], torch.full((50, 50), 7.0))
    assert state["names"] == ["a", None, (1, 2.5)]


def test_the_last_ones_are_kept_and_nothing_else(tmp_path: Path) -> None:
    checkpoints = make_checkpoints(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    for step in (1, 9, 10, 100):
        checkpoints.save(step, state_of(step))
    assert [path.name[:15] for path in checkpoints.paths()] == ["step-0000000010", "step-0000000100"]
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(os.listdir(tmp_path)) == 3


@pytest.mark.parametrize("damage", ["cut short", "one flipped byte", "empty"])
def test_a_torn_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = make_checkpoints(tmp_path)
    checkpoints.save(3, state_of(3))
    newest = checkpoints.save(6, state_of(6))
    data = bytearray(newest.read_bytes())
    if damage == "one flipped byte":
        data[len(data) // 2] ^= 1  # in the middle of a tensor, where torch does not look
    newest.write_bytes(data if damage == "one flipped byte" else data[: len(data) // 2 * (damage == "cut short")])
    with caplog.at_level(logging.WARNING):
        found = checkpoints.load()
    assert found is not None
    assert found[0] == 3
    assert newest.name in caplog.text
    # Going on, it is replaced by the step of the run that lives.
    checkpoints.save(4, state_of(4))
    assert [path.name[:15] for path in checkpoints.paths()] == ["step-0000000003", "step-0000000004"]


def test_when_none_is_whole_it_says_so_instead_of_beginning_anew(tmp_path: Path) -> None:
    checkpoints = make_checkpoints(tmp_path)
    checkpoints.save(3, state_of(3)).write_bytes(b"")
    with pytest.raises(SourceError, match="none of the 1 checkpoints"):
        checkpoints.load()


def test_what_a_killed_writer_leaves_does_no_harm(tmp_path: Path) -> None:
    checkpoints = make_checkpoints(tmp_path)
    checkpoints.save(3, state_of(3))
    (tmp_path / "step-0000000006.pt.tmp").write_bytes(b"half")
    found = checkpoints.load()
    assert found is not None
    assert found[0] == 3
    checkpoints.save(6, state_of(6))
    assert not list(tmp_path.glob("*.tmp"))


def test_a_full_disk_leaves_the_former_checkpoint_and_says_what_to_do(tmp_path: Path) -> None:
    checkpoints = make_checkpoints(tmp_path)
    checkpoints.save(3, state_of(3))
    (tmp_path / "step-0000000006.pt.tmp").symlink_to("/dev/full")
    with pytest.raises(SourceError, match="make room"):
        checkpoints.save(6, state_of(6))
    assert [path.name[:15] for path in checkpoints.paths()] == ["step-0000000003"]


def test_a_value_that_could_not_be_read_back_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither tensor nor plain"):
        make_checkpoints(tmp_path).save(1, {"path": tmp_path})
    assert os.listdir(tmp_path) == []


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every_steps=0"):
        CheckpointConfig(path=tmp_path, every_steps=0)
    with pytest.raises(ConfigError, match="keep=0"):
        CheckpointConfig(path=tmp_path, keep=0)


def draw() -> tuple[float, float, float, float]:
    return random.random(), random.gauss(0, 1), float(np.random.standard_normal()), torch.rand(()).item()


def test_generators_go_on_where_they_were_saved_also_by_way_of_a_file(tmp_path: Path) -> None:
    draw()
    make_checkpoints(tmp_path).save(1, {"random": random_state(CPU)})
    expected = [draw() for _ in range(3)]
    found = make_checkpoints(tmp_path).load()
    assert found is not None
    restore_random_state(found[1]["random"], CPU)
    assert [draw() for _ in range(3)] == expected
