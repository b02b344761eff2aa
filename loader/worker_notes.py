"""What a worker tells beside each batch: how long it took, which samples were bad, and where its iterator stands.

It gathers; the loader decides what it means.
"""

from __future__ import annotations

import time
from typing import Any

from forebay.loader.stateful_iterable import ResumedIterable

__all__ = ["WorkerNotes"]


class WorkerNotes:
    """Notes of one worker on the batch in hand. One thread."""

    def __init__(self) -> None:
        self.bad: list[Any] = []
        """Samples of this batch that were replaced."""
        self.iterable: ResumedIterable | None = None
        """The data set, when it is iterable."""
        self._samples = 0
        self._waited_s = 0.0
        self._started = time.monotonic()

    def task_came(self, waited_s: float) -> None:
        """The worker has waited for a task, and begins with it."""
        self._waited_s += waited_s
        self._started = time.monotonic()

    def of_batch(self) -> dict[str, Any]:
        """The notes on the batch that was just made; the next ones begin."""
        notes: dict[str, Any] = {"busy_s": time.monotonic() - self._started, "wait_s": self._waited_s}
        if self.bad:
            notes["bad"] = self.bad.copy()
            self.bad.clear()  # the same list: the fetcher writes to it
        if self.iterable is not None:
            notes |= self.iterable.notes(self._samples)
            self._samples = self.iterable.samples
        self._waited_s = 0.0
        return notes
