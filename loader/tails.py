"""The last steps of an output, where they change single values: done to whole batches, on the device of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from forebay.loader.draws import NO_NUMBERS
from forebay.loader.outputs import OutputProgram, TensorSpec
from forebay.loader.steps import Step

__all__ = ["Tail", "split_tails"]


@dataclass(frozen=True, slots=True)
class Tail:
    """Pointwise steps of one output. Thread-safe: it keeps nothing."""

    steps: tuple[Step, ...]
    spec: TensorSpec
    """Of a sample after them."""

    def run(self, batch: Tensor, out: Tensor | None = None) -> Tensor:
        """Do them to a batch (N, 3, H, W), which is not changed.

        Args:
            batch: on any device.
            out: where the result goes, of the spec; new memory of the batch's device when None.
        """
        values = [batch]
        for step in self.steps:
            values = step.run(
                values, (False,), NO_NUMBERS, None if out is None or step is not self.steps[-1] else [out]
            )
        if out is None:
            return values[0]
        if values[0].data_ptr() != out.data_ptr():
            out.copy_(values[0])
        return out


def split_tails(programs: Sequence[OutputProgram]) -> tuple[list[OutputProgram], list[Tail | None]]:
    """The programs without their last pointwise steps, and these; None where a program has none, or no sure size."""
    heads: list[OutputProgram] = []
    tails: list[Tail | None] = []
    for program in programs:
        before, steps = program.split_pointwise()
        heads.append(before)
        tails.append(Tail(steps, program.specs[0]) if steps and program.specs[0] is not None else None)
    return heads, tails
