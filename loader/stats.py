"""Where the loader's time goes: seconds and samples by stage, and how long the training loop was kept waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from forebay.loader.bad_samples import BadSample, BadSampleLog
from forebay.loader.decoded_choice import Pace, StoreDecision

__all__ = ["LoaderStats", "Meter", "StageClock", "StageStats"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStats:
    """One stage of the pipeline."""

    busy_s: float
    """Seconds of work, summed over the stage's threads, the wait for the GIL included."""
    samples: int
    """Samples that went through."""
    threads: int
    """Threads that the stage has."""

    @property
    def samples_per_s(self) -> float:
        """What the stage could deliver if it never waited for its neighbours."""
        return self.samples * self.threads / self.busy_s if self.busy_s else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderStats:
    """What `loader.stats()` tells, since the loader was made or `reset_stats()`."""

    samples: int
    """Samples delivered to this rank."""
    batches: int
    """Batches delivered to this rank."""
    seconds: float
    """From the first `next()` to the last return of one, pauses between epochs left out."""
    stall_s: float
    """Of these, seconds that `next()` kept the training loop waiting."""
    read_nbytes: int
    """Encoded bytes taken from shards; of a crop-addressable JPEG, its header and the bands that the crop needs."""
    unread_nbytes: int = 0
    """Bytes that `only` saved: the delivered samples' mean share of their shards' files, less what was read of them. 0
    where nothing was left out."""
    excess: int = 0
    """Samples delivered to this rank that are of shards of another node, read one by one past the cache."""
    stages: Mapping[str, StageStats]
    """`read`, `decode` and `collate`; the one with the fewest samples a second sets the pace."""
    cache: Mapping[str, int | float]
    """Hits, misses, bytes fetched and the like of the shard store."""
    decoder: str
    """Which decoder made the images, and why that one."""
    decoding: Mapping[str, int]
    """With DALI: images that were left to the `careful` decoders, those `refused` because DALI failed on them, and
    `rebuilds` of its pipeline; else empty."""
    bad_count: int
    """Bad samples that were replaced."""
    bad: tuple[BadSample, ...] = field(default=())
    """Each of them once, with its reason."""
    decoded: Mapping[str, int | str] = field(default_factory=dict)
    """With a decoded cache: samples that were `hits` and `misses` in it, `stored` and `stored_nbytes`, hits that were
    `damaged`, `files` that were begun, and as `choice` whether samples are stored, and why; else empty."""

    @property
    def samples_per_s(self) -> float:
        """Samples a second as the training loop saw them."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def stall_share(self) -> float:
        """The share of time that training waited for data, 0 to 1."""
        return self.stall_s / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, the derived figures included."""
        values = asdict(self)
        values["samples_per_s"] = self.samples_per_s
        values["stall_share"] = self.stall_share
        for name, stage in self.stages.items():
            values["stages"][name]["samples_per_s"] = stage.samples_per_s
        return values

    def __str__(self) -> str:
        stages = ", ".join(f"{name} {stage.samples_per_s:,.0f}/s" for name, stage in self.stages.items())
        return (
            f"{self.samples:,} samples in {self.seconds:.1f} s ({self.samples_per_s:,.0f}/s), training waited "
            f"{self.stall_share:.1%} of the time; stages alone: {stages}; {self.bad_count} bad samples"
        )


