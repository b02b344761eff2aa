"""Where a worker stands in an iterable data set: asked from the data set and its iterator, or counted.

What has neither a state of its own is read again up to the place, and what was read is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forebay.errors import StateError

__all__ = ["IterableState", "ResumedIterable", "has_state"]


@dataclass(frozen=True, slots=True)
class IterableState:
    """Where one worker stands. Its values are the user's; they must be plain for the state to be plain JSON."""

    samples: int = 0
    """Samples taken from the iterator."""
    dataset: Any = None
    """What the data set's `state_dict` said; None: it has none."""
    iterator: Any = None
    """What the iterator's `state_dict` said; None: it has none, or it is the data set itself."""
    ended: bool = False
    """Whether the iterator has said that it has no more."""

    @classmethod
    def parse(cls, state: Any) -> IterableState:
        """Read what `to_list` wrote.

        Raises:
            StateError: it is something else.
        """
        if not isinstance(state, (list, tuple)) or len(state) != 4 or type(state[0]) is not int or state[0] < 0:
            raise StateError(f"not the state of a worker: {state!r:.200}; give it as loader.state_dict() returned it")
        return cls(*state)

    def to_list(self) -> list[Any]:
        """The state as plain values."""
        return [self.samples, self.dataset, self.iterator, self.ended]


def has_state(thing: object) -> bool:
    """Whether something can tell its state and go on from it, by torchdata's convention."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


class ResumedIterable(Iterator[Any]):
    """An iterable data set that goes on where a state says, and tells where it stands. One thread.

    Args:
        dataset: the user's; `iter` is called on it once a pass.
        state: for the first pass; later ones begin at the start.
    """

    def __init__(self, dataset: Any, state: IterableState) -> None:
        self._dataset = dataset
        self._state = state
        self._pending = state
        self._iterator: Any = None
        self._ended = False
        self.samples = state.samples
        """Taken from the iterator."""

    def __iter__(self) -> ResumedIterable:
        self.prepare()
        return self.follow(iter(self._dataset))

    def prepare(self) -> None:
        """Give the data set its state, ahead of `iter`."""
        if self._pending.dataset is not None and has_state(self._dataset):
            self._dataset.load_state_dict(self._pending.dataset)

    def follow(self, iterator: Iterator[Any]) -> ResumedIterable:
        """Go on with the data set's iterator, which is at its start, where the state says."""
        state, self._pending = self._pending, IterableState()
        self.samples, self._ended = state.samples, state.ended
        self._iterator = iterator
        if state.iterator is not None and has_state(iterator):
            iterator.load_state_dict(state.iterator)  # type: ignore[attr-defined]
        elif state.dataset is None or not has_state(self._dataset):
            for _ in range(0 if state.ended else state.samples):
                next(iterator, None)
            return self
        if state.ended:  # it learns again that it has no more, and so begins anew when it is asked again
            next(iterator, None)
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        try:
            sample = next(self._iterator)
        except StopIteration:
            self._ended = True
            raise
        self.samples += 1
        return sample

    def notes(self, before: int) -> dict[str, Any]:
        """What goes with a batch that was begun at `before` samples: where it stands now, and how many it took."""
        return {"state": self.state_dict(), "samples": max(0, self.samples - before)}

    def state_dict(self) -> list[Any]:
        """Where it stands now, as `IterableState.to_list` gives it."""
        if self._iterator is None:
            return self._state.to_list()
        own = self._dataset.state_dict() if has_state(self._dataset) else None
        separate = self._iterator is not self._dataset and has_state(self._iterator)
        of_iterator = self._iterator.state_dict() if separate else None
        return IterableState(self.samples, own, of_iterator, self._ended).to_list()
