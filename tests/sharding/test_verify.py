from __future__ import annotations

import os
from pathlib import Path

from forebay.sharding import Problem, open_dataset, verify_dataset


def test_a_whole_data_set_has_no_problems_and_progress_adds_up(pristine: Path) -> None:
    read: list[int] = []
    data = open_dataset(pristine)
    assert verify_dataset(data, progress=read.append) == []
    assert sum(read) == data.shard_nbytes.sum()


def test_verify_goes_on_after_each_problem_and_names_the_samples(stored: Path) -> None:
    data = open_dataset(stored)
    with data.open_shard(1) as reader:
        place = int(reader._footer.placed["image"].offsets[2])
    with open(stored / "00000001.arrow", "r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 0xFF]))
    os.truncate(stored / "00000000.arrow", 100)
    (stored / "00000002.arrow").unlink()
    problems = verify_dataset(data)
    found = [(problem.shard, problem.row, problem.column) for problem in problems]
    assert found == [
        ("00000000.arrow", None, None),
        ("00000001.arrow", None, None),
        ("00000001.arrow", 2, "image"),
        ("00000002.arrow", None, None),
    ]
    assert all(isinstance(problem, Problem) and problem.reason for problem in problems)


def test_damage_between_the_samples_is_found_too(stored: Path) -> None:
    """The file's magic belongs to no sample."""
    with open(stored / "00000002.arrow", "r+b") as file:
        file.write(b"arrow1")
    (problem,) = verify_dataset(open_dataset(stored))
    assert (problem.shard, problem.row) == ("00000002.arrow", None)


def test_a_damaged_batch_of_scalars_is_told_once_with_its_first_row(stored: Path) -> None:
    data = open_dataset(stored)
    with data.open_shard(0) as reader:
        start = int(reader._footer.batched["label"].starts[1])
        first = int(reader._footer.batch_rows[0])
    with open(stored / "00000000.arrow", "r+b") as file:
        file.seek(start)
        file.write(b"\x77")
    problems = [problem for problem in verify_dataset(data) if problem.column is not None]
    assert [(problem.row, problem.column) for problem in problems] == [(first, "label")]
