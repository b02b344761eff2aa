"""The comparison of several ranks with one: the same images, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forebay.benchmarks import LoaderWork, RankComparison, compare_ranks
from forebay.cli.app import app
from forebay.errors import ConfigError


def test_the_command_measures_both_sides_and_prints_a_table(photographs: Path) -> None:
    arguments = ["bench", "ranks", str(photographs), "--size=16", "--batch-size=8", "--images=16", "--rounds=1"]
    told = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert told.exit_code == 0, told.output
    text = " ".join(told.stdout.split())
    assert "2 over one" in text
    assert "16 images" in text


def test_the_ratio_is_of_rounds_and_told_as_json() -> None:
    comparison = RankComparison(
        source="a",
        work=LoaderWork(),
        ranks=2,
        threads=2,
        images=16,
        distinct_images=16,
        divided=(100, 200, 300),
        alone=(50, 200, 100),
    )
    told = json.loads(json.dumps(comparison.to_dict()))
    assert told["ratio"] == {"median": 2, "smallest": 1, "largest": 3}
    assert told["machine"]["cores"] >= 1


def test_threads_that_the_ranks_do_not_divide_are_refused(photographs: Path) -> None:
    for ranks, threads, rounds in ((2, 3, 1), (0, 2, 1), (2, 2, 0)):
        with pytest.raises(ConfigError, match="as many threads for each rank"):
            compare_ranks(photographs, LoaderWork(batch_size=8), ranks=ranks, threads=threads, rounds=rounds)
