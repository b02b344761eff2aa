from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from PIL import Image

from forebay.benchmarks.range_server import Fault, RangeServer
from forebay.cache import BucketDestination, CacheConfig, open_place, open_store
from forebay.cli.app import app
from forebay.errors import ConfigError, ManifestError, SourceError
from forebay.sharding import ShardWriter, StoredDataset, verify_dataset
from tests.cache.remote import QUICK, check_shard, one_in

MakeDataset = Callable[..., StoredDataset]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of an S3 API on the loopback, which `s3://` leads to as well, with an empty bucket `train`."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket="train")
    yield client
    for found in client.list_objects_v2(Bucket="train").get("Contents", []):
        client.delete_object(Bucket="train", Key=found["Key"])
    client.delete_bucket(Bucket="train")
    client.close()


def upload(s3: Any, folder: Path, key: str) -> None:
    for path in folder.iterdir():
        s3.upload_file(str(path), "train", f"{key}/{path.name}")


@pytest.mark.parametrize("cached", [False, True])
def test_a_bucket_is_read_as_the_folder(cached: bool, s3: Any, make_dataset: MakeDataset, tmp_path: Path) -> None:
    local = make_dataset()
    upload(s3, tmp_path / "data", "some/data")
    data = open_place("s3://train/some/data", QUICK)
    assert data.fingerprint == local.fingerprint
    cache = CacheConfig(path=tmp_path / "cache", budget=10**9) if cached else None
    store = open_store(data, cache)
    for shard, reader in enumerate(store.open_shards(range(local.num_shards))):
        check_shard(reader, local, shard)
    store.close()


def test_a_missing_bucket_or_folder_is_told_without_credentials(s3: Any) -> None:
    for url in ("s3://train/nothing", "s3://absent/data"):
        with pytest.raises((ManifestError, SourceError)) as caught:
            open_place(url, QUICK)
        assert url in str(caught.value)
        assert "hush" not in str(caught.value)


COLUMNS = {"payload": "bytes", "number": "int64"}


def write(place: Path | BucketDestination, samples: range, *, resume: bool = False) -> None:
    with ShardWriter(place, COLUMNS, shard_nbytes=3000, batch_nbytes=1000, resume=resume) as writer:
        for number in samples[writer.rows_done :]:
            writer.write({"payload": bytes([number]) * 500, "number": number})


def keys(s3: Any) -> list[str]:
    return sorted(found["Key"] for found in s3.list_objects_v2(Bucket="train").get("Contents", []))


def test_a_data_set_written_to_a_bucket_is_that_of_a_folder(s3: Any, tmp_path: Path) -> None:
    write(BucketDestination("s3://train/new", QUICK), range(40))
    write(tmp_path / "same", range(40))
    data = open_place("s3://train/new", QUICK)
    assert data.fingerprint == open_place(tmp_path / "same").fingerprint
    assert keys(s3) == sorted(f"new/{path.name}" for path in (tmp_path / "same").iterdir())
    assert verify_dataset(data) == []


def test_a_large_shard_goes_up_in_parts(s3: Any) -> None:
    place = BucketDestination("s3://train/large", QUICK)
    with ShardWriter(place, {"payload": "bytes"}) as writer:
        writer.write({"payload": bytes(20_000_000)})
    assert "-" in s3.head_object(Bucket="train", Key="large/00000000.arrow")["ETag"], "of a multipart upload"
    assert verify_dataset(open_place("s3://train/large")) == []


def test_a_write_that_was_stopped_is_resumed(s3: Any, tmp_path: Path) -> None:
    stopped = ShardWriter(BucketDestination("s3://train/new", QUICK), COLUMNS, shard_nbytes=3000, batch_nbytes=1000)
    for number in range(20):
        stopped.write({"payload": bytes([number]) * 500, "number": number})
    stopped.abort()
    assert "new/manifest.json" not in keys(s3)
    with pytest.raises(ManifestError, match="no data set"):
        open_place("s3://train/new", QUICK)
    with pytest.raises(ConfigError, match="resume=True"):
        write(BucketDestination("s3://train/new", QUICK), range(40))
    write(BucketDestination("s3://train/new", QUICK), range(40), resume=True)
    write(tmp_path / "same", range(40))
    assert open_place("s3://train/new", QUICK).fingerprint == open_place(tmp_path / "same").fingerprint
    assert "new/unfinished.jsonl" not in keys(s3)


def test_a_place_that_holds_something_is_not_written_to(s3: Any) -> None:
    write(BucketDestination("s3://train/new", QUICK), range(4))
    with pytest.raises(ConfigError, match="finished data set"):
        write(BucketDestination("s3://train/new", QUICK), range(4))
    s3.put_object(Bucket="train", Key="other/file", Body=b"")
    with pytest.raises(ConfigError, match=r"not empty.*'file'"):
        write(BucketDestination("s3://train/other", QUICK), range(4))


def test_a_writer_is_not_given_a_url_by_mistake() -> None:
    with pytest.raises(ConfigError, match="BucketDestination"):
        ShardWriter("s3://train/new", COLUMNS)


def test_the_command_line_shards_inspects_and_verifies_a_bucket(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(6):
        path = tmp_path / "photos" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (number, 0, 0)).save(path)
    for arguments in (
        ["shard", str(tmp_path / "photos"), "s3://train/photos", "--workers", "0", "--json"],
        ["inspect", "s3://train/photos", "--json"],
        ["verify", "s3://train/photos", "--json"],
    ):
        app(arguments, standalone_mode=False)
        report = json.loads(capsys.readouterr().out)
        assert report["rows"] == 6
        assert report["path"] == "s3://train/photos"
    assert report["problems"] == []


@pytest.mark.parametrize(
    ("every", "faults"),
    [(5, (Fault.ERROR_500, Fault.ERROR_503)), (5, (Fault.CUT,)), (5, (Fault.SHORT,)), (5, (Fault.FLIP,))],
    ids=["5xx", "cut", "short", "flipped"],
)
def test_requests_at_fault_cost_no_byte(
    every: int, faults: tuple[Fault, ...], tmp_path: Path, make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a service that answers as S3 does to requests for ranges, and fails as S3 does on bad days."""
    local = make_dataset("bucket")
    with RangeServer(tmp_path, fault=one_in(every, *faults)) as server:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "hush",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": server.url,
        }.items():
            monkeypatch.setenv(name, value)
        far = open_place("s3://bucket/", QUICK)
        store = open_store(far, CacheConfig(path=tmp_path / "cache", budget=10**6))
        for shard in range(far.num_shards):
            check_shard(store.open_shard(shard), local, shard)
        store.close()
        assert verify_dataset(far) == []
