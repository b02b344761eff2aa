"""Several nodes: each caches its own shards and no others, on torchrun's word or by argument."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay import CacheConfig, DataLoader, ShardDataset
from forebay.sharding import EpochOrder, NodeOrder
from tests.loader.numbers import write_numbers

SAMPLES = 1200
SETTINGS: dict[str, Any] = {"global_batch_size": 60, "shuffle": True, "seed": 2, "window": 8, "num_workers": 1}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1200 numbers in some two dozen shards."""
    return write_numbers(tmp_path_factory.mktemp("nodes") / "train", SAMPLES)


def of_node(data: ShardDataset, node: int, nodes: int) -> set[str]:
    """Names of the shards that a node owns in the first epoch."""
    order = EpochOrder(data.data.shard_rows, fingerprint=data.fingerprint, seed=2, epoch=0, shuffle=True, window=8)
    owned = NodeOrder(order, node=node, nodes=nodes).owns(np.arange(data.data.num_shards))
    return {data.data.shard_name(int(shard)) for shard in np.flatnonzero(owned)}


@pytest.mark.parametrize("nodes", [2, 3])
def test_each_node_keeps_its_own_shards_and_reads_a_few_samples_past_its_cache(
    numbers: Path, tmp_path: Path, nodes: int
) -> None:
    seen: list[int] = []
    for node in range(nodes):
        cache = tmp_path / f"node{node}"
        data = ShardDataset(numbers, columns=["__index__", "x"], cache=CacheConfig(path=cache, budget=1 << 24))
        with DataLoader(data, rank=node, world_size=nodes, nodes=nodes, **SETTINGS) as loader:
            seen += [x for batch in loader for x in batch["x"].tolist()]
            stats = loader.stats()
        assert 0 < stats.excess < stats.samples // 4
        assert stats.cache["bypassed"] > 0
        assert {path.name for path in cache.rglob("*.arrow")} == of_node(data, node, nodes)
    assert sorted(seen) == list(range(SAMPLES))


def test_one_node_keeps_all_shards_and_nothing_is_in_excess(numbers: Path, tmp_path: Path) -> None:
    data = ShardDataset(numbers, cache=CacheConfig(path=tmp_path / "cache", budget=1 << 24))
    with DataLoader(data, rank=1, world_size=2, **SETTINGS) as loader:
        assert len(list(loader)) == SAMPLES // 60
        assert loader.stats().excess == 0
    assert len(list((tmp_path / "cache").rglob("*.arrow"))) == data.data.num_shards


JOB = """
import json, os, sys
import torch.distributed as dist
from forebay import DataLoader, ShardDataset
dist.init_process_group("gloo")
data = ShardDataset(sys.argv[1], columns=["__index__"])
with DataLoader(data, **json.loads(sys.argv[3])) as loader:
    told = {"batches": [batch["__index__"].tolist() for batch in loader], "excess": loader.stats().excess}
with open(f"{sys.argv[2]}/{dist.get_rank()}.json", "w") as file:
    json.dump(told, file)
dist.destroy_process_group()
"""


def test_torchruns_nodes_divide_batches_as_the_argument_does(numbers: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    agents = [
        subprocess.Popen(
            [
                sys.executable, "-P", "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node),
                "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port),
                str(tmp_path / "job.py"), str(numbers), str(tmp_path), json.dumps(SETTINGS),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]  # fmt: skip
    errors = [agent.communicate(timeout=120)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], errors
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert sum(rank["excess"] for rank in told) > 0
    for rank in range(4):
        data = ShardDataset(numbers, columns=["__index__"])
        with DataLoader(data, rank=rank, world_size=4, nodes=2, **SETTINGS) as loader:
            assert [batch["__index__"].tolist() for batch in loader] == told[rank]["batches"]
            assert loader.stats().excess == told[rank]["excess"]
