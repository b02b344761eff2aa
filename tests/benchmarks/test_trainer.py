"""The trainer's benchmark, run small: every situation is measured, and its figures fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.benchmarks import LoaderWork, measure_trainer
from forebay.errors import ConfigError


def test_every_situation_is_measured(data_dir: Path) -> None:
    work = LoaderWork(size=32, batch_size=4, images=24)
    report = measure_trainer(data_dir / "photos" / "train" / "hat", work, rounds=1, steps=20)
    assert report.batches == 6
    assert len(report.rows) == 5
    for row in report.rows:
        assert len(row.overlap) == 1
        assert row.overlap[0] <= 1
        assert 0 <= row.stall_share[0] <= 1
    values = report.to_dict()
    assert values["rows"][0]["median_overlap"] == report.rows[0].overlap[0]
    assert len(report.overhead_us) == 1


def test_no_rounds_are_refused(data_dir: Path) -> None:
    with pytest.raises(ConfigError, match="rounds=0"):
        measure_trainer(data_dir / "photos", LoaderWork(), rounds=0)
