"""Writing: the same bytes always, nothing half done, going on after any interruption."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import ClosedError, ConfigError, ManifestError, SchemaError, SourceError
from forebay.sharding import ShardWriter, open_dataset, verify_dataset

COLUMNS = {"image": "image", "label": "int64"}
CRASHER = Path(__file__).with_name("crash_at_every_call.py")


def sample(row: int, nbytes: int = 300) -> dict[str, Any]:
    return {"image": np.random.default_rng(row).bytes(nbytes), "label": row}


def open_writer(path: Path, *, resume: bool = False, shard_nbytes: int = 2_000) -> ShardWriter:
    return ShardWriter(path, COLUMNS, shard_nbytes=shard_nbytes, batch_nbytes=700, resume=resume)


def write_rows(writer: ShardWriter, first: int, last: int) -> None:
    for row in range(first, last):
        writer.write(sample(row))


def write(path: Path, rows: int = 20, *, resume: bool = False) -> Path:
    with open_writer(path, resume=resume) as writer:
        write_rows(writer, writer.rows_done, rows)
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_the_same_samples_give_the_same_bytes_in_any_folder(tmp_path: Path) -> None:
    assert contents(write(tmp_path / "a")) == contents(write(tmp_path / "a much longer name"))


def test_bytes_and_fingerprint_are_pinned(pristine: Path) -> None:
    """Users' checkpoints name fingerprints: a change here is a new version of the format."""
    assert open_dataset(pristine).fingerprint == PINNED_FINGERPRINT


PINNED_FINGERPRINT = "2c10e4cb5b9cb90bc5fa2a644b4c0ccb"


def test_the_fingerprint_follows_from_content_alone(tmp_path: Path) -> None:
    whole = open_dataset(write(tmp_path / "a"))
    with open_writer(tmp_path / "b") as writer:
        for row in range(20):
            writer.write(sample(row if row != 13 else 14))
    assert whole.fingerprint != open_dataset(tmp_path / "b").fingerprint


