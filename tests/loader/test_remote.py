from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.benchmarks.range_server import Fault, RangeServer, Request
from forebay.errors import SourceError
from forebay.sharding import ShardWriter


@pytest.fixture
def server(pictures: Path) -> Iterator[RangeServer]:
    with RangeServer(pictures.parent) as running:
        yield running


@pytest.mark.parametrize("cached", [False, True])
def test_a_url_gives_the_batches_of_the_folder(
    cached: bool, server: RangeServer, pictures: Path, tmp_path: Path
) -> None:
    cache = f"{tmp_path / 'cache'}:1GB" if cached else None
    made = {"image": [T.RandomResizedCrop(24)]}
    dataset = ShardDataset(f"{server.url}/{pictures.name}", cache=cache, transforms=made)
    far = DataLoader(dataset, batch_size=8, shuffle=True, seed=3)
    near = DataLoader(ShardDataset(pictures, transforms=made), batch_size=8, shuffle=True, seed=3)
    for one, other in zip(far, near, strict=True):
        assert torch.equal(one["label"], other["label"])
        assert one["name"] == other["name"]
        assert torch.equal(one["image"], other["image"])
    if cached:
        assert far.stats().cache["requested_nbytes"] <= 1.02 * dataset.data.manifest.nbytes


def test_a_batch_takes_one_round_trip_after_its_footers(server: RangeServer, tmp_path: Path) -> None:
    columns = {"shape_free": "float32[*,2]", "label": "int64", "flag": "bool", "text": "str"}
    with ShardWriter(tmp_path / "rows", columns, shard_nbytes=3000, batch_nbytes=500) as writer:
        for i in range(200):
            tensor = torch.arange(2.0 * (i % 5)).reshape(-1, 2).numpy()
            writer.write({"shape_free": tensor, "label": i, "flag": i % 3 == 0, "text": f"text {i}"})
    with RangeServer(tmp_path) as other:
        far, near = ShardDataset(f"{other.url}/rows"), ShardDataset(tmp_path / "rows")
        for index in (0, 77, 199):
            assert far[index]["label"] == near[index]["label"]
            assert far[index]["flag"] == near[index]["flag"]
            assert far[index]["text"] == near[index]["text"]
            assert torch.equal(far[index]["shape_free"], near[index]["shape_free"])
        far.close()
        near.close()
        loader = DataLoader(far, batch_size=50, shuffle=True, seed=0)
        rows = {int(label) for batch in loader for label in batch["label"]}
        assert rows == set(range(200))


def test_a_data_set_of_a_url_pickles(server: RangeServer, pictures: Path) -> None:
    dataset = ShardDataset(f"{server.url}/{pictures.name}")
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert again.fingerprint == dataset.fingerprint
    assert torch.equal(again[3]["image"], dataset[3]["image"])
    again.close()
    dataset.close()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """100 samples, each in a shard of its own."""
    return write_rows(tmp_path / "rows", shard_nbytes=1)


def write_rows(path: Path, shard_nbytes: int) -> Path:
    with ShardWriter(path, {"text": "str", "number": "int64"}, shard_nbytes=shard_nbytes) as writer:
        for i in range(100):
            writer.write({"text": f"text {i:03}", "number": i})
    return path


def numbers(loader: DataLoader[dict[str, Any]]) -> list[list[int]]:
    return [batch["number"].tolist() for batch in loader]


def test_while_a_batch_is_on_its_way_the_next_ones_are_asked_for(tmp_path: Path) -> None:
    sent_before: list[int] = []

    def note(_: Request) -> None:
        sent_before.append(running.sent_nbytes)

    write_rows(tmp_path / "rows", shard_nbytes=1 << 20)
    running = RangeServer(tmp_path, delay_s=0.2, fault=note)
    with running:
        loader = DataLoader(ShardDataset(f"{running.url}/rows"), batch_size=1, num_workers=2)
        iterator = iter(loader)
        next(iterator)
        del iterator
    manifest, index, footer, *samples = sent_before
    assert manifest == 0
    assert manifest < index < footer < samples[0]
    assert len(samples) >= 3
    assert len(set(samples[:3])) == 1


@pytest.mark.parametrize("shuffle", [False, True])
def test_shards_stay_open_while_somebody_waits_for_them(shuffle: bool, rows: Path) -> None:
    with RangeServer(rows.parent) as server:
        options: dict[str, Any] = {"batch_size": 7, "shuffle": shuffle, "window": 1, "seed": 0, "num_workers": 4}
        far = DataLoader(ShardDataset(f"{server.url}/rows"), **options)
        near = DataLoader(ShardDataset(rows), **options)
        for _ in range(3):
            assert numbers(far) == numbers(near)


def test_what_cannot_be_read_is_an_error_after_the_batches_before_it(rows: Path) -> None:
    def refuse(request: Request) -> Fault | None:
        return Fault.FORBIDDEN if request.path.endswith("00000020.arrow") else None

    with RangeServer(rows.parent, fault=refuse) as server:
        loader = DataLoader(ShardDataset(f"{server.url}/rows"), batch_size=2, num_workers=4)
        iterator = iter(loader)
        got = [next(iterator)["number"].tolist() for _ in range(10)]
        with pytest.raises(SourceError, match=r"00000020\.arrow"):
            next(iterator)
    assert got == [[i, i + 1] for i in range(0, 20, 2)]
