"""Run as a program by the tests: reads a data set through a cache, epoch after epoch, and checks every byte.

Usage: reading_process.py DATA CACHE BUDGET SEED EPOCHS. Writes `ready`, a line per shard read, then the counts as JSON.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forebay.cache import CacheConfig, ShardStore, open_store
from forebay.sharding import ShardSpan, StoredDataset, open_dataset


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def read_epoch(store: ShardStore, data: StoredDataset, order: list[int]) -> None:
    ends = np.cumsum(data.shard_rows[order])
    last = dict(zip(order, ends.tolist(), strict=True))
    first = dict(zip(order, (ends - data.shard_rows[order]).tolist(), strict=True))

    def spans() -> Iterator[ShardSpan]:
        for shard in order:
            yield ShardSpan(shard, first[shard], last[shard])

    def next_use(shards: npt.NDArray[np.int64], position: int) -> npt.NDArray[np.int64]:
        uses = [max(first[s], position) if position < last[s] else data.rows for s in shards.tolist()]
        return np.array(uses, np.int64)

    store.follow(spans(), next_use)
    for shard in order:
        store.advance(first[shard])
        with store.open_shard(shard) as reader, data.open_shard(shard) as origin:
            for row in range(reader.rows):
                assert reader.read(row, "payload") == origin.read(row, "payload")
        say(shard)


def main() -> None:
    folder, cache, budget, seed, epochs = sys.argv[1:]
    data = open_dataset(folder)
    rng = random.Random(seed)
    say("ready")
    store = open_store(data, CacheConfig(path=Path(cache), budget=int(budget)))
    try:
        for _ in range(int(epochs)):
            read_epoch(store, data, rng.sample(range(data.num_shards), data.num_shards))
        say(json.dumps(store.stats()))
    finally:
        store.close()


if __name__ == "__main__":
    main()
