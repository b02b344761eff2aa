"""Opening: what holds opens fast, what does not is named. Manifest and index are believed in nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.errors import ForebayError, ManifestError, SourceError
from forebay.sharding import FolderSource, Schema, StoredDataset, open_dataset, verify_dataset
from forebay.sharding.index import fingerprint_of
from forebay.sharding.manifest import FileEntry, Manifest

INDEX = {
    "name": pa.string(),
    "rows": pa.int64(),
    "nbytes": pa.int64(),
    "footer_nbytes": pa.int64(),
    "footer_checksum": pa.uint64(),
    "checksum": pa.binary(16),
}
SCHEMA = Schema.from_spec({"image": "image"})


def index_bytes(columns: dict[str, Any], schema: dict[str, pa.DataType] = INDEX, batches: int = 1) -> bytes:
    arrow_schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in schema.items()])
    arrays = [
        columns[name] if isinstance(columns[name], pa.Array) else pa.array(columns[name], kind)
        for name, kind in schema.items()
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, arrow_schema) as writer:
        for _ in range(batches):
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=arrow_schema))
    return bytes(sink.getvalue())


def store(folder: Path, index: bytes, **changes: Any) -> Path:
    """A data set of this index whose manifest is right, apart from `changes`; checksums hold."""
    folder.mkdir(exist_ok=True)
    (folder / "index.arrow").write_bytes(index)
    batch = pa.ipc.open_file(pa.py_buffer(index)).get_batch(0)
    rows = batch.column("rows").to_numpy()
    checksums = np.frombuffer(batch.column("checksum").buffers()[1], np.uint8, count=16 * len(rows)).reshape(-1, 16)
    manifest = Manifest(
        schema=SCHEMA,
        fingerprint=fingerprint_of(SCHEMA, rows, checksums),
        rows=int(rows.sum()),
        shards=len(rows),
        nbytes=int(batch.column("nbytes").to_numpy().sum()),
        parent=None,
        writer={},
        index=FileEntry(name="index.arrow", nbytes=len(index), checksum=xxhash.xxh3_128_hexdigest(index)),
    )
    (folder / "manifest.json").write_bytes(manifest.encode())
    edit_manifest(folder, lambda content: content | changes)
    return folder


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest and give it the checksum that fits."""
    content = json.loads((folder / "manifest.json").read_bytes())
    del content["checksum"]
    content = edit(content)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    content["checksum"] = xxhash.xxh3_128_hexdigest(canonical)
    (folder / "manifest.json").write_text(json.dumps(content))


def two_shards(**changes: Any) -> dict[str, Any]:
    return {
        "name": ["a.arrow", "b.arrow"],
        "rows": [3, 0],
        "nbytes": [100, 100],
        "footer_nbytes": [10, 10],
        "footer_checksum": [1, 2],
        "checksum": [b"0" * 16, b"1" * 16],
    } | changes


def test_an_opened_data_set_tells_what_it_holds(pristine: Path) -> None:
    data = open_dataset(str(pristine))
    assert data.name == str(pristine)
    assert (data.rows, len(data), data.num_shards) == (40, 40, 3)
    assert data.shard_rows.sum() == 40
    assert data.shard_starts.tolist() == [0, *np.cumsum(data.shard_rows).tolist()]
    assert data.shard_name(1) == "00000001.arrow"
    assert data.shard_nbytes[1] == (pristine / "00000001.arrow").stat().st_size
    content = (pristine / "00000001.arrow").read_bytes()
    assert data.shard_checksums[1].tobytes() == xxhash.xxh3_128_digest(content)
    assert data.schema["label"].classes == ("cat", "dog")
    assert len(data.fingerprint) == 32
    assert "rows=40" in repr(data)
    for array in (data.shard_rows, data.shard_starts, data.shard_nbytes, data.shard_checksums):
        assert not array.flags.writeable


def test_a_data_set_opens_from_any_source_and_any_folder(pristine: Path, stored: Path) -> None:
    assert open_dataset(FolderSource(stored)).fingerprint == open_dataset(pristine).fingerprint


