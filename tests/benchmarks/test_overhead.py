"""The measurements of what the loader itself costs run, tiny, and compare what they say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from forebay.benchmarks import LoaderWork, measure_overhead
from forebay.benchmarks.busy_loop import BusyLoop, SlowSamples
from forebay.errors import ConfigError
from forebay.sharding import can_transcode

WORK = LoaderWork(size=24, batch_size=8, images=24)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_row_stands_beside_its_best(photographs: Path, threads: int) -> None:
    report = measure_overhead(photographs, WORK, threads=threads, rounds=2)
    counts = sorted({1, threads})
    forms = ["original", "addressable"] if can_transcode() else ["original"]
    assert [row.name for row in report.rows] == [
        *(f"beside a busy training loop, {n} decode thread{'s' if n > 1 else ''}" for n in counts),
        "one sample in ten costs ten times the others",
        *(f"the whole loader on {form} images" for form in forms),
    ]
    for row in report.rows:
        assert len(row.images_per_s) == len(row.best_images_per_s) == 2
        assert min(*row.images_per_s, *row.best_images_per_s) > 0
    assert len(report.busy_share) == len(counts)
    assert report.same_batches
    assert len(report.first_batch_s) == 3  # the first epoch, too
    values = json.loads(json.dumps(report.to_dict()))
    assert set(values["rows"][0]["ratio"]) == {"median", "smallest", "largest"}


def test_settings_that_cannot_be_measured_are_refused(photographs: Path) -> None:
    with pytest.raises(ConfigError, match="rounds=0"):
        measure_overhead(photographs, WORK, rounds=0)
    with pytest.raises(ConfigError, match="normalize=True"):
        measure_overhead(photographs, LoaderWork(normalize=True))


def test_a_busy_loop_ends_with_its_block_and_tells_its_share() -> None:
    with BusyLoop() as loop:
        np.sort(np.random.default_rng(0).random(300_000))
    assert 0 <= loop.share < 1
    assert BusyLoop().share == 0


def test_slow_samples_are_a_share_chosen_by_the_samples_own_numbers() -> None:
    pixels = torch.zeros(3)
    always, never = SlowSamples(share=1, sleep_s=0.001), SlowSamples(share=0, sleep_s=60)
    for transform in (always, never):
        assert transform(pixels, np.random.default_rng(0)) is pixels
    assert always.take_slept_s() >= 0.001
    assert always.take_slept_s() == never.take_slept_s() == 0
