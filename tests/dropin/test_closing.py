"""`close`, `with`, `stats` and `set_epoch` of a loader of any data set: what torch's has not; prompt and harmless."""

from __future__ import annotations

import json
import multiprocessing
import threading
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

from forebay import DataLoader
from forebay.errors import ConfigError
from tests.dropin.samples import Numbers, Split

WAYS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "workers": "thread"},
]


def quiet() -> bool:
    return not multiprocessing.active_children() and threading.active_count() == 1


@pytest.mark.parametrize("way", WAYS, ids=repr)
@pytest.mark.parametrize("data", [Numbers(1000), Split(1000)])
def test_close_ends_everything_may_be_called_again_and_the_loader_may_begin_anew(
    data: Any, way: dict[str, Any]
) -> None:
    loader = DataLoader(data, 4, **way)
    loader.close()
    iterators = [iter(loader)] if way.get("persistent_workers") else [iter(loader), iter(loader)]
    for iterator in iterators:
        next(iterator)
    loader.close()
    loader.close()
    assert quiet()
    first = next(iter(loader))
    assert int(first[0].flatten()[0] if isinstance(first, list) else first[0, 0]) == 0
    loader.close()
    assert quiet()


@pytest.mark.parametrize("way", WAYS, ids=repr)
def test_a_with_block_closes_on_errors_too(way: dict[str, Any]) -> None:
    with pytest.raises(LookupError), DataLoader(Numbers(1000), 4, **way) as loader:  # noqa: PT012 - the loop is the point
        for _ in loader:
            raise LookupError
    assert quiet()


@pytest.mark.parametrize("way", WAYS, ids=repr)
def test_stats_count_what_was_delivered(way: dict[str, Any]) -> None:
    with DataLoader(Numbers(50), 4, **way) as loader:
        list(loader)
        stats = loader.stats()
        assert (stats.samples, stats.batches) == (50, 13)
        assert json.loads(json.dumps(stats.to_dict()))["samples"] == 50
        assert 0 <= stats.stall_s <= stats.seconds
        loader.reset_stats()
        assert loader.stats().batches == 0
        next(iter(loader))
        assert loader.stats().samples == 4


def test_set_epoch_reaches_the_sampler() -> None:
    sampler: Any = DistributedSampler(Numbers(20), num_replicas=2, rank=0)
    loader = DataLoader(Numbers(20), 5, sampler=sampler, num_workers=1, persistent_workers=True)
    orders = []
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        assert sampler.epoch == epoch
        orders.append([int(x) for batch in loader for x in batch])
    loader.close()
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.parametrize(
    "name", ["seed", "global_batch_size", "window", "device", "rank", "world_size", "prefetch_nbytes", "decode"]
)
def test_settings_of_shards_alone_are_refused_with_the_way_out(name: str) -> None:
    value: Any = {"device": torch.device("cpu"), "decode": "library"}.get(name, 1)
    with pytest.raises(ConfigError, match=f"{name}.*ShardDataset"):
        DataLoader(Numbers(4), **{name: value})
