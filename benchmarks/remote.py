"""Measures a cold start over a slow link: time to the first batch, and an epoch's share of the link, with a cache.

The server is a process of its own on the loopback, which gives so many bytes a second and makes every request wait.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from forebay.benchmarks.machine import describe_machine
from forebay.benchmarks.range_server import RangeServer
from forebay.cache import CacheConfig
from forebay.errors import ConfigError
from forebay.loader import DataLoader, ShardDataset
from forebay.sharding import ShardWriter, StoredDataset, open_dataset

__all__ = ["RemoteReport", "RemoteRound", "RemoteWork", "StreamingRound", "measure_remote"]

WARM_EPOCHS = 5
STREAMING_WORKERS = (0, 2)
"""Worker processes that Streaming is measured with: torch's default, and one a core."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteWork:
    """What is read, and over which link."""

    nbytes: int = 1_000_000_000
    """Of all samples together."""
    sample_nbytes: int = 100_000
    """On average: samples differ by up to a fifth. 100 kB: a photograph of ImageNet."""
    shard_nbytes: int = 64 << 20
    """At which a shard is closed."""
    batch_size: int = 64
    """Samples a batch, shuffled."""
    rate: float = 100e6
    """Bytes a second that the link carries."""
    delay_s: float = 0.03
    """Between each request and the begin of its answer."""

    def __post_init__(self) -> None:
        if self.nbytes < self.sample_nbytes or self.sample_nbytes < 5 or self.rate <= 0 or self.delay_s < 0:
            raise ConfigError(f"{self}: give at least one sample of 5 bytes, a positive rate and a delay")


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteRound:
    """One cold epoch, the data set's opening included, and warm ones after it."""

    first_batch_s: float
    epoch_s: float
    link_share: float
    """Least time that the link takes for the data set's bytes, of `epoch_s`."""
    requested_share: float
    """Bytes of all requests, of the data set's."""
    requests: int
    warm_epoch_s: float
    """An epoch with all shards in the cache; the median of some in turn with local ones."""
    local_epoch_s: float
    """The same epoch from the folder that is served, read in place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamingRound:
    """One cold start of MosaicML Streaming, with its defaults."""

    workers: int
    """Processes of torch's DataLoader."""
    first_batch_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteReport:
    """All rounds."""

    work: RemoteWork
    nbytes: int
    """Of the data set's shards."""
    shards: int
    rounds: tuple[RemoteRound, ...]
    streaming: tuple[StreamingRound, ...]
    """Of MosaicML Streaming, in turn with ours; empty without it."""
    machine: dict[str, Any]

    @property
    def first_batch_ratio(self) -> float | None:
        """How many times sooner our first batch comes than Streaming's, its better number of workers taken; medians."""
        if not self.streaming:
            return None
        medians = [
            statistics.median(each.first_batch_s for each in self.streaming if each.workers == workers)
            for workers in STREAMING_WORKERS
        ]
        return min(medians) / self.median("first_batch_s")

    @property
    def warm_ratio(self) -> float:
        """How fast a warm epoch is beside a local one; the median of the rounds."""
        return statistics.median(each.local_epoch_s / each.warm_epoch_s for each in self.rounds)

    def median(self, name: str) -> float:
        """Of one of the rounds' numbers."""
        middle: float = statistics.median(getattr(each, name) for each in self.rounds)
        return middle

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"first_batch_ratio": self.first_batch_ratio, "warm_ratio": self.warm_ratio}


