"""One hash an epoch: whatever the threads, the cache, the ranks and the stops of a run over a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
import xxhash

from forebay import DataLoader, ShardDataset
from forebay import transforms as T

ROWS, BATCH, EPOCHS = 1200, 60, 2


def scaled(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    """A push-down transform that draws."""
    noise = pa.array(rng.random(batch.num_rows, np.float32))
    return batch.set_column(batch.schema.get_field_index("a"), "a", pc.add(batch["a"], noise))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 files, 1,200 rows, 9 units of a megabyte."""
    root = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    for part in range(3):
        columns = {
            "number": np.arange(400 * part, 400 * part + 400),
            "a": rng.random(400, np.float32),
            "b": pa.array(rng.random(400, np.float32), mask=rng.random(400) < 0.1),
            "name": [f"n{i % 17}" for i in range(400)],
            "tags": [list(range(i % 4)) for i in range(400)],
            "wide": pa.FixedSizeListArray.from_arrays(rng.random(400 * 1000), 1000),
        }
        pq.write_table(pa.table(columns), root / f"{part}.parquet", row_group_size=140)
    return root


def open_loader(table: Path, cache: str = "", **settings: Any) -> DataLoader[Any]:
    dataset = ShardDataset(
        table,
        stack={"features": ["a", "b"]},
        nulls={"b": T.Fill(-1)},
        ragged={"tags": T.Padded(4)},
        table_transform=scaled,
        cache=cache,
    )
    chosen: dict[str, Any] = {"batch_size": None, "global_batch_size": BATCH, "rank": 0, "world_size": 1}
    if "state" not in settings:
        chosen |= {"shuffle": True, "seed": 7, "window": 4}
    state = settings.pop("state", None)
    loader = DataLoader(dataset, **(chosen | settings))
    if state is not None:
        loader.load_state_dict(state)
    return loader


def rows_of(batches: Iterable[dict[str, Any]]) -> list[bytes]:
    """Each row's bytes, in the order in which they came."""
    rows = []
    for batch in batches:
        columns = [
            [part.numpy().tobytes() for part in value] if isinstance(value, torch.Tensor) else map(str.encode, value)
            for value in batch.values()
        ]
        rows += [b"|".join(values) for values in zip(*columns, strict=True)]
    return rows


def digest(rows: Iterable[bytes]) -> str:
    return xxhash.xxh3_128_hexdigest(b"".join(rows))


@pytest.fixture(scope="module")
def hashes(table: Path) -> list[str]:
    """Of each epoch, read by one thread in one go."""
    with open_loader(table, num_workers=1) as loader:
        told = [rows_of(loader) for _ in range(EPOCHS)]
    assert all(len(rows) == len(set(rows)) == ROWS for rows in told)
    return [digest(rows) for rows in told]


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_epoch_has_one_hash_with_any_threads_ranks_and_cache(
    threads: int, ranks: int, table: Path, hashes: list[str], tmp_path: Path
) -> None:
    for cache in ("", f"{tmp_path / 'large'}:1GB", f"{tmp_path / 'large'}:1GB", f"{tmp_path / 'half'}:5MB"):
        loaders = [open_loader(table, cache, num_workers=threads, rank=r, world_size=ranks) for r in range(ranks)]
        for epoch in range(EPOCHS):
            parts = [[rows_of([batch]) for batch in loader] for loader in loaders]
            rows = [row for of_batch in zip(*parts, strict=True) for part in of_batch for row in part]
            assert digest(rows) == hashes[epoch], (cache, epoch)
        for loader in loaders:
            loader.close()


@pytest.mark.parametrize("threads", [1, 4])
def test_an_epoch_that_is_resumed_twice_has_the_same_hash(
    threads: int, table: Path, hashes: list[str], tmp_path: Path
) -> None:
    for cache in ("", f"{tmp_path / 'half'}:5MB", f"{tmp_path / 'large'}:1GB"):
        with open_loader(table, cache, num_workers=threads) as loader:
            list(loader)
            rows = rows_of(itertools.islice(loader, 5))
            state = loader.state_dict()
        for most in (6, ROWS):
            with open_loader(table, cache, num_workers=threads, state=state) as loader:
                rows += rows_of(itertools.islice(loader, most))
                state = loader.state_dict()
        assert digest(rows) == hashes[1]
