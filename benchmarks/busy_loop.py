"""Things that make a loader's life hard: a training loop that keeps the GIL busy, and samples that take much longer."""

from __future__ import annotations

import threading
import time
from typing import Self

import numpy as np
from torch import Tensor

__all__ = ["BusyLoop", "SlowSamples"]

_STEP_S = 0.005
"""Python's switch interval: what a thread that waits for the GIL has to wait before it may ask for it."""


class BusyLoop:
    """A training loop in pure Python that computes for 5 ms, sleeps for 5 ms, and so on, beside what `with` encloses.

    It is a thread of its own, so that the loader's batches are taken as soon as they are ready and the loader alone
    sets the pace. It computes by its own CPU clock: waiting for the GIL is no work.
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._computed_s = 0.0
        self._lived_s = 0.0
        self._thread = threading.Thread(target=self._run, name="forebay-bench-busy-loop")

    @property
    def share(self) -> float:
        """The share of time that it computed: a half, less what it waited for the GIL."""
        return self._computed_s / self._lived_s if self._lived_s else 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        started = time.monotonic()
        while not self._over.wait(_STEP_S):
            begun = time.thread_time()
            number = 0
            while time.thread_time() - begun < _STEP_S:
                for _ in range(200):
                    number = (number * 31 + 7) % 65_537
            self._computed_s += time.thread_time() - begun
        self._lived_s = time.monotonic() - started


class SlowSamples:
    """A transform that gives back what it gets, and for a random share of the samples sleeps first. Thread-safe.

    Args:
        share: of the samples, 0 to 1; which ones belongs to the sample, as all its random numbers do.
        sleep_s: how long each of them sleeps.
    """

    def __init__(self, *, share: float, sleep_s: float) -> None:
        self._share = share
        self._sleep_s = sleep_s
        self._lock = threading.Lock()
        self._slept_s = 0.0

    def __call__(self, pixels: Tensor, rng: np.random.Generator) -> Tensor:
        """Give back `pixels`, perhaps late."""
        if rng.random() < self._share:
            started = time.monotonic()
            time.sleep(self._sleep_s)
            with self._lock:
                self._slept_s += time.monotonic() - started
        return pixels

    def take_slept_s(self) -> float:
        """Seconds slept since the last question, over all threads: a sleep takes a little longer than it was told."""
        with self._lock:
            slept_s, self._slept_s = self._slept_s, 0.0
        return slept_s
