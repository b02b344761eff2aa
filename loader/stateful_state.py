"""The state of a loader of any data set: how far the newest pass was delivered, and what its order is made again from.

Plain values that go through JSON, as long as the states of the user's own samplers and data sets do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from forebay.errors import StateError
from forebay.loader.state import check_layout
from forebay.loader.stateful_iterable import IterableState

__all__ = ["PassState"]

_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PassState:
    """Where a loader of any data set stands."""

    version: int = _VERSION
    """Of this layout."""
    kind: str
    """`map` or `iterable`."""
    epoch: int
    """The pass that goes on, counted from 0."""
    batches: int
    """Of this pass, all of them below this number were delivered."""
    beyond: list[int] = field(default_factory=list)
    """Numbers of batches beyond that were delivered, too, out of order."""
    generators: dict[str, Any]
    """State of those that the order is drawn from, where the pass began."""
    seed: int | None = None
    """Base seed of the pass, which draws for the places of bad samples; None: the pass has not begun."""
    seed_follows: bool | None = None
    """Whether the base seed was drawn before the first index; None: the pass has not begun."""
    sampler: dict[str, Any] | None = None
    """What the sampler and its iterator themselves say."""
    sampler_epochs: list[int | None] = field(default_factory=list)
    """Of the samplers, the one that the iterator asks first."""
    workers: list[list[Any]] | None = None
    """By worker, where it stands in an iterable data set."""
    next_worker: int = 0
    """The worker that makes the next batch of an iterable data set."""

    @classmethod
    def parse(cls, state: Any, *, kind: str, workers: int) -> PassState:
        """Read what `to_dict` wrote, perhaps by way of JSON.

        Args:
            state: what was saved.
            kind: of the data set that it is for.
            workers: of the loader; 0 and 1 stand for this process.

        Raises:
            StateError: not such a state, of a newer version, of another kind of data set, or of other workers.
        """
        names = {each.name for each in fields(cls)}
        check_layout(state, names, _VERSION)
        for name in ("epoch", "batches", "next_worker"):
            if type(state[name]) is not int or state[name] < 0:
                raise StateError(f"the loader state has {name}={state[name]!r}; a whole number from 0 is needed")
        if state["kind"] != kind:
            raise StateError(
                f"the loader state is of {state['kind']!r:.40} data, and this loader's data set is {kind}-style; load "
                "it into a loader of the data set that it was taken from"
            )
        parsed = cls(**{name: state[name] for name in names})
        if not isinstance(parsed.generators, Mapping) or not all(type(number) is int for number in parsed.beyond):
            raise StateError("the loader state's generators or beyond cannot be read; give it as it was saved")
        if not isinstance(parsed.sampler_epochs, list):
            raise StateError("the loader state's sampler_epochs cannot be read; give it as it was saved")
        if parsed.workers is not None:
            for worker in parsed.workers:
                IterableState.parse(worker)
            if len(parsed.workers) != workers:
                raise StateError(
                    f"the loader state is of {len(parsed.workers)} workers, each in its own part of an iterable data "
                    f"set, and this loader has {workers}; set num_workers={len(parsed.workers)}, or load it between "
                    "epochs"
                )
        return parsed

    def to_dict(self) -> dict[str, Any]:
        """The state as plain values."""
        return asdict(self)