class StageClock:
    """Adds up the work of one stage's threads. Thread-safe."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.samples = 0
        self._lock = threading.Lock()
        self._inside, self._since = 0, 0.0

    @contextmanager
    def work_together(self, threads: int) -> Iterator[None]:
        """Time bodies that share so many threads: where they overlap, the time counts once."""
        with self._lock:
            if not self._inside:
                self._since = time.monotonic()
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                now = time.monotonic()
                self.busy_s += (now - self._since) * threads
                self._since = now
                self._inside -= 1

    @contextmanager
    def work(self, samples: int) -> Iterator[None]:
        """Time the body, which handles `samples`."""
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        with self._lock:
            self.busy_s += seconds
            self.samples += samples

    def add(self, *, samples: int, busy_s: float = 0.0) -> None:
        """Count samples, and seconds of work that were measured elsewhere."""
        with self._lock:
            self.busy_s += busy_s
            self.samples += samples

    def stats(self, threads: int) -> StageStats:
        """What was measured so far."""
        return StageStats(busy_s=self.busy_s, samples=self.samples, threads=threads)


class Meter:
    """Counts for one loader, over its passes. The engine's threads write the clocks, the training loop the rest."""

    def __init__(
        self,
        *,
        threads: int,
        max_bad: float | None,
        decoder: str,
        decoding: Callable[[], Mapping[str, int]] = dict,
        readers: int = 1,
    ) -> None:
        self.read = StageClock()
        self.decode = StageClock()
        self.collate = StageClock()
        self.bad = BadSampleLog(max_bad)
        self.read_nbytes = 0
        self.decoder = decoder
        self.decoding = decoding
        self._store_before: dict[str, int | float] = {}  # of the passes that were closed
        self._store_now: dict[str, int | float] = {}
        self._decoded_before: dict[str, int | str] = {}
        self._decoded_now: dict[str, int | str] = {}
        self.storing = StoreDecision(self.pace)
        self.threads = threads
        self.readers = readers
        self._samples = 0
        self._excess = 0
        self._unread_nbytes = 0.0
        self._batches = 0
        self._seconds = 0.0
        self._stall_s = 0.0

    def count_store(self, counts: Mapping[str, int | float], *, closed: bool) -> None:
        """Take what the store of a pass has counted so far; the counts of a closed one are kept and added to."""
        self._store_now = dict(counts)
        if closed:
            self._store_before, self._store_now = self._store(), {}

    def _store(self) -> dict[str, int | float]:
        names = {**self._store_before, **self._store_now}
        return {name: self._store_before.get(name, 0) + self._store_now.get(name, 0) for name in names}

    def count_decoded(self, counts: Mapping[str, int | str], *, closed: bool) -> None:
        """Take what the decoded cache of a pass has done so far, as `count_store`."""
        self._decoded_now = dict(counts)
        if closed:
            self._decoded_before, self._decoded_now = self._decoded(), {}

    def _decoded(self) -> dict[str, int | str]:
        total = {**self._decoded_before, **self._decoded_now}
        for name, before in self._decoded_before.items():
            now = self._decoded_now.get(name, 0)
            if isinstance(before, int) and isinstance(now, int):
                total[name] = before + now
        return total

    def pace(self) -> Pace:
        """How fast batches are made and taken."""
        waited = self._stall_s / self._seconds if self._seconds else 0.0
        decode = self.decode.stats(self.threads)
        return Pace(samples=self._samples, stall_share=waited, decode_per_s=decode.samples_per_s)

    def delivered(
        self, samples: int, *, stall_s: float, seconds: float, excess: int = 0, unread_nbytes: float = 0.0
    ) -> None:
        """Count one batch that the training loop received."""
        self._samples += samples
        self._excess += excess
        self._unread_nbytes += unread_nbytes
        self._batches += 1
        self._stall_s += stall_s
        self._seconds += seconds

    def stats(self) -> LoaderStats:
        """Everything so far."""
        return LoaderStats(
            samples=self._samples,
            batches=self._batches,
            seconds=self._seconds,
            stall_s=self._stall_s,
            read_nbytes=self.read_nbytes,
            unread_nbytes=round(self._unread_nbytes),
            excess=self._excess,
            stages={
                "read": self.read.stats(self.readers),
                "decode": self.decode.stats(self.threads),
                "collate": self.collate.stats(self.readers),
            },
            cache=self._store(),
            decoder=self.decoder,
            decoding=self.decoding(),
            decoded=self._decoded(),
            bad_count=self.bad.count,
            bad=self.bad.listed(),
        )
