"""Checkpoints: whole or not at all, written beside training, the last two kept, a torn one passed over."""

from __future__ import annotations

import logging
import os
import random
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from forebay.errors import ConfigError, SourceError
from forebay.trainers import CheckpointConfig
from forebay.trainers.checkpoint import Checkpoints
from forebay.trainers.random_state import random_state, restore_random_state
from forebay.trainers.ranks import joined_ranks

CPU = torch.device("cpu")


def state_of(step: int) -> dict[str, Any]:
    return {"model": {"weight": torch.full((50, 50), float(step))}, "names": SimpleNamespace(all=["a", None, (1, 2.5)])}


@contextmanager
def opened(folder: Path, keep: int = 2) -> Iterator[Checkpoints]:
    with joined_ranks(CPU):
        checkpoints = Checkpoints(CheckpointConfig(path=folder, keep=keep))
        try:
            yield checkpoints
        finally:
            checkpoints.close()


def save(folder: Path, *steps: int) -> None:
    with opened(folder) as checkpoints:
        for step in steps:
            checkpoints.save(step, state_of(step))
        checkpoints.finish()


def newest(folder: Path) -> int | None:
    with opened(folder) as checkpoints:
        return checkpoints.begin()


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    assert newest(tmp_path / "run") is None
    save(tmp_path / "run", 7)
    with opened(tmp_path / "run") as checkpoints:
        assert checkpoints.begin() == 7
        assert checkpoints.keys(7) == {"model.weight", "names"}
        state = state_of(0)
        checkpoints.load(7, state)
    assert torch.equal(state["model"]["weight"], torch.full((50, 50), 7.0))
    assert state["names"].all == ["a", None, (1, 2.5)]


def test_training_may_go_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    weight = torch.ones(1000, 1000)
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, {"weight": weight})
        weight.zero_()
        checkpoints.finish()
        state = {"weight": weight}
        checkpoints.load(1, state)
    assert torch.equal(state["weight"], torch.ones(1000, 1000))


def test_the_last_ones_are_kept_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    save(tmp_path, 1, 9, 10, 100)
    assert names(tmp_path) == ["notes.txt", "step-0000000010", "step-0000000100"]


@pytest.mark.parametrize("damage", ["cut short", "one flipped byte", "a file is gone", "never finished"])
def test_a_torn_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 3, 6)
    torn = tmp_path / "step-0000000006"
    data = bytearray((torn / "__0_0.distcp").read_bytes())
    data[len(data) // 2] ^= 1  # in the middle of a tensor, where torch does not look
    if damage == "one flipped byte":
        (torn / "__0_0.distcp").write_bytes(data)
    elif damage == "cut short":
        (torn / "__0_0.distcp").write_bytes(data[:-9])
    else:
        (torn / ("complete.json" if damage == "never finished" else ".metadata")).unlink()
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path) == 3
    assert torn.name in caplog.text
    save(tmp_path, 4)
    assert names(tmp_path) == ["step-0000000003", "step-0000000004"]


def test_when_none_is_whole_it_says_so_instead_of_beginning_anew(tmp_path: Path) -> None:
    save(tmp_path, 3)
    (tmp_path / "step-0000000003" / ".metadata").write_bytes(b"")
    with pytest.raises(SourceError, match="none of the 1 checkpoints"):
        newest(tmp_path)
    assert names(tmp_path) == ["step-0000000003"]


def test_what_a_killed_writer_leaves_does_no_harm(tmp_path: Path) -> None:
    save(tmp_path, 3)
    left = tmp_path / "step-0000000006.tmp"
    left.mkdir()
    (left / "__7_0.distcp").write_bytes(b"half")
    assert newest(tmp_path) == 3
    assert names(tmp_path) == ["step-0000000003"]


def test_a_full_disk_leaves_the_former_checkpoint_and_says_what_to_do(tmp_path: Path) -> None:
    save(tmp_path, 3)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # as a full disk: no file grows beyond
    try:
        with opened(tmp_path) as checkpoints:
            checkpoints.save(6, state_of(6))
            with pytest.raises(SourceError, match="make room"):
                checkpoints.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)
    assert newest(tmp_path) == 3


def test_a_checkpoint_of_other_shapes_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 3)
    with opened(tmp_path) as checkpoints, pytest.raises(ConfigError, match="does not fit"):
        checkpoints.load(3, {"model": {"weight": torch.zeros(2, 50)}})


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every_steps=0"):
        CheckpointConfig(path=tmp_path, every_steps=0)
    with pytest.raises(ConfigError, match="keep=0"):
        CheckpointConfig(path=tmp_path, keep=0)


def draw() -> tuple[float, float, float, float]:
    return random.random(), random.gauss(0, 1), float(np.random.standard_normal()), torch.rand(()).item()


def test_generators_go_on_where_they_were_saved_also_by_way_of_a_file(tmp_path: Path) -> None:
    draw()
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, {"random": SimpleNamespace(**random_state(CPU))})
        expected = [draw() for _ in range(3)]
        checkpoints.finish()
        state = {"random": SimpleNamespace()}
        checkpoints.load(1, state)
    restore_random_state(vars(state["random"]), CPU)
    assert [draw() for _ in range(3)] == expected