@settings(deadline=None, max_examples=50)
@given(rows=st.lists(st.integers(0, 4), max_size=12), seed=st.integers(0, 99))
def test_find_gives_shard_and_row_for_any_indices(
    rows: list[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    count = len(rows)
    index = {
        "name": [f"{n:02}.arrow" for n in range(count)],
        "rows": rows,
        "nbytes": [9] * count,
        "footer_nbytes": [9] * count,
        "footer_checksum": [0] * count,
        "checksum": [bytes(16)] * count,
    }
    data = open_dataset(store(tmp_path_factory.mktemp("find"), index_bytes(index)))
    places = [(shard, row) for shard, length in enumerate(rows) for row in range(length)]
    indices = np.random.default_rng(seed).permutation(len(places))
    shards, found = data.find(indices)
    assert list(zip(shards.tolist(), found.tolist(), strict=True)) == [places[index] for index in indices]
    for outside in (-1, len(places)):
        with pytest.raises(IndexError, match=f"sample {outside} of .*, which has {len(places)} samples"):
            data.find(np.array([outside]))


NO_DATA_SET: dict[str, tuple[list[str], str]] = {
    "an empty folder": ([], r"is empty; `forebay shard SRC .*` makes a data set there"),
    "images": (["a.jpg", "b.png"], r"no manifest.json; if it holds images .*`forebay shard .* DST`"),
    "an unfinished write": (["unfinished.jsonl", "00000000.arrow"], r"unfinished write of a data set.*--resume"),
}


@pytest.mark.parametrize("what", NO_DATA_SET)
def test_a_folder_that_is_no_data_set_says_which_command_to_run(what: str, tmp_path: Path) -> None:
    files, says = NO_DATA_SET[what]
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ManifestError, match=says):
        open_dataset(tmp_path)


def test_what_is_no_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="there is no folder"):
        open_dataset(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(ManifestError, match="is a file"):
        open_dataset(tmp_path / "file")
    with pytest.raises(ManifestError, match="is a URL"):
        open_dataset("s3://bucket/data")


@pytest.mark.parametrize("name", ["manifest.json", "index.arrow"])
def test_no_flipped_byte_in_manifest_or_index_passes(name: str, stored: Path) -> None:
    content = (stored / name).read_bytes()
    for place in range(len(content)):
        with open(stored / name, "r+b", buffering=0) as file:
            file.seek(place)
            file.write(bytes([content[place] ^ 1 << place % 8]))
        with pytest.raises((ManifestError, SourceError)):
            open_dataset(stored)
        with open(stored / name, "r+b", buffering=0) as file:
            file.seek(place)
            file.write(content[place : place + 1])
    assert verify_dataset(open_dataset(stored)) == []


@pytest.mark.parametrize("name", ["manifest.json", "index.arrow"])
def test_a_manifest_or_index_cut_short_is_refused(name: str, stored: Path) -> None:
    content = (stored / name).read_bytes()
    for nbytes in (0, 1, len(content) // 2, len(content) - 3):
        (stored / name).write_bytes(content[:nbytes])
        with pytest.raises(ManifestError):
            open_dataset(stored)
    (stored / name).unlink()
    with pytest.raises((ManifestError, SourceError)):
        open_dataset(stored)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"format": "arrow"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a": ' * 100_000,
        b"9" * 5_000,
    ],
    ids=["nothing", "null", "list", "empty", "foreign", "no text", "deep lists", "deep objects", "a giant number"],
)
def test_a_file_that_is_no_manifest_is_refused(content: bytes, stored: Path) -> None:
    (stored / "manifest.json").write_bytes(content)
    with pytest.raises(ManifestError, match=r"manifest.json of .* (was not written by forebay|is damaged)"):
        open_dataset(stored)


