"""Whether it pays to store decoded samples, by what was measured. It changes how long things take, never a pixel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Pace", "StoreChoice", "StoreDecision", "choose_storing"]

_ENOUGH_SAMPLES = 1024
"""Samples that training has received before it is judged whether it waits for them."""

_WAITS = 0.05
"""Training that waits less is not held up by decoding: storing would cost disk for nothing."""
_WORTH = 0.05
"""A smaller share of the data than this is not worth the disk and the writing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How fast batches are made and taken."""

    samples: int
    """That training has received."""
    stall_share: float
    """Of its time, what it waited for them: 0 to 1."""
    decode_per_s: float
    """Samples a second that the decoding threads make."""


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """Whether decoded samples are stored, and why, for people."""

    store: bool
    why: str


def choose_storing(pace: Pace, *, sample_nbytes: float, samples: int, room_nbytes: int) -> StoreChoice:
    """Choose by how long training waits, and how much of the data has room.

    Args:
        pace: measured.
        sample_nbytes: bytes of a decoded sample, on average.
        samples: of the data set.
        room_nbytes: bytes that the cache can still give, what is stored of this kind already included.
    """
    waits = f"training waits {pace.stall_share:.0%} of its time, {pace.decode_per_s:,.0f} samples/s are decoded"
    if pace.stall_share < _WAITS:
        return StoreChoice(False, f"not stored: {waits}, which is enough")
    share = min(1.0, room_nbytes / max(1.0, sample_nbytes * samples))
    if share < _WORTH:
        return StoreChoice(
            False,
            f"not stored: {waits}, but the cache has room for {share:.1%} of the decoded samples "
            f"({sample_nbytes * samples / 1e9:,.1f} GB); give it a larger budget",
        )
    return StoreChoice(True, f"stored: {waits}; the cache has room for {share:.0%} of the decoded samples")


class StoreDecision:
    """The choice of one loader, made once when enough is known, for all passes to come. One thread decides."""

    def __init__(self, pace: Callable[[], Pace]) -> None:
        self._pace = pace
        self._decided = False
        self.choice = StoreChoice(False, "not stored yet: how long training waits is still being measured")

    def is_due(self, seen: int) -> bool:
        """Whether it can be decided now, and was not; `seen` counts pictures that were decoded."""
        return not self._decided and seen > 0 and self._pace().samples >= _ENOUGH_SAMPLES

    def decide(self, *, sample_nbytes: float, samples: int, room_nbytes: int) -> None:
        """Decide; see `choose_storing`."""
        pace = self._pace()
        self.choice = choose_storing(pace, sample_nbytes=sample_nbytes, samples=samples, room_nbytes=room_nbytes)
        self._decided = True
