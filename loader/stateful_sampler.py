"""The indices of one pass as torch's iterator asks for them: from where a state says, and with the state there.

A sampler that keeps its own state is asked for it after each batch; of any other, the first indices are skipped.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.loader.stateful_generators import Generators, sampler_epochs
from forebay.loader.stateful_iterable import has_state

__all__ = ["PassSampler", "PassStart", "Progress"]


class Progress:
    """Which batches of a pass the user has received: all below a number, and some beyond it.

    Args:
        batches: all below this number were received before.
        beyond: numbers that were received before, too, out of order.
    """

    def __init__(self, batches: int = 0, beyond: Iterable[int] = ()) -> None:
        self.batches = batches
        self.beyond = set(beyond)
        self._start = batches
        self._skipped = sorted(self.beyond)

    def number(self, task: int) -> int:
        """The number in the pass of the batch that is the `task`-th to be made since it was resumed."""
        number = self._start + task
        for skipped in self._skipped:
            number += skipped <= number
        return number

    def delivered(self, task: int) -> None:
        """The user receives the batch of `task`."""
        number = self.number(task)
        if number != self.batches or self.beyond:
            self.beyond.add(number)
            while self.batches in self.beyond:
                self.beyond.remove(self.batches)
                self.batches += 1
        else:
            self.batches += 1


@dataclass(frozen=True, slots=True)
class PassStart:
    """What the order of a pass is made again from."""

    taken: Mapping[str, Any]
    """State of the generators when the sampler was asked."""
    seed_follows: bool
    """Whether the base seed was drawn before the first index."""
    epochs: Sequence[int | None] = ()
    """That the samplers had."""


class PassSampler:
    """Stands in for a loader's index sampler, for one pass after the other. One thread.

    torch asks the sampler for an iterator once or twice and draws the base seed before, between or after; the sampler
    draws its order then or with the first index. So a pass is made again from the generators' state at the call whose
    iterator is used, whatever kind of iterator torch had and has.

    Args:
        chain: the index sampler, and the sampler in it.
        generators: that they draw from.
    """

    passed_over: Callable[[Any], None] | None = None
    """Called with each batch of indices that is skipped, since it was received before."""

    def __init__(self, chain: Sequence[Any], generators: Generators) -> None:
        self._chain = chain
        self._sampler = chain[0]
        self._stateful = next((sampler for sampler in chain if has_state(sampler)), None)
        self._generators = generators
        self._drawn: dict[int, Any] = {}
        self.begin(Progress())

    def begin(self, progress: Progress, state: Any = None, *, start: PassStart | None = None) -> None:
        """Make the next `iter` go on behind `progress`.

        Args:
            progress: what was received already.
            state: what `state_at` gave there; None: the batches received are skipped.
            start: of the pass that goes on; None: it is a new one.
        """
        self._first = progress.batches
        self._skip = set(progress.beyond)
        self._state = state
        self._drawn = {} if state is None else {progress.batches: state}
        self._start = start
        self._epochs: Sequence[int | None] | None = None if start is None else start.epochs
        self.taken: Mapping[str, Any] = {} if start is None else start.taken
        """State of the generators where this pass began."""
        self.seed_follows = False if start is None else start.seed_follows
        """Whether torch draws the base seed between the sampler's `iter` and its first index."""

    def expect_seed(self) -> None:
        """The iterator that begins a new pass draws its base seed behind `iter`."""
        if self._start is None:
            self.seed_follows = True

    def state_at(self, batches: int) -> Any:
        """The sampler's own state after so many batches, that the user may still ask for; None: it has none.

        States before that are forgotten.
        """
        for number in [number for number in self._drawn if number < batches]:
            del self._drawn[number]
        return self._drawn.get(batches)

    def epochs(self) -> list[int | None]:
        """Of the samplers, as this pass is drawn with: they may be told after `iter`, before the first index."""
        return list(sampler_epochs(self._chain) if self._epochs is None else self._epochs)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        if self._start is None:
            self.taken = self._generators.take()
        else:
            self._generators.put(self._start.taken)
            for sampler, epoch in zip(self._chain, self._start.epochs, strict=False):
                if epoch is not None and hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(epoch)
        state = self._state
        if state is not None and state.get("sampler") is not None and self._stateful is not None:
            self._stateful.load_state_dict(state["sampler"])
        indices: Any = iter(self._sampler)
        if state is not None and state.get("iterator") is not None and has_state(indices):
            indices.load_state_dict(state["iterator"])
        asked = None if self._start is None else self._generators.take()
        return self._from_place(indices, asked, skip=self._first if state is None else 0)

    def _from_place(self, indices: Iterator[Any], asked: Mapping[str, Any] | None, *, skip: int) -> Iterator[Any]:
        if asked is not None:
            self._generators.put(asked)
            if self.seed_follows:
                self._generators.draw_base_seed()
        self._epochs = self.epochs()
        for _ in range(skip):
            skipped = next(indices, self)
            if skipped is self:
                return
            if self.passed_over is not None:
                self.passed_over(skipped)
        number, of_iterator = self._first, has_state(indices)
        for batch in indices:
            number += 1
            if self._stateful is not None or of_iterator:
                self._drawn[number] = {
                    "sampler": None if self._stateful is None else copy.deepcopy(self._stateful.state_dict()),
                    "iterator": copy.deepcopy(indices.state_dict()) if of_iterator else None,  # type: ignore[attr-defined]
                }
            if number - 1 not in self._skip:
                yield batch
