"""Counts of decoded samples for one pass: what was found stored, what was decoded, what was stored. Thread-safe."""

from __future__ import annotations

import threading

__all__ = ["DecodedCounts"]


class DecodedCounts:
    """Counts by name, all from 0.

    `hits`: samples that were found stored; `misses`: the others; `stored`, `stored_nbytes`: those of them that were
    stored; `damaged`: hits that were not as they were written, and were decoded; `files`: files that were begun.
    """

    def __init__(self) -> None:
        self._counts = dict.fromkeys(("hits", "misses", "stored", "stored_nbytes", "damaged", "files"), 0)
        self._lock = threading.Lock()
        self.seen = self._seen_nbytes = 0

    def see(self, samples: int, nbytes: int) -> None:
        """Count the decoded pixels of some samples, whether they are stored or not."""
        with self._lock:
            self.seen, self._seen_nbytes = self.seen + samples, self._seen_nbytes + nbytes

    @property
    def mean_nbytes(self) -> float:
        """Bytes of the decoded pixels of a sample, on average over those that were seen."""
        return self._seen_nbytes / max(1, self.seen)

    def add(self, **counts: int) -> None:
        """Count more, by name."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def to_dict(self) -> dict[str, int]:
        """All counts so far."""
        with self._lock:
            return dict(self._counts)
