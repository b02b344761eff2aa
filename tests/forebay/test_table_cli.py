"""`forebay stats` and `forebay vocab`: one pass over a table of several files, for people and for transforms."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from forebay.cli.stats import stats
from forebay.cli.vocab import vocab
from forebay.errors import ConfigError, ForebayError, SourceError
from forebay.loader import transforms as T

app = typer.Typer()
app.command()(stats)
app.command()(vocab)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, ForebayError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def table(tmp_path: Path) -> Path:
    folder = tmp_path / "table"
    folder.mkdir()
    for part in range(3):
        rows = np.arange(part * 100, part * 100 + 100)
        content = {
            "price": pa.array(rows, pa.float32()),
            "city": pa.array([f"city {n % 7}" if n % 10 else None for n in rows.tolist()]),
            "user": pa.array([{"age": n % 5} for n in rows.tolist()]),
            "tags": pa.array([[("k", n)] for n in rows.tolist()], pa.map_(pa.string(), pa.int64())),
        }
        pq.write_table(pa.table(content), folder / f"part-{part}.parquet", row_group_size=30)
    return folder


def test_stats_are_those_of_all_files_together(table: Path) -> None:
    report = json.loads(run("stats", table, "--json").output)
    price, city, age = report["columns"]
    assert report["rows"] == price["count"] == 300
    assert (price["min"], price["max"], price["mean"], price["quantiles"]["0.5"]) == (0, 299, 149.5, 149.5)
    assert price["std"] == pytest.approx(np.arange(300).std())
    assert (city["nulls"], city["distinct"], city["distinct_is_exact"], city["max"]) == (30, 7, True, "city 6")
    assert age["name"] == "user.age"
    assert list(report["left_out"]) == ["tags"]


def test_stats_are_written_for_transforms(table: Path, tmp_path: Path) -> None:
    run("stats", table, "--column", "price", "-o", tmp_path / "stats.json")
    assert T.Standardize.of(T.load_statistics(tmp_path / "stats.json")["price"]).mean == 149.5
    with pytest.raises(SourceError, match="cannot be written"):
        run("stats", table, "-o", tmp_path / "none" / "stats.json")


def test_the_table_of_stats_names_every_column(table: Path) -> None:
    output = run("stats", table).output
    assert all(name in output for name in ("price", "city", "user.age", "300", "30 null", "149.5"))
    assert "tags" in output


def test_stats_of_a_column_that_is_not_there_name_those_that_are(table: Path) -> None:
    with pytest.raises(ConfigError, match=r"'prize' is not in the table; it has city, price"):
        run("stats", table, "--column", "prize")


def test_a_vocabulary_is_counted_over_all_files(table: Path, tmp_path: Path) -> None:
    target = tmp_path / "city.json"
    report = json.loads(run("vocab", table, "--column", "city", "--max-size", "3", "-o", target, "--json").output)
    assert (report["values"], report["nulls"], report["distinct"], report["kept"]) == (270, 30, 7, 3)
    words = T.Vocabulary.load(target)
    cities = [f"city {n % 7}" for n in range(300) if n % 10]
    counts = {city: cities.count(city) for city in cities}
    assert words.values.to_pylist() == sorted(counts, key=lambda city: (-counts[city], city))[:3]
    assert words.counts == sorted(counts.values(), reverse=True)[:3]


def test_a_vocabulary_says_what_it_covers_and_when_counts_are_short(table: Path, tmp_path: Path) -> None:
    output = run("vocab", table, "--column", "user.age", "--min-count", "60", "-o", tmp_path / "age.arrow").output
    assert "5 values of 5 in 300 rows, 100.00% of all" in " ".join(output.split())
    assert len(T.Vocabulary.load(tmp_path / "age.arrow")) == 6
    output = run("vocab", table, "--column", "city", "--max-values", "4", "-o", tmp_path / "few.json").output
    assert "counts are too small by up to" in " ".join(output.split())


@pytest.mark.parametrize(
    ("column", "target", "reason"),
    [
        ("city", "city.txt", r"\.json or \.arrow"),
        ("price", "p.json", r"T\.Bucketize"),
        ("zz", "z.json", "not in the table"),
    ],
)
def test_a_vocabulary_that_cannot_be_is_refused(
    table: Path, tmp_path: Path, column: str, target: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        run("vocab", table, "--column", column, "-o", tmp_path / target)
    assert not (tmp_path / target).exists()


def test_a_table_of_nothing_that_can_be_counted_is_told_with_its_rows(tmp_path: Path) -> None:
    tags = pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"tags": tags}), tmp_path / "tags.parquet")
    report = json.loads(run("stats", tmp_path / "tags.parquet", "--json").output)
    assert (report["rows"], report["columns"], list(report["left_out"])) == (2, [], ["tags"])


def test_a_damaged_file_is_named_and_nothing_is_written(table: Path, tmp_path: Path) -> None:
    damaged = table / "part-1.parquet"
    content = bytearray(damaged.read_bytes())
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[4:footer] = bytes(footer - 4)
    damaged.write_bytes(content)
    with pytest.raises(SourceError, match=r"part-1\.parquet"):
        run("vocab", table, "--column", "city", "-o", tmp_path / "city.json")
    with pytest.raises(SourceError, match=r"part-1\.parquet"):
        run("stats", table, "-o", tmp_path / "stats.json")
    assert not list(tmp_path.glob("*.json"))