def test_shards_are_near_their_target_and_batches_too(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a", COLUMNS, shard_nbytes=1 << 20, batch_nbytes=1 << 16) as writer:
        for row in range(60):
            writer.write(sample(row, 50_000))
    data = open_dataset(tmp_path / "a")
    assert data.shard_rows.tolist() == [20, 20, 20]
    assert (data.shard_nbytes <= (1 << 20) + 20_000).all()
    with data.open_shard(0) as reader:
        assert reader._footer.batch_rows.tolist() == [1] * 20


def test_a_sample_larger_than_a_shard_has_a_shard_of_its_own(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a") as writer:
        for row, nbytes in enumerate((100, 50_000, 100)):
            writer.write(sample(row, nbytes))
    assert open_dataset(tmp_path / "a").shard_rows.tolist() == [1, 1, 1]


def test_a_data_set_without_samples_is_legal(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a"):
        pass
    data = open_dataset(tmp_path / "a")
    assert (data.rows, data.num_shards, verify_dataset(data)) == (0, 0, [])


def test_a_refused_sample_leaves_the_writer_as_it_was(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a") as writer:
        for row in range(20):
            with pytest.raises(SchemaError, match=f"row {row}, column 'label'"):
                writer.write({"image": b"x", "label": "three"})
            writer.write(sample(row))
    assert contents(tmp_path / "a") == contents(write(tmp_path / "b"))


def test_a_closed_writer_takes_nothing(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "a")
    writer.write(sample(0))
    writer.close()
    writer.close()
    writer.abort()
    with pytest.raises(ClosedError):
        writer.write(sample(1))
    assert open_dataset(tmp_path / "a").rows == 1


@pytest.mark.parametrize(("shard", "batch"), [(0, 0), (100, 0), (100, 101)])
def test_sizes_that_cannot_work_are_refused(shard: int, batch: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        ShardWriter(tmp_path / "a", COLUMNS, shard_nbytes=shard, batch_nbytes=batch)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("resume", [False, True])
def test_a_destination_that_is_not_empty_is_refused_and_untouched(resume: bool, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"not empty \(1 entries, such as 'thesis.tex'\)"):
        open_writer(tmp_path, resume=resume)
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}


@pytest.mark.parametrize("resume", [False, True])
def test_a_finished_data_set_is_never_written_to(resume: bool, tmp_path: Path) -> None:
    before = contents(write(tmp_path / "a"))
    with pytest.raises(ConfigError, match="already holds a finished data set"):
        open_writer(tmp_path / "a", resume=resume)
    assert contents(tmp_path / "a") == before


def test_a_destination_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot hold a data set: Not a directory"):
        open_writer(tmp_path / "file")
    with pytest.raises(SourceError, match="cannot be made"):
        open_writer(tmp_path / "file" / "below")


def stop_after(path: Path, rows: int, *, resume: bool = False) -> int:
    """A write that Ctrl-C ends after `rows` samples; how many are safe."""
    with suppress(KeyboardInterrupt), open_writer(path, resume=resume) as writer:
        write_rows(writer, writer.rows_done, rows)
        raise KeyboardInterrupt
    return writer.rows_done


@settings(deadline=None, max_examples=15)
@given(stops=st.lists(st.integers(0, 25), min_size=1, max_size=4))
def test_an_interrupted_write_goes_on_to_the_same_bytes(
    stops: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("stops")
    for stop in stops:
        stop_after(folder / "a", stop, resume=True)
    assert contents(write(folder / "a", 25, resume=True)) == contents(write(folder / "b", 25))


def test_an_exception_leaves_no_manifest_and_says_how_to_go_on(tmp_path: Path) -> None:
    safe = stop_after(tmp_path / "a", 18)
    assert 0 < safe < 18
    with pytest.raises(ManifestError, match=r"unfinished write of a data set.*--resume"):
        open_dataset(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"unfinished write; resume=True"):
        open_writer(tmp_path / "a")
    with open_writer(tmp_path / "a", resume=True) as writer:
        assert writer.rows_done == safe
        for row in range(safe, 20):
            writer.write(sample(row))
    assert contents(tmp_path / "a") == contents(write(tmp_path / "b"))


def test_an_exception_before_the_first_shard_leaves_nothing(tmp_path: Path) -> None:
    assert stop_after(tmp_path / "a", 1) == 0
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    stop_after(tmp_path / "b", 1)
    assert contents(tmp_path / "b") == {}


def test_going_on_with_other_columns_or_settings_is_refused(tmp_path: Path) -> None:
    stop_after(tmp_path / "a", 18)
    before = contents(tmp_path / "a")
    other = "began with other columns or settings"
    with pytest.raises(ConfigError, match=rf"{other}: settings.shard_nbytes was 2000, now it is 3000\. Give the same"):
        open_writer(tmp_path / "a", resume=True, shard_nbytes=3_000)
    with pytest.raises(ConfigError, match=rf'{other}: schema.columns.1.name was "label", now it is absent'):
        ShardWriter(tmp_path / "a", {"image": "image"}, shard_nbytes=2_000, batch_nbytes=700, resume=True)
    assert contents(tmp_path / "a") == before


def test_going_on_with_other_classes_tells_a_few_of_them(tmp_path: Path) -> None:
    def writer(classes: list[str]) -> ShardWriter:
        return ShardWriter(tmp_path / "a", {"label": "int64"}, classes={"label": classes}, shard_nbytes=8, resume=True)

    with suppress(KeyboardInterrupt), writer([f"class {number}" for number in range(1000)]) as begun:
        begun.write({"label": 1})
        begun.write({"label": 2})
        raise KeyboardInterrupt
    with pytest.raises(ConfigError) as caught:
        writer(["a new one", *(f"class {number}" for number in range(1000))])
    assert 'schema.columns.0.classes.0 was "class 0", now it is "a new one"' in str(caught.value)
    assert "998 more" in str(caught.value)
    assert len(str(caught.value)) < 600


def write_with(settings: dict[str, str] | None, path: Path, rows: int = 20, *, resume: bool = False) -> Path:
    with ShardWriter(path, COLUMNS, shard_nbytes=2_000, batch_nbytes=700, settings=settings, resume=resume) as writer:
        write_rows(writer, writer.rows_done, rows)
        if rows < 20:
            raise KeyboardInterrupt
    return path


def test_what_else_shaped_the_samples_is_kept_in_the_manifest_and_not_in_the_fingerprint(tmp_path: Path) -> None:
    ways = write_with({"quality": "90", "jpeg": "original"}, tmp_path / "a")
    assert list(open_dataset(ways).manifest.writer.items()) == [
        ("shard_nbytes", 2_000),
        ("batch_nbytes", 700),
        ("jpeg", "original"),
        ("quality", "90"),
    ]
    assert open_dataset(ways).fingerprint == open_dataset(write(tmp_path / "bare")).fingerprint
    assert contents(ways) == contents(write_with({"jpeg": "original", "quality": "90"}, tmp_path / "b"))
    assert contents(write_with({}, tmp_path / "c")) == contents(write(tmp_path / "d"))


@pytest.mark.parametrize(
    ("began", "now", "told"),
    [
        ({"jpeg": "original"}, {"jpeg": "addressable"}, 'settings.jpeg was "original", now it is "addressable"'),
        ({"jpeg": "original"}, None, 'settings.jpeg was "original", now it is absent'),
        (None, {"jpeg": "original"}, 'settings.jpeg was absent, now it is "original"'),
    ],
)
def test_a_write_goes_on_only_with_what_else_shaped_the_samples(
    began: dict[str, str] | None, now: dict[str, str] | None, told: str, tmp_path: Path
) -> None:
    with suppress(KeyboardInterrupt):
        write_with(began, tmp_path / "a", 12)
    before = contents(tmp_path / "a")
    with pytest.raises(ConfigError) as caught:
        write_with(now, tmp_path / "a", resume=True)
    assert told in str(caught.value)
    assert contents(tmp_path / "a") == before
    write_with(began, tmp_path / "a", resume=True)
    assert contents(tmp_path / "a") == contents(write_with(began, tmp_path / "b"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"shard_nbytes": "3"}, "shard_nbytes is an argument of ShardWriter"),
        ({"batch_nbytes": "3"}, "batch_nbytes is an argument of ShardWriter"),
        ({"quality": 90}, "give names and values as printable str"),
        ({"name": "\udc80"}, "give names and values as printable str"),
        ({"two\nlines": "x"}, "give names and values as printable str"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(settings: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        write_with(settings, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_two_writers_exclude_each_other(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a") as writer:
        writer.write(sample(0))
        with pytest.raises(ConfigError, match="another writer is at work"):
            open_writer(tmp_path / "a", resume=True)
    assert open_dataset(tmp_path / "a").rows == 1


def test_a_torn_last_line_of_the_journal_does_not_count(tmp_path: Path) -> None:
    safe = stop_after(tmp_path / "a", 18)
    journal = tmp_path / "a" / "unfinished.jsonl"
    whole = journal.read_bytes()
    line = whole.splitlines(keepends=True)[-1]
    for torn in (b"\0\0\0", b"{", line[:-1], line[:20], b"{}\n", b"\xff\n"):
        with open(journal, "ab") as file:
            file.write(torn)
        assert stop_after(tmp_path / "a", 0, resume=True) == safe
        assert journal.read_bytes() == whole
    assert contents(write(tmp_path / "a", resume=True)) == contents(write(tmp_path / "b"))


def test_a_journal_damaged_in_the_middle_is_an_error(tmp_path: Path) -> None:
    stop_after(tmp_path / "a", 18)
    journal = tmp_path / "a" / "unfinished.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"\xff" + lines[1], *lines[2:]]))
    with pytest.raises(ManifestError, match="damaged in line 2"):
        open_writer(tmp_path / "a", resume=True)


def test_a_shard_that_was_lost_is_written_again(tmp_path: Path) -> None:
    stop_after(tmp_path / "a", 20)
    os.truncate(tmp_path / "a" / "00000001.arrow", 10)
    (tmp_path / "a" / "00000002.arrow.tmp").write_bytes(b"half")
    (tmp_path / "a" / "notes.txt").write_bytes(b"not ours")
    with open_writer(tmp_path / "a", resume=True) as writer:
        first = writer.rows_done
        assert not (tmp_path / "a" / "00000002.arrow.tmp").exists()
        for row in range(first, 20):
            writer.write(sample(row))
    assert 0 < first < 10
    assert contents(tmp_path / "a") == contents(write(tmp_path / "b")) | {"notes.txt": b"not ours"}


def test_a_journal_whose_writer_finished_meanwhile_is_not_taken_over(tmp_path: Path) -> None:
    with open(tmp_path / "held", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        (tmp_path / "a").mkdir()
        os.link(tmp_path / "held", tmp_path / "a" / "unfinished.jsonl")
        with pytest.raises(ConfigError, match="another writer is at work"):
            open_writer(tmp_path / "a", resume=True)


@contextmanager
def file_size_limit(nbytes: int) -> Iterator[None]:
    """Writing beyond `nbytes` fails as on a file system that holds no larger file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_may_not_grow_stops_the_write_and_it_goes_on(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "a")
    write_rows(writer, 0, 10)
    with file_size_limit(1_000), pytest.raises(SourceError, match="no room to write"):
        write_rows(writer, 10, 20)
    with pytest.raises(ClosedError):
        writer.write(sample(20))
    assert contents(write(tmp_path / "a", resume=True)) == contents(write(tmp_path / "b"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    tried = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if tried.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_loses_nothing_and_says_what_to_do(small_disk: Path, tmp_path: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(40_000))
    with pytest.raises(SourceError) as caught:
        write(small_disk / "a", 30)
    safe = caught.value.rows_done
    assert "no room to write" in str(caught.value)
    assert "No space left on device" in str(caught.value)
    assert f"the first {safe} samples are safe" in str(caught.value)
    assert 0 < safe < 30
    assert not list(small_disk.glob("a/*.tmp"))
    with pytest.raises(SourceError, match="no room"):
        write(small_disk / "a", 30, resume=True)
    ballast.unlink()
    assert contents(write(small_disk / "a", 30, resume=True)) == contents(write(tmp_path / "b", 30))


@pytest.mark.parametrize("room", range(4_096, 40_000, 4_096))
def test_a_disk_full_at_any_moment_leaves_a_write_that_goes_on(room: int, small_disk: Path, tmp_path: Path) -> None:
    """The journal, the index and the manifest run out of room too."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(65_536 - room))
    try:
        write(small_disk / "a", 10)
    except SourceError:
        assert not (small_disk / "a" / "manifest.json").exists()
        ballast.unlink()
        write(small_disk / "a", 10, resume=True)
    assert contents(small_disk / "a") == contents(write(tmp_path / "b", 10))


def test_a_writer_killed_at_any_system_call_can_be_resumed(tmp_path: Path) -> None:
    """SIGKILL before, in the middle of and after each write, rename, fsync ...: see the script."""
    done = subprocess.run([sys.executable, str(CRASHER), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kills"] > 50
    assert report["unfinished"] > 40
    assert report["wrong"] == []
