"""Run as a program by the tests: forks readers of a shared cache, two at a time, and kills each at a random moment.

Usage: killed_readers.py DATA CACHE BUDGET KILLS. It forks because importing takes most of a second; it has no threads.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import traceback
from pathlib import Path

from forebay.cache import CacheConfig, open_store
from forebay.sharding import EpochOrder, StoredDataset, open_dataset


def read_for_ever(data: StoredDataset, config: CacheConfig, seed: int, told: int) -> None:
    order = EpochOrder(
        data.shard_rows, fingerprint=data.fingerprint, seed=seed, epoch=0, shuffle=True, window=1 + seed % 3
    )
    while True:
        store = open_store(data, config)
        store.follow(order)
        for span in order.spans():
            store.advance(span.first)
            with store.open_shard(span.shard) as reader, data.open_shard(span.shard) as origin:
                for row in range(reader.rows):
                    assert reader.read(row, "payload") == origin.read(row, "payload")
            os.write(told, b".")
        store.close()
        order = order.following()


def start(data: StoredDataset, config: CacheConfig, seed: int) -> tuple[int, int]:
    """Fork a reader; its process and the pipe on which it tells each shard that it has read."""
    hears, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(hears)
            read_for_ever(data, config, seed, told)
        except BaseException:  # noqa: BLE001 - the process ends here
            traceback.print_exc()  # what went wrong in a child is nowhere else to be seen
        finally:
            os._exit(1)
    os.close(told)
    return child, hears


def kill(child: int, hears: int, shards: int, pause_s: float) -> None:
    for _ in range(shards):
        if os.read(hears, 1) != b".":
            sys.exit("a reader ended by itself")
    select.select([], [], [], pause_s)  # the moment of the kill is what varies
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        sys.exit("a reader ended by itself")
    os.close(hears)


def main() -> None:
    folder, cache, budget, kills = sys.argv[1:]
    data, config = open_dataset(folder), CacheConfig(path=Path(cache), budget=int(budget), min_free=0)
    rng = random.Random(0)
    readers = [start(data, config, 0)]
    for number in range(1, int(kills)):
        readers.append(start(data, config, number))
        kill(*readers.pop(0), rng.randrange(12), rng.random() * 0.02)
    kill(*readers.pop(), 3, 0)


if __name__ == "__main__":
    main()
