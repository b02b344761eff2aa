"""`forebay cache`, from the command line's arguments to what it prints."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forebay.cache import CacheConfig, open_store
from forebay.cli.app import app
from forebay.errors import CacheError, ConfigError, ForebayError
from forebay.sharding import EpochOrder, ShardWriter, StoredDataset, open_dataset


def run(*arguments: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, ["cache", *map(str, arguments)])
    if isinstance(result.exception, ForebayError):
        raise result.exception
    assert result.exit_code == exit_code, result.output
    return result.stdout


def run_json(*arguments: object, exit_code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", exit_code=exit_code))


def make(folder: Path, seed: int) -> StoredDataset:
    rng = random.Random(seed)
    with ShardWriter(folder, {"payload": "bytes"}, shard_nbytes=4 * 2050, batch_nbytes=2000) as writer:
        for _ in range(24):
            writer.write({"payload": rng.randbytes(2000)})
    return open_dataset(folder)


@pytest.fixture
def data(tmp_path: Path) -> StoredDataset:
    return make(tmp_path / "data", 0)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def files(cache: Path, data: StoredDataset) -> list[str]:
    return sorted(file.name for file in (cache / data.fingerprint).glob("*"))


def test_warming_fetches_what_has_room_in_the_order_of_the_training(cache: Path, data: StoredDataset) -> None:
    room = 3 * int(data.shard_nbytes.max()) + 100
    told = run_json("warm", data.name, f"{cache}:{room}", "--seed", 3, "--threads", 1)
    assert (told["fetched"], told["present"], told["without_room"]) == (3, 0, 3)
    order = EpochOrder(data.shard_rows, fingerprint=data.fingerprint, seed=3, epoch=0, shuffle=True)
    first = [span.shard for span in order.spans()][:3]
    assert files(cache, data) == sorted(data.shard_name(shard) for shard in first)
    told = run_json("warm", data.name, f"{cache}:{10 * room}")
    assert (told["fetched"], told["present"], told["without_room"]) == (3, 3, 0)
    assert "6 were there" in run("warm", data.name, f"{cache}:{10 * room}")


def test_warming_leaves_what_running_jobs_will_use(tmp_path: Path, cache: Path, data: StoredDataset) -> None:
    other = make(tmp_path / "other", 1)
    store = open_store(other, CacheConfig(path=cache))
    for shard in range(6):
        store.open_shard(shard).close()
    room = int(other.shard_nbytes.sum()) + 5000  # what is written down of a data set counts as well
    assert run_json("warm", data.name, f"{cache}:{room}")["without_room"] == 6
    assert len(files(cache, other)) == 6
    store.close()
    assert run_json("warm", data.name, f"{cache}:{room}")["fetched"] == 6
    assert files(cache, other) == []


def test_the_environment_names_the_cache(cache: Path, data: StoredDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_CACHE", raising=False)
    for command in (["ls"], ["du"], ["warm", data.name], ["prune", "--all"], ["verify"]):
        with pytest.raises(ConfigError, match="FOREBAY_CACHE"):
            run(*command)
    monkeypatch.setenv("FOREBAY_CACHE", f"{cache}:1GB")
    run("warm", data.name)
    assert len(run_json("ls")[0]["data"]) == 1
    assert run_json("du")[0]["nbytes"] == int(data.shard_nbytes.sum())
    assert "6 shards removed" in run("prune", "--all")


def test_data_sets_are_listed_with_where_they_came_from_and_who_reads_them(cache: Path, data: StoredDataset) -> None:
    run("warm", data.name, f"{cache}:1GB")
    store = open_store(data, CacheConfig(path=cache))
    store.follow(EpochOrder(data.shard_rows, fingerprint=data.fingerprint, seed=0, epoch=0, shuffle=True))
    store.advance(12)
    (contents,) = run_json("ls", cache)
    assert contents["data"] == [
        {
            "fingerprint": data.fingerprint,
            "origin": data.name,
            "shards": 6,
            "nbytes": int(data.shard_nbytes.sum()),
            "shards_of_data": 6,
            "positions": [0.5],
            "decoded_files": 0,
            "decoded_nbytes": 0,
        }
    ]
    text = run("ls", cache)
    assert data.fingerprint[:12] in text
    assert "50 %" in text
    store.close()
    run("prune", cache, "--all")
    assert "holds no shards" in run("ls", cache)


def test_several_folders_are_listed_one_by_one(tmp_path: Path, data: StoredDataset) -> None:
    both = f"{tmp_path / 'one'},{tmp_path / 'two'}:1GB"
    run("warm", data.name, both)
    told = run_json("du", both)
    assert [contents["path"] for contents in told] == [str(tmp_path / "one"), str(tmp_path / "two")]
    assert sum(contents["nbytes"] for contents in told) == int(data.shard_nbytes.sum())
    assert run("du", both).count("\n") >= 3


def test_pruning_goes_down_to_a_size_or_removes_one_data_set(tmp_path: Path, cache: Path, data: StoredDataset) -> None:
    other = make(tmp_path / "other", 1)
    for name in (data.name, other.name):
        run("warm", name, f"{cache}:1GB")
    (told,) = run_json("prune", cache, "--data", other.fingerprint[:8])
    assert told["removed"] == 6
    assert files(cache, other) == []
    (told,) = run_json("prune", cache, "--keep", 4 * int(data.shard_nbytes.max()))
    assert (told["removed"], len(files(cache, data))) == (2, 4)
    assert run_json("prune", cache, "--keep", "1GB")[0]["removed"] == 0
    with pytest.raises(ConfigError, match="names 0 data sets"):
        run("prune", cache, "--data", "zz")
    for options in ([], ["--all", "--keep", "1GB"]):
        with pytest.raises(ConfigError, match="one of"):
            run("prune", cache, *options)


def test_damaged_shards_are_named_dropped_and_fetched_again(cache: Path, data: StoredDataset) -> None:
    run("warm", data.name, f"{cache}:1GB")
    copy = cache / data.fingerprint / data.shard_name(2)
    damaged = bytearray(copy.read_bytes())
    damaged[6] ^= 1
    copy.write_bytes(damaged)
    (cache / data.fingerprint / "stranger").write_bytes(b"?")
    (told,) = run_json("verify", cache, exit_code=1)
    assert (told["whole"], len(told["damaged"]), told["unknown"]) == (5, 1, 1)
    assert str(copy) in told["damaged"][0]
    assert "5 shards whole, 1 of unknown" in run("verify", cache)
    assert run_json("warm", data.name, f"{cache}:1GB")["fetched"] == 1


def test_a_folder_that_is_no_cache_is_left_alone(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        for command in (["ls"], ["du"], ["prune", "--all"], ["verify"]):
            with pytest.raises(CacheError, match="no cache folder"):
                run(command[0], folder, *command[1:])
    assert os.listdir(tmp_path) == []
