"""The comparison of the drop-in loader runs, tiny: equal batches, both sides in every row, memory of live workers."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from forebay.benchmarks import DropinWork, compare_dropin
from forebay.benchmarks.dropin import same_batch
from forebay.benchmarks.dropin_memory import STRINGS, workers_pss_mb
from forebay.benchmarks.dropin_samples import FolderImages, ReadySamples, Strings
from forebay.cli.app import app
from forebay.errors import ConfigError

TINY = DropinWork(batch_size=4, batches=3, size=16, images=16, strings=2500)


def test_every_row_has_equal_batches_and_both_sides(photographs: Path) -> None:
    told: list[str] = []
    report = compare_dropin(photographs, TINY, rounds=2, progress=told.append)
    assert [row.batches_compared for row in report.rows] == [3, 3, 3, 3, 4, 24, 24]
    assert [row.asked for row in report.rows] == [2, 2, 2, 2, 1.05, 1.2, 1.2]
    for row in report.rows:
        assert len(row.samples_per_s) == len(row.torch_samples_per_s) == 2
        assert min(*row.samples_per_s, *row.torch_samples_per_s) > 0
    assert [row.name for row in report.memory] == list(STRINGS)
    assert all(len(row.mb) == 2 and min(*row.mb, *row.torch_mb) > 1 for row in report.memory)
    assert {"comparing batches: image files, Pillow and numpy", "image files, Pillow and numpy: torch"} <= set(told)
    values = json.loads(json.dumps(report.to_dict()))
    assert set(values["rows"][0]["ratio"]) == set(values["memory"][0]["ratio"]) == {"median", "smallest", "largest"}


def test_the_command_prints_tables_or_json(photographs: Path) -> None:
    options = ["--rounds=1", "--batch-size=4", "--batches=2", "--size=16", "--images=8", "--strings=2000"]
    told = CliRunner().invoke(app, ["bench", "dropin", str(photographs), *options], catch_exceptions=False)
    text = " ".join(told.stdout.split())
    for word in ("times torch", "Pillow", "of torch's", "pyarrow", "≥ 1.05 ×", "2 worker processes"):
        assert word in text
    told = CliRunner().invoke(app, ["bench", "dropin", str(photographs), *options, "--json"], catch_exceptions=False)
    assert len(json.loads(told.stdout)["rows"]) == 7


def test_what_cannot_be_measured_is_refused(photographs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rounds=0"):
        compare_dropin(photographs, TINY, rounds=0)
    with pytest.raises(ConfigError, match="workers=0"):
        DropinWork(workers=0)
    with pytest.raises(ConfigError, match="no image"):
        compare_dropin(tmp_path, dataclasses.replace(TINY, strings=1), rounds=1)


def test_a_batch_too_large_for_shared_memory_is_refused_before_workers_die_of_it(photographs: Path) -> None:
    with pytest.raises(ConfigError, match="--shm-size"):
        compare_dropin(photographs, dataclasses.replace(TINY, size=1 << 20), rounds=1)


def test_batches_are_the_same_only_to_the_last_bit() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    assert same_batch([tensor, ["a", 1]], [tensor.clone(), ["a", 1]])
    others = [tensor + 1e-6, tensor.double(), tensor.T.contiguous().T, tensor[:1], tensor.numpy()]
    assert not any(same_batch(tensor, other) for other in others)
    assert not same_batch([tensor], (tensor,))
    assert not same_batch(["a"], ["a", "b"])


def test_ready_samples_are_given_again_and_not_copied() -> None:
    arrays = [np.zeros(3), np.ones(3)]
    samples = ReadySamples(arrays, 5)
    assert len(samples) == 5
    assert samples[3] is arrays[1]


def test_a_file_becomes_normalised_floats_with_its_label(photographs: Path) -> None:
    values, label = FolderImages([(str(next(photographs.rglob("0.jpg"))), 7)], 20)[0]
    assert (values.shape, label) == ((3, 20, 20), 7)
    assert values.dtype == np.float32
    assert values.flags.c_contiguous
    assert -3 < values.min() < values.max() < 3


@pytest.mark.parametrize("form", STRINGS)
def test_strings_are_the_same_in_every_form(form: str) -> None:
    samples = Strings(STRINGS[form](11))
    assert len(samples) == 11
    assert type(samples[10]) is str
    assert samples[10] == "train/some/folder/of/images/000000010.jpg"


def test_the_memory_of_processes_is_added_up() -> None:
    once = workers_pss_mb([os.getpid()])
    assert once > 1
    assert workers_pss_mb([os.getpid()] * 2) > 1.5 * once
