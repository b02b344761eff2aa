"""Real processes on one cache of a data set behind a web server, one of them killed."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from forebay.benchmarks.range_server import RangeServer
from forebay.cache import CacheConfig, open_place, open_store
from forebay.sharding import StoredDataset
from tests.cache.remote import check_shard
from tests.cache.test_processes import Watch, line_of, reading

MakeDataset = Callable[..., StoredDataset]


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    """What it has yet to say, until it ends well."""
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    assert process.wait() == 0
    return lines


def test_processes_share_a_small_cache_and_the_death_of_one_costs_nothing(
    tmp_path: Path, make_dataset: MakeDataset
) -> None:
    local = make_dataset(shards=8, rows=6, nbytes=4000)
    cache, budget = tmp_path / "cache", int(3.2 * local.shard_nbytes.max())
    with RangeServer(tmp_path, delay_s=0.001) as server, ExitStack() as running:
        data = open_place(f"{server.url}/data")
        processes = [running.enter_context(reading(data, cache, budget, seed=i, epochs=3)) for i in range(3)]
        for process in processes:
            assert line_of(process) == "ready"
        with Watch(cache) as watch:
            for _ in range(random.Random(5).randrange(1, 8)):
                line_of(processes[0])
            processes[0].kill()
            told = [lines_of(process) for process in processes[1:]]
        for lines in told:
            assert len(lines) == 3 * local.num_shards + 1, "every shard of every epoch, then the counts"
            assert json.loads(lines[-1])["hits"] > 0
        assert 0 < watch.largest <= budget
        store = open_store(data, CacheConfig(path=cache, budget=budget))
        assert not list(cache.glob("*/*.part")), "what the dead one left was removed"
        for shard in range(local.num_shards):
            check_shard(store.open_shard(shard), local, shard)
        store.close()
