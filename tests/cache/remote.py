"""A data set behind a web server on the loopback, for the tests of remote reading."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from forebay.benchmarks.range_server import Fault, Request
from forebay.cache import RemoteConfig
from forebay.sharding import ShardReader, StoredDataset

QUICK = RemoteConfig(retry_limit_s=30, hedge_s=0.2, silence_s=5, piece_nbytes=3000, ahead_nbytes=9000, merge_nbytes=500)
"""Small pieces for small shards."""
IMPATIENT = replace(QUICK, retry_limit_s=0.3)


def one_in(number: int, *faults: Fault) -> Callable[[Request], Fault | None]:
    """Every so many requests of shards one fault, in turn."""
    seen = [0]

    def fault(request: Request) -> Fault | None:
        if "000" not in request.path:
            return None
        seen[0] += 1
        turn, rest = divmod(seen[0], number)
        return None if rest else faults[turn % len(faults)]

    return fault


def check_rows(reader: ShardReader, origin: ShardReader, rows: Sequence[int]) -> None:
    """Every column of these rows is as in the folder."""
    for row in rows:
        assert reader.read(row, "payload") == origin.read(row, "payload")
        assert reader.value(row, "number") == origin.value(row, "number")


def check_shard(reader: ShardReader, local: StoredDataset, shard: int) -> None:
    """A whole shard is as in the folder; closes the reader."""
    with reader, local.open_shard(shard) as origin:
        assert reader.rows == origin.rows
        check_rows(reader, origin, range(origin.rows))


@contextmanager
def told(message: str, times: int = 1, logger: str = "forebay.cache") -> Iterator[threading.Event]:
    """An event that is set when a log line with `message` has come so often."""
    event = threading.Event()
    left = [times]

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if message in record.getMessage():
                left[0] -= 1
                if left[0] <= 0:
                    event.set()

    listener, log = Listener(logging.DEBUG), logging.getLogger(logger)
    before = log.level
    log.addHandler(listener)
    log.setLevel(logging.DEBUG)
    try:
        yield event
    finally:
        log.removeHandler(listener)
        log.setLevel(before)
