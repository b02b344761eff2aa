"""A cache of several folders: who is whose home, and what happens when one is full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cache import CacheConfig, ShardStore
from forebay.cache.folders import choose_home
from forebay.sharding import StoredDataset
from tests.cache.on_disk import shard_files, used_nbytes
from tests.cache.orders import epoch_order

MakeDataset = Callable[..., StoredDataset]
OpenStore = Callable[[StoredDataset, CacheConfig], ShardStore]

KEYS = [f"{'ab' * 16}/{number:08}.arrow" for number in range(4000)]


def homes(folders: list[str], weights: list[int]) -> list[str]:
    return [folders[choose_home(key, folders, weights)] for key in KEYS]


def test_shards_are_divided_in_proportion_to_the_budgets() -> None:
    found = homes(["/a", "/b", "/c"], [100, 200, 100])
    assert found.count("/b") == pytest.approx(2000, abs=150)
    assert found.count("/a") == pytest.approx(1000, abs=150)


def test_the_order_of_the_folders_does_not_matter_and_a_new_one_takes_from_each() -> None:
    before = homes(["/a", "/b"], [1, 1])
    assert homes(["/b", "/a"], [1, 1]) == before
    after = homes(["/a", "/b", "/c"], [1, 1, 1])
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {"/c"}


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=5))
def test_every_shard_has_a_home_and_none_in_a_folder_without_room(weights: list[int]) -> None:
    home = choose_home("a/b", [f"/{i}" for i in range(len(weights))], weights)
    assert weights[home] > 0 or not any(weights)


def test_two_folders_share_a_data_set_and_its_budget(
    tmp_path: Path, opened: OpenStore, make_dataset: MakeDataset
) -> None:
    data = make_dataset(shards=16)
    folders = (tmp_path / "one", tmp_path / "two")
    budget = 8 * int(data.shard_nbytes.max())
    store = opened(data, CacheConfig(path=folders[0], more_paths=folders[1:], budget=budget, min_free=0))
    for epoch in range(2):
        order = epoch_order(data, 1, epoch=epoch)
        store.follow(order)
        for span in order.spans():
            store.advance(span.first)
            with store.open_shard(span.shard) as reader:
                assert reader.value(0, "number") == 4 * span.shard
            assert max(used_nbytes(folder) for folder in folders) <= budget // 2
    assert all(shard_files(folder) for folder in folders)  # how many, the hash of their paths says
    assert not {file.name for file in shard_files(folders[0])} & {file.name for file in shard_files(folders[1])}
