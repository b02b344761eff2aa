"""The measurement of the decoded cache, tiny: sides take turns, and later epochs come from stored pixels alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forebay.benchmarks import LoaderWork, measure_decoded
from forebay.cli.app import app
from forebay.errors import ConfigError
from forebay.loader import why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason="forebay was installed without its native parts")

SIDES = ["stored pixels", "filling the store", "without a store", "torch, from JPEG", "the bare resize"]


@pytest.mark.parametrize("shorter", [32, None])
def test_sides_take_turns_and_stored_pixels_are_all_hits(photographs: Path, shorter: int | None) -> None:
    told: list[str] = []
    work = LoaderWork(size=24, batch_size=8, images=20)
    report = measure_decoded(photographs, work, shorter=shorter, workers=0, rounds=2, progress=told.append)
    assert [side.name for side in report.sides] == SIDES
    assert told[:5] == SIDES
    assert report.counts["hits"] == 3 * 20
    assert report.counts["misses"] == 0
    values = json.loads(json.dumps(report.to_dict()))
    assert values["ratios"]["stored pixels over torch, from JPEG"]["median"] > 0


def test_the_command_prints_a_table(photographs: Path) -> None:
    options = ["--size", "24", "--batch-size", "8", "--images", "16", "--workers", "0", "--rounds", "1"]
    result = CliRunner().invoke(app, ["bench", "decoded", str(photographs), "--shorter", "32", *options])
    assert result.exit_code == 0, result.output
    assert "filling the store over without a store" in result.stdout


def test_rounds_are_counted_from_one(photographs: Path) -> None:
    with pytest.raises(ConfigError, match="rounds=0"):
        measure_decoded(photographs, LoaderWork(size=24, batch_size=8), rounds=0)
