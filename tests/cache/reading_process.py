"""Run as a program by the tests: reads a data set through a cache, epoch after epoch, and checks every byte.

Usage: reading_process.py DATA_OR_URL CACHE BUDGET SEED EPOCHS. Writes `ready`, a line per shard read, then the counts
as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from forebay.cache import CacheConfig, ShardStore, open_place, open_store
from forebay.sharding import EpochOrder, StoredDataset


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def read_epoch(store: ShardStore, data: StoredDataset, order: EpochOrder) -> None:
    store.follow(order)
    for span in order.spans():
        store.advance(span.first)
        with store.open_shard(span.shard) as reader, data.open_shard(span.shard) as origin:
            for row in range(reader.rows):
                assert reader.read(row, "payload") == origin.read(row, "payload")
        say(span.shard)


def main() -> None:
    folder, cache, budget, seed, epochs = sys.argv[1:]
    data = open_place(folder)
    say("ready")
    store = open_store(data, CacheConfig(path=Path(cache), budget=int(budget)))
    try:
        for epoch in range(int(epochs)):
            order = EpochOrder(
                data.shard_rows,
                fingerprint=data.fingerprint,
                seed=int(seed),
                epoch=epoch,
                shuffle=True,
                window=1,
            )
            read_epoch(store, data, order)
        say(json.dumps(store.stats()))
    finally:
        store.close()


if __name__ == "__main__":
    main()