def measure_remote(
    work: RemoteWork, *, rounds: int = 3, folder: Path | None = None, streaming: Path | None = None
) -> RemoteReport:
    """Write a data set of random bytes, serve it, and read cold epochs of it through an empty cache.

    Args:
        work: what and how.
        rounds: epochs, each with a cache of its own.
        folder: on a local disk, for data set and cache; a temporary one when None. Takes twice the data set, four times
            with `streaming`.
        streaming: the Python of an environment with mosaicml-streaming, to measure its first batch of the same samples.

    Raises:
        ConfigError: that environment cannot do it.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="forebay-bench-") as temporary:
        place = Path(temporary)
        served = place / "served"
        _write(served / "shards", work)
        data = open_dataset(served / "shards")
        peer = None if streaming is None else _StreamingPeer(streaming, data, served / "mds", work)
        ours, theirs = [], []
        with _serving(served, work) as url:
            for i in range(rounds):
                ours.append(_round(f"{url}/shards", served / "shards", place / f"cache{i}", data.manifest.nbytes, work))
                if peer is not None:
                    theirs += [peer.first_batch(url, workers) for workers in STREAMING_WORKERS]
        return RemoteReport(
            work=work,
            nbytes=data.manifest.nbytes,
            shards=data.num_shards,
            rounds=tuple(ours),
            streaming=tuple(theirs),
            machine=describe_machine(),
        )


class _StreamingPeer:
    """MosaicML Streaming under a Python of its own; writes the same samples as MDS first."""

    def __init__(self, python: Path, data: StoredDataset, out: Path, work: RemoteWork) -> None:
        self._python, self._work, self._out = python, work, out
        with tempfile.TemporaryDirectory(dir=out.parent.parent, prefix="samples-") as temporary:
            payloads, lengths = Path(temporary, "payloads"), Path(temporary, "lengths.npy")
            with payloads.open("wb") as file:
                nbytes = [file.write(each) for each in _payloads(data)]
            np.save(lengths, np.array(nbytes, np.int64))
            self._run("write", payloads, lengths, out, work.shard_nbytes)

    def first_batch(self, url: str, workers: int) -> StreamingRound:
        bucket = f"s3://{self._out.name}"
        with tempfile.TemporaryDirectory(dir=self._out.parent.parent, prefix="local-") as local:
            done = self._run("read", bucket, local, self._work.batch_size, workers, endpoint=url)
        if done["samples"] != self._work.batch_size:
            raise ConfigError(f"Streaming's first batch has {done['samples']} samples, not {self._work.batch_size}")
        return StreamingRound(workers=workers, first_batch_s=done["first_batch_s"])

    def _run(self, *arguments: object, endpoint: str = "") -> Any:
        script = Path(__file__).with_name("streaming_peer.py")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))}
        environment |= {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_REGION": "us-east-1"}
        command = [str(self._python), str(script), *map(str, arguments)]
        try:
            done = subprocess.run(
                command, env=environment | {"S3_ENDPOINT_URL": endpoint}, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise ConfigError(f"{self._python} cannot be run: {error}") from error
        if done.returncode:
            raise ConfigError(
                f"{self._python} ended with {done.returncode}; it needs mosaicml-streaming, torch and torchvision. It "
                f"said: {done.stderr[-2000:]}"
            )
        return json.loads(done.stdout.splitlines()[-1])


def _payloads(data: StoredDataset) -> Iterator[memoryview]:
    for shard in range(data.num_shards):
        with data.open_shard(shard) as reader:
            for row in range(reader.rows):
                yield reader.read(row, "payload")


def _write(path: Path, work: RemoteWork) -> None:
    chance = random.Random(0)
    with ShardWriter(path, {"payload": "bytes", "label": "int64"}, shard_nbytes=work.shard_nbytes) as writer:
        for label in range(work.nbytes // work.sample_nbytes):
            nbytes = chance.randint(work.sample_nbytes * 4 // 5, work.sample_nbytes * 6 // 5)
            writer.write({"payload": chance.randbytes(nbytes), "label": label})


@contextmanager
def _serving(folder: Path, work: RemoteWork) -> Iterator[str]:
    """Another process that serves the folder."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(folder, work, theirs))
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.join()


def _serve(folder: Path, work: RemoteWork, pipe: Connection) -> None:
    with RangeServer(folder, rate=work.rate, delay_s=work.delay_s) as server:
        server.load()
        pipe.send(server.url)
        pipe.poll(None)  # until the other end is closed


def _round(url: str, folder: Path, cache: Path, nbytes: int, work: RemoteWork) -> RemoteRound:
    begin = perf_counter()
    dataset = ShardDataset(url, cache=CacheConfig(path=cache, budget=4 * nbytes))
    loader = _loader(dataset, work)
    first = 0.0
    for number, _ in enumerate(loader):
        if number == 0:
            first = perf_counter() - begin
    epoch = perf_counter() - begin
    counts = loader.stats().cache
    local = _loader(ShardDataset(folder, cache=""), work)
    epochs = [(_epoch_s(local), _epoch_s(loader)) for _ in range(WARM_EPOCHS)]
    shutil.rmtree(cache)
    return RemoteRound(
        first_batch_s=first,
        epoch_s=epoch,
        link_share=nbytes / work.rate / epoch,
        requested_share=counts["requested_nbytes"] / nbytes,
        requests=int(counts["requests"]),
        warm_epoch_s=statistics.median(warm for _, warm in epochs),
        local_epoch_s=statistics.median(near for near, _ in epochs),
    )


def _loader(dataset: ShardDataset, work: RemoteWork) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=work.batch_size, shuffle=True, num_workers=1)


def _epoch_s(loader: DataLoader[Any]) -> float:
    begin = perf_counter()
    for _ in loader:
        pass
    return perf_counter() - begin
