from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.benchmarks.range_server import RangeServer
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
