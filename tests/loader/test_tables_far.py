"""Tables at the URL of a folder: whichever lies there, shards or Parquet files, is found without being told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer

from forebay import DataLoader, ShardDataset
from forebay.benchmarks.range_server import RangeServer
from forebay.cache import open_or_find, open_place
from forebay.cli.shard_table import write_table
from forebay.errors import ConfigError, ManifestError, SourceError
from tests.cache.remote import QUICK
from tests.loader.numbers import write_numbers

ROWS = 600


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6 files in folders of two keys, and what does not count."""
    root = tmp_path_factory.mktemp("lake") / "table"
    for number in range(6):
        folder = root / f"year={2020 + number // 3}" / f"city=Bad%20Ort{number % 3}"
        folder.mkdir(parents=True)
        rows = np.arange(100 * number, 100 * number + 100)
        columns = {"number": rows, "name": [f"n{row}" for row in rows], "x": rows.astype(np.float32)}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=40)
    (root / "_SUCCESS").write_bytes(b"")
    (root / "year=2020" / ".part.crc").write_bytes(b"crc")
    return root


@pytest.fixture
def bucket(endpoint: str, table: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, str], None]]:
    """Uploads a folder; the table lies under `table/` of the bucket `lake` already, beside the marker of a folder."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket="lake")

    def upload(folder: Path, key: str) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                client.upload_file(str(path), "lake", f"{key}/{path.relative_to(folder)}")

    upload(table, "table")
    client.put_object(Bucket="lake", Key="table/year=2020/", Body=b"")
    yield upload
    for found in client.list_objects_v2(Bucket="lake").get("Contents", []):
        client.delete_object(Bucket="lake", Key=found["Key"])
    client.delete_bucket(Bucket="lake")
    client.close()


def numbers(dataset: ShardDataset, **options: Any) -> list[int]:
    with DataLoader(dataset, batch_size=64, seed=3, **options) as loader:
        return [number for batch in loader for number in batch["number"].tolist()]


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("kind", ["auto", "parquet"])
def test_a_tree_in_a_bucket_is_the_table_of_the_folder(kind: Any, table: Path, tmp_path: Path) -> None:
    near = ShardDataset(table)
    for url in ("s3://lake/table/", "s3://lake/table"):
        far = ShardDataset(url, format=kind, remote=QUICK, cache=f"{tmp_path / 'cache'}:1GB")
        assert far.fingerprint == near.fingerprint
        assert far.outputs == ("number", "name", "x", "year", "city")
        assert numbers(far, shuffle=True) == numbers(near, shuffle=True)
    last = far[ROWS - 1]
    assert (last["year"].item(), last["city"], last["name"]) == (2021, "Bad Ort2", f"n{ROWS - 1}")
    far.close()


@pytest.mark.usefixtures("bucket")
def test_options_of_tables_are_for_a_tree_in_a_bucket_too() -> None:
    options: dict[str, Any] = {"filter": pc.field("year") == 2021, "stack": {"f": ["x"]}}
    far = ShardDataset("s3://lake/table", remote=QUICK, columns=["number", "x"], **options)
    assert sorted(numbers(far)) == list(range(ROWS // 2, ROWS))


@pytest.mark.usefixtures("bucket")
def test_globs_and_one_folder_of_a_tree_in_a_bucket(table: Path) -> None:
    for pattern in ("year=2021/*/*.parquet", "**/[345].parquet", "year=2021"):
        far = ShardDataset(f"s3://lake/table/{pattern}", remote=QUICK)
        assert sorted(numbers(far)) == list(range(ROWS // 2, ROWS))
    with pytest.raises(SourceError, match=r"no file of a table"):
        ShardDataset("s3://lake/table/*.csv", remote=QUICK)


def test_a_manifest_in_a_bucket_means_shards(bucket: Callable[[Path, str], None], tmp_path: Path) -> None:
    near = ShardDataset(write_numbers(tmp_path / "shards", 20))
    bucket(tmp_path / "shards", "shards")
    assert ShardDataset("s3://lake/shards", remote=QUICK).fingerprint == near.fingerprint
    with pytest.raises(ConfigError, match="filter: only for a table"):
        ShardDataset("s3://lake/shards", remote=QUICK, filter=pc.field("a") > 1)
    with pytest.raises(ManifestError, match="no data set"):
        ShardDataset("s3://lake/table", remote=QUICK, format="forebay")


def test_where_neither_lies_it_is_told_what_was_looked_for(bucket: Callable[[Path, str], None], tmp_path: Path) -> None:
    write_numbers(tmp_path / "unfinished", 20)
    (tmp_path / "unfinished" / "manifest.json").unlink()
    bucket(tmp_path / "unfinished", "unfinished")
    for folder, there in (("unfinished", "files, such as"), ("nothing", "but nothing")):
        with pytest.raises(ManifestError, match=rf"neither manifest\.json .* nor files called \*\.parquet.*{there}"):
            ShardDataset(f"s3://lake/{folder}", remote=QUICK)


def test_a_data_set_of_shards_whose_index_is_missing_is_not_taken_for_a_table(
    bucket: Callable[[Path, str], None], tmp_path: Path
) -> None:
    write_numbers(tmp_path / "broken", 20)
    (tmp_path / "broken" / "index.arrow").unlink()
    bucket(tmp_path / "broken", "broken")
    with pytest.raises(ManifestError, match=r"index\.arrow"):
        ShardDataset("s3://lake/broken", remote=QUICK)


def test_shards_cost_no_request_more_for_being_looked_for(tmp_path: Path) -> None:
    write_numbers(tmp_path / "shards", 20)
    told = []
    for open_it in (open_place, open_or_find):
        with RangeServer(tmp_path) as server:
            open_it(f"{server.url}/shards", QUICK)
            told.append([request.path for request in server.requests])
    assert told[0] == told[1]


def test_of_a_web_server_that_lists_nothing_files_are_wanted(table: Path) -> None:
    with (
        RangeServer(table.parent) as server,
        pytest.raises(ManifestError, match=r"neither manifest\.json .* nor files called .* as a list"),
    ):
        ShardDataset(f"{server.url}/table", remote=QUICK)


def test_columns_with_a_small_one_between_them_are_one_request(tmp_path: Path) -> None:
    rows = np.arange(50_000)
    columns = {"number": rows, "same": ["s"] * len(rows), "x": rows.astype(np.float32)}
    pq.write_table(pa.table(columns), tmp_path / "f.parquet", use_dictionary=["same"], compression="none")
    with RangeServer(tmp_path) as server:
        far = ShardDataset(f"{server.url}/f.parquet", columns=["number", "x"])
        server.requests.clear()
        assert numbers(far, num_workers=1) == rows.tolist()
        footer, data = server.requests
    assert data.begin < footer.begin


def test_a_tree_at_a_url_of_another_kind_is_found_too(table: Path) -> None:
    files = fsspec.filesystem("memory")
    files.put(str(table), "/lake/table", recursive=True)
    far = ShardDataset("memory://lake/table", remote=QUICK)
    assert far.fingerprint == ShardDataset(table).fingerprint
    assert numbers(far) == list(range(ROWS))
    with pytest.raises(ManifestError, match="neither"):
        ShardDataset("memory://lake/nothing", remote=QUICK)
    files.rm("/lake", recursive=True)


@pytest.mark.usefixtures("bucket")
def test_a_table_in_a_bucket_becomes_shards(table: Path, tmp_path: Path) -> None:
    far = write_table("s3://lake/table", "s3://lake/shards")
    near = write_table(str(table), tmp_path / "shards")
    assert far["fingerprint"] == near["fingerprint"]
    assert numbers(ShardDataset("s3://lake/shards", remote=QUICK)) == list(range(ROWS))
