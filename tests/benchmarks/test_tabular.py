from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from forebay.benchmarks import StreamWork, TabularWork, measure_tabular
from forebay.benchmarks.tabular import REFERENCE
from forebay.cli.app import app
from forebay.errors import ConfigError


def test_a_tiny_run_measures_every_side_and_the_memory() -> None:
    stream = StreamWork(nbytes=120_000_000, cache_nbytes=60_000_000, window=2)
    work = TabularWork(rows=4000, columns=3, files=2, group_rows=500, batch_size=256, opened_files=20, stream=stream)
    report = measure_tabular(work, rounds=2, progress=lambda _: None)
    assert report.sides[0].name == REFERENCE
    for side in report.sides:
        assert len(side.rows_per_s) == 2
        assert min(side.rows_per_s) > 0
    assert (report.hashes, report.later_converted, report.later_source_nbytes) == (1, 0, 0)
    assert report.open_s is not None
    assert report.streamed is not None
    assert report.streamed.nbytes > 50_000_000
    assert report.streamed.largest_nbytes >= report.streamed.late_nbytes > 0


def test_the_command_tells_it_as_json_and_as_a_table() -> None:
    tiny = ["--rows", "2000", "--columns", "2", "--files", "1", "--group-rows", "500", "--rounds", "1"]
    result = CliRunner().invoke(app, ["bench", "tabular", *tiny, "--open-files", "0", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["hashes"], told["open_s"], told["streamed"]) == (1, None, None)
    result = CliRunner().invoke(app, ["bench", "tabular", *tiny, "--open-files", "5"])
    assert result.exit_code == 0, result.output
    assert REFERENCE in result.stdout


def test_work_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError):
        TabularWork(rows=1, files=2)
