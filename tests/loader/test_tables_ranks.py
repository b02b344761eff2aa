"""Tables on several ranks: in real processes under torchrun, and resumed on another number of them, again and again."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay import DataLoader, ShardDataset
from forebay.errors import StateError

ROWS = 2003
JOB = """
import json, sys
import pyarrow.compute as pc
import torch, torch.distributed as dist
from forebay import DataLoader, ShardDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(100 + rank)
table, cache, folder = sys.argv[1:]
told = {}
columns = ["number", "features", "__index__", "__valid__", "__weight__"]
options = {"columns": ["number", "a", "b", *columns[2:]], "stack": {"features": ["a", "b"]}, "cache": cache}

def read(loader, most=None):
    batches = []
    for batch in loader:
        assert batch["features"][:, 0].equal(batch["number"].float())
        dist.all_reduce(torch.ones(1))  # every rank steps as often, or this hangs
        batches.append([batch["number"].tolist(), batch["__valid__"].tolist(), batch["__weight__"].item()])
        if len(batches) == most:
            break
    return batches

with DataLoader(ShardDataset(table, **options), 50, shuffle=True, num_workers=1) as loader:
    told["first"], told["second"] = read(loader), read(loader)
    told["part"], told["state"] = read(loader, most=7), loader.state_dict()
# 27: a filter that leaves one rank with fewer rows, and one that leaves fewer rows than ranks
for name, most, given in (("filtered", 1111, {}), ("one row", 1, {}), ("padded", 51, {"tail": "pad"})):
    few = ShardDataset(table, **options, filter=pc.field("number") < most)
    with DataLoader(few, 50, num_workers=1, **given) as loader:
        told[name] = read(loader)
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(told, file)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5 files, 2,003 rows, about 12 units, none of the others' size."""
    root = tmp_path_factory.mktemp("table")
    bounds = [0, 170, 900, 901, 1500, ROWS]
    for part, (begin, end) in enumerate(pairwise(bounds)):
        rows = np.arange(begin, end)
        wide = pa.FixedSizeListArray.from_arrays(np.zeros(800 * len(rows)), 800)
        columns = {"number": rows, "a": rows.astype(np.float32), "b": -rows.astype(np.float32), "wide": wide}
        pq.write_table(pa.table(columns), root / f"{part}.parquet", row_group_size=180)
    return root


@pytest.fixture(scope="module")
def told(table: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks got, which share a cache."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "job.py").write_text(JOB)
    command = [
        sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(folder / "job.py"), str(table), f"{folder / 'cache'}:1GB", str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def joined(told: list[dict[str, Any]], name: str) -> list[list[int]]:
    """The valid numbers of each global batch."""
    assert len({len(rank[name]) for rank in told}) == 1
    return [
        [number for numbers, valid, _ in parts for number, good in zip(numbers, valid, strict=True) if good]
        for parts in zip(*(rank[name] for rank in told), strict=True)
    ]


def numbers(table: Path, state: dict[str, Any] | None = None, most: int | None = None, **settings: Any) -> Any:
    """Numbers of each batch of one rank, and the state after them."""
    with DataLoader(ShardDataset(table, columns=["number", "a", "b"]), num_workers=2, **settings) as loader:
        if state is not None:
            loader.load_state_dict(state)
        batches = []
        for batch in loader:
            batches.append(batch["number"].tolist())
            if len(batches) == most:
                break
        return batches, loader.state_dict()


def test_two_ranks_under_torchrun_share_out_every_row_once_an_epoch(told: list[dict[str, Any]]) -> None:
    first, second = joined(told, "first"), joined(told, "second")
    for batches in (first, second):
        assert [len(batch) for batch in batches] == [100] * 20 + [3]
        assert sorted(number for batch in batches for number in batch) == list(range(ROWS))
    assert first != second


@pytest.mark.parametrize(("name", "rows"), [("filtered", 1111), ("one row", 1), ("padded", 51)])
def test_a_filter_leaves_both_ranks_with_as_many_batches(name: str, rows: int, told: list[dict[str, Any]]) -> None:
    assert sorted(number for batch in joined(told, name) for number in batch) == list(range(rows))
    weights = [sum(rank[name][-1][2] for rank in told), len(told)]
    assert weights[0] == weights[1]


def test_a_state_of_two_ranks_goes_on_alone_with_what_they_would_have_got(
    told: list[dict[str, Any]], table: Path
) -> None:
    assert told[0]["state"] == told[1]["state"]
    rest, _ = numbers(table, told[0]["state"], batch_size=100)
    delivered = [number for batch in joined(told, "part") for number in batch]
    assert sorted(delivered + [number for batch in rest for number in batch]) == list(range(ROWS))


def test_any_number_of_ranks_goes_on_from_a_state_again_and_again(table: Path) -> None:
    whole, _ = numbers(table, batch_size=None, global_batch_size=60, shuffle=True, seed=4, rank=0, world_size=1)
    got: list[list[int]] = []
    state: dict[str, Any] | None = None
    for ranks, most in ((2, 5), (3, 4), (1, 6), (5, None)):
        settings = {"batch_size": None, "global_batch_size": 60, "world_size": ranks}
        settings |= {"shuffle": True, "seed": 4} if state is None else {}
        parts = [numbers(table, state, most, rank=rank, **settings) for rank in range(ranks)]
        assert all(part[1] == parts[0][1] for part in parts)
        state = parts[0][1]
        got += [[n for part in batch for n in part] for batch in zip(*(batches for batches, _ in parts), strict=True)]
    assert got == whole


def test_another_batch_size_goes_on_at_the_same_row_and_another_table_is_refused(table: Path) -> None:
    whole, _ = numbers(table, batch_size=10, shuffle=True, seed=4)
    _, state = numbers(table, most=9, batch_size=70, shuffle=True, seed=4)
    rest, _ = numbers(table, state, batch_size=10)
    assert [n for batch in rest for n in batch] == [n for batch in whole for n in batch][630:]
    with pytest.raises(StateError, match="another data set"):
        numbers(table / "1.parquet", state, batch_size=10)
