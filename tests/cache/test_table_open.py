from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from forebay.cache import CacheConfig, TableNotes, count_rows, is_table, open_notes, open_table, table_open
from forebay.cache.table_places import find_files
from forebay.errors import ConfigError, SourceError
from forebay.sharding import MANIFEST_NAME, FileReader, facts_of


def write_tree(root: Path, files: int = 6, rows: int = 20) -> Path:
    for number in range(files):
        folder = root / f"day={number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        first = number * rows
        pq.write_table(
            pa.table({"a": list(range(first, first + rows))}), folder / f"{number}.parquet", row_group_size=8
        )
    return root


@pytest.fixture
def notes(tmp_path: Path) -> TableNotes:
    made = open_notes(CacheConfig(path=tmp_path / "cache", budget=1 << 24, min_free=0))
    assert made is not None
    return made


@pytest.fixture
def read_footers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose footers are read, as they are."""
    read: list[str] = []
    real = facts_of

    def noted(file, name, mtime_ns):  # type: ignore[no-untyped-def]
        read.append(name.partition(" of ")[0])
        return real(file, name, mtime_ns)

    monkeypatch.setattr(table_open, "facts_of", noted)
    return read


def test_footers_are_read_once_and_again_only_of_files_that_changed(
    tmp_path: Path, notes: TableNotes, read_footers: list[str]
) -> None:
    root = write_tree(tmp_path / "data")
    first = open_table(root, notes)
    assert sorted(read_footers) == sorted(first.facts.paths)
    read_footers.clear()
    again = open_table(root, notes)
    assert not read_footers
    assert again.schema == first.schema
    assert again.facts.checksums == first.facts.checksums
    pq.write_table(pa.table({"a": [1, 2, 3]}), root / "day=1" / "1.parquet")
    assert open_table(root, notes).facts.group_rows.sum() == first.facts.group_rows.sum() - 17
    assert read_footers == ["day=1/1.parquet"]


def test_a_damaged_note_is_dropped_and_made_again(tmp_path: Path, notes: TableNotes, read_footers: list[str]) -> None:
    root = write_tree(tmp_path / "data")
    open_table(root, notes)
    (note,) = (tmp_path / "cache" / "tables").iterdir()
    content = bytearray(note.read_bytes())
    content[len(content) // 2] ^= 1
    note.write_bytes(content)
    read_footers.clear()
    assert len(open_table(root, notes).facts) == 6
    assert len(read_footers) == 6


def test_counts_of_a_filter_are_kept(tmp_path: Path, notes: TableNotes, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_tree(tmp_path / "data")
    table = open_table(root, notes)
    expression = (pc.field("a") >= 15) & (pc.field("day") != 2)
    counts = count_rows(table, ["a"], expression, notes)
    everything = pq.read_table(root, partitioning="hive").filter(pc.field("a") >= 15)
    assert counts.sum() == sum(day != 2 for day in everything["day"].cast(pa.int64()).to_pylist())
    monkeypatch.setattr(table_open, "_count", None)
    assert count_rows(open_table(root, notes), ["a"], expression, notes).tolist() == counts.tolist()


def test_row_groups_without_a_match_are_not_read_to_be_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_table(write_tree(tmp_path / "data"), None)
    read: list[tuple[int, list[int]]] = []
    real = FileReader.pieces

    def noted(self, file, groups, columns, *, stream):  # type: ignore[no-untyped-def]
        read.append((file, list(groups)))
        return real(self, file, groups, columns, stream=stream)

    monkeypatch.setattr(FileReader, "pieces", noted)
    assert count_rows(table, ["a"], pc.field("a") == 43, None).sum() == 1
    assert read == [(table.facts.paths.index("day=2/2.parquet"), [0])]
    read.clear()
    assert count_rows(table, ["a"], (pc.field("a") >= 0) & (pc.field("day") == 7), None).sum() == 0
    assert not read


def test_the_footers_of_a_table_are_read_by_one_process_of_several(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "data", files=30)
    program = (
        "import sys; from pathlib import Path; import forebay.cache.table_open as t\n"
        "from forebay.cache import CacheConfig, open_notes, open_table\n"
        "read = []; real = t.facts_of\n"
        "t.facts_of = lambda *args: (read.append(1), real(*args))[1]\n"
        "notes = open_notes(CacheConfig(path=Path(sys.argv[1]), budget=1 << 24, min_free=0))\n"
        "print(len(read) if len(open_table(sys.argv[2], notes).facts) == 30 else -1, len(read))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "cache"), str(root)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    read = [int(process.communicate(timeout=120)[0].split()[1]) for process in running]
    assert sorted(read) == [0, 0, 30]


def test_places_of_a_table(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "data")
    everything = [file.path for file in find_files(root).files]
    assert everything == sorted(everything)
    assert [file.path for file in find_files(f"{root}/**/*.parquet").files] == everything
    assert [file.path for file in find_files(f"{root}/day=1/*").files] == ["1.parquet", "4.parquet"]
    assert [f.path for f in find_files([root / "day=1/4.parquet", root / "day=0/0.parquet"]).files] == [
        "day=0/0.parquet",
        "day=1/4.parquet",
    ]
    assert [file.path for file in find_files(root / "day=1/4.parquet").files] == ["4.parquet"]
    with pytest.raises(SourceError, match="no file of a table"):
        find_files(f"{root}/*.nothing")
    with pytest.raises(SourceError, match="there is no"):
        find_files(root / "nowhere")
    with pytest.raises(ConfigError, match="given twice"):
        find_files([root / "day=1/4.parquet"] * 2)
    with pytest.raises(ConfigError, match="empty list"):
        find_files([])


def test_what_is_a_table_is_seen_without_reading_it(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "data")
    assert is_table(root)
    assert is_table([root / "day=1/4.parquet"])
    assert is_table(f"{root}/*/*.parquet")
    assert is_table("s3://lake/table/part-0.parquet")
    assert not is_table("s3://lake/table")
    assert not is_table(tmp_path / "nowhere")
    (root / MANIFEST_NAME).touch()
    assert not is_table(root)


def test_many_small_files_are_opened_from_the_note_without_being_touched(
    tmp_path: Path, notes: TableNotes, read_footers: list[str]
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    pq.write_table(pa.table({"a": [1]}), root / "0.parquet")
    for number in range(1, 500):
        os.link(root / "0.parquet", root / f"{number}.parquet")
    open_table(root, notes)
    read_footers.clear()
    assert len(open_table(root, notes).facts) == 500
    assert not read_footers