def test_a_giant_manifest_is_not_read(stored: Path) -> None:
    with open(stored / "manifest.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ManifestError, match="no manifest is that long"):
        open_dataset(stored)


def test_a_newer_version_says_upgrade(stored: Path) -> None:
    edit_manifest(stored, lambda content: content | {"version": 2, "schema": "of the future"})
    with pytest.raises(
        ManifestError, match=r"version 2 of the format.*reads up to 1; upgrade with `pip install -U forebay`"
    ):
        open_dataset(stored)


@pytest.mark.parametrize("version", [None, 0, -1, True, "1", 1.0])
def test_a_version_that_never_was_is_refused(version: Any, stored: Path) -> None:
    edit_manifest(stored, lambda content: content | {"version": version})
    with pytest.raises(ManifestError, match="never written"):
        open_dataset(stored)


@pytest.mark.parametrize("key", ["rows", "shards", "nbytes"])
@pytest.mark.parametrize("value", [0, 41, 2**61, 2**70, -1, True, 1.5, "40", None, [], 10**400])
def test_a_count_that_lies_is_refused(key: str, value: Any, stored: Path) -> None:
    edit_manifest(stored, lambda content: content | {key: value})
    with pytest.raises(ManifestError, match=key):
        open_dataset(stored)


@pytest.mark.parametrize("key", ["schema", "fingerprint", "rows", "shards", "nbytes", "parent", "writer", "index"])
def test_a_manifest_without_one_of_its_keys_is_refused(key: str, stored: Path) -> None:
    edit_manifest(stored, lambda content: {name: value for name, value in content.items() if name != key})
    with pytest.raises(ManifestError, match="does not hold"):
        open_dataset(stored)


@pytest.mark.parametrize(
    "name", ["../index.arrow", "/etc/passwd", "a/b", "", "..", ".hidden", "a\0b", 3, None, "x" * 300]
)
def test_an_index_outside_the_folder_is_refused(name: Any, stored: Path) -> None:
    edit_manifest(stored, lambda content: content | {"index": content["index"] | {"name": name}})
    with pytest.raises(ManifestError):
        open_dataset(stored)


@pytest.mark.parametrize(
    "changes", [{"fingerprint": "0" * 32}, {"fingerprint": "short"}, {"parent": 3}, {"schema": {}}]
)
def test_a_manifest_that_contradicts_its_index_is_refused(changes: dict[str, Any], stored: Path) -> None:
    edit_manifest(stored, lambda content: content | changes)
    with pytest.raises(ManifestError):
        open_dataset(stored)


@pytest.mark.parametrize(
    "name", ["../b.arrow", "/b.arrow", "b/b.arrow", "", "..", ".b", "b\n", "a.arrow", "0.arrow", "é"]
)
def test_a_shard_outside_the_folder_or_out_of_order_is_refused(name: str, tmp_path: Path) -> None:
    folder = store(tmp_path / "d", index_bytes(two_shards(name=["a.arrow", name])))
    with pytest.raises(ManifestError, match=r"not a plain file name|out of order or twice"):
        open_dataset(folder)


LIES: dict[str, dict[str, Any]] = {
    "negative rows": {"rows": [-1, 4]},
    "rows that wrap round": {"rows": [2**63 - 1, 2**63 - 1]},
    "bytes that wrap round": {"nbytes": [2**63 - 1, 2**63 - 1]},
    "an empty footer": {"footer_nbytes": [0, 10]},
    "a footer longer than its file": {"footer_nbytes": [10, 101]},
    "negative bytes": {"nbytes": [100, -100]},
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_with_counts_that_cannot_be_is_refused(lie: str, tmp_path: Path) -> None:
    folder = store(tmp_path / "d", index_bytes(two_shards(**LIES[lie])), rows=3, nbytes=200)
    with pytest.raises(ManifestError):
        open_dataset(folder)


def test_an_index_of_another_form_is_refused(tmp_path: Path) -> None:
    extra = index_bytes(two_shards(extra=[1, 2]), INDEX | {"extra": pa.int64()})
    narrow = index_bytes(two_shards(), INDEX | {"rows": pa.int32()})
    for content in (extra, narrow, index_bytes(two_shards(), batches=2)):
        with pytest.raises(ManifestError, match=r"other columns|one record batch"):
            open_dataset(store(tmp_path / "d", content))
    nulls = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\1"), pa.py_buffer(np.array([9, 9]).tobytes())])
    with pytest.raises(ManifestError):
        open_dataset(store(tmp_path / "d", index_bytes(two_shards(footer_nbytes=nulls))))


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_hostile_index_is_an_error_never_a_crash(data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray(index_bytes(two_shards()))
    folder = store(tmp_path / "d", bytes(content))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "index.arrow").write_bytes(content)
    entry = {"name": "index.arrow", "nbytes": len(content), "checksum": xxhash.xxh3_128_hexdigest(content)}
    edit_manifest(folder, lambda manifest: manifest | {"index": entry})
    try:
        opened: StoredDataset = open_dataset(folder)
    except ForebayError:
        return
    assert opened.shard_rows.sum() == 3  # what was changed was padding, a name, or a count of bytes that balances


MEASURE = """
import sys
from forebay.sharding import open_dataset

def resident(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) * 1024

before = resident("VmRSS")
data = open_dataset(sys.argv[1])
print(data.num_shards, resident("VmHWM") - before)
"""


def test_a_million_shards_open_within_100_megabytes(tmp_path: Path) -> None:
    count = 1_000_000
    rng = np.random.default_rng(0)
    rows = rng.integers(1, 2_000, count)
    digits = (np.arange(count)[:, None] // 10 ** np.arange(7, -1, -1) % 10 + ord("0")).astype(np.uint8)
    names = np.concatenate([digits, np.tile(np.frombuffer(b".arrow", np.uint8), (count, 1))], axis=1)
    offsets = np.arange(count + 1, dtype=np.int32) * names.shape[1]
    columns = {
        "name": pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(names.tobytes())]),
        "rows": rows,
        "nbytes": rows * 100_000,
        "footer_nbytes": np.full(count, 5_000),
        "footer_checksum": rng.integers(0, 2**63, count, dtype=np.uint64),
        "checksum": pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(rng.bytes(16 * count))]),
    }
    folder = store(tmp_path / "d", index_bytes(columns))
    command = [sys.executable, "-c", MEASURE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shards, nbytes = done.stdout.split()
    assert int(shards) == count
    assert int(nbytes) < 100e6
