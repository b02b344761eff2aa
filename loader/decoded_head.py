"""The deterministic head of a program: the steps that make the same pixels of a picture in every epoch.

What the decoded cache keeps is their result. Which files keep it is told by `decoded_files.py`.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from forebay.loader.draws import NO_NUMBERS, Draws
from forebay.loader.geometry import Ints, Views
from forebay.loader.heads import Head, compile_head
from forebay.loader.kernel import native_version
from forebay.loader.outputs import OutputProgram
from forebay.loader.pixels import from_pixels
from forebay.loader.steps import Step

__all__ = ["DecodedHead", "decoder_versions"]

_NO_DRAWS = Draws((), np.empty(0, np.int64), np.empty(0, np.int64), ())
_LIBRARIES = ("simplejpeg", "pillow", "torch")


@dataclass(frozen=True, slots=True)
class DecodedHead:
    """How a program on one image column is divided. Thread-safe: it keeps nothing."""

    column: str
    steps: tuple[Step, ...]
    """The deterministic head: resizes and central crops; none where the picture is kept at its full size."""
    described: str
    """The head in words, equal for equal heads."""
    rest: Head | None
    """What the kernel can do of the steps after it; None when their size is not known."""

    @classmethod
    def of(cls, program: OutputProgram) -> DecodedHead | None:
        """The division of a program; None where it makes several outputs, or one of no image column."""
        if not program.is_image:
            return None
        count = 0
        while count < len(program.steps) and program.steps[count].described is not None:
            count += 1
        steps, size = program.steps[:count], None
        for step in steps:
            size = step.size_after(size)
        rest = compile_head(program.steps[count:], first=count, size=size)
        described = json.dumps([step.described for step in steps])
        return cls(program.columns[0], steps, described, rest)

    def views(self, heights: Ints, widths: Ints, samples: Ints) -> Views:
        """Where the pixels come from, in upright pictures of these sizes; unknown as of `Head.views`."""
        return Head(self.steps, (0, 0), torch.uint8, None).views(heights, widths, _NO_DRAWS, samples)

    def sizes(self, heights: Sequence[int], widths: Sequence[int]) -> list[tuple[int, int]]:
        """Height and width of the pixels of upright pictures; (0, 0) of a picture of no size."""
        return [
            self._size(height, width) if height and width else (0, 0)
            for height, width in zip(heights, widths, strict=True)
        ]

    def _size(self, height: int, width: int) -> tuple[int, int]:
        size: tuple[int, int] | None = (height, width)
        for step in self.steps:
            size = step.size_after(size)
        assert size is not None, "what is described knows its size"
        return size

    def run(self, picture: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Tensor:
        """The pixels (1, 3, H, W), over channels_last memory, of a decoded upright picture uint8 (H, W, 3).

        Raises:
            ValueError: the picture does not allow a step.
        """
        values: list[Tensor] = [from_pixels(picture)]
        for step in self.steps:
            values = step.run(values, (False,), NO_NUMBERS, None)
        return values[0]


def decoder_versions(*, native: bool) -> str:
    """What decodes and resizes, with versions: pixels of another are not taken for the same."""
    found = [f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES]
    return ", ".join([f"native kernel, {native_version()}" if native else "libraries", *found])
