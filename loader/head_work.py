"""What the heads of one batch have to do: which window of which bytes becomes which place of the batch.

The reader asks it which rows of a picture are needed and gives it what it read; the kernel runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from forebay.loader.draws import Draws
from forebay.loader.encoded import JpegPart
from forebay.loader.geometry import View, stored_window
from forebay.loader.heads import Head
from forebay.loader.kernel import NO_JOB, Gate, decode_batch, find_frame, make_job
from forebay.loader.outputs import OutputProgram
from forebay.sharding import JpegLayout, read_header

__all__ = ["BatchHeads", "HeadRules"]

MOST_USERS = 2
"""Outputs of one column that are decoded each by itself; more of them share one decode of the whole picture."""


class HeadRules:
    """Which programs of a data set have a head that is decoded apart, the same for all batches.

    Args:
        programs: all of them.
        orientation: whether EXIF orientation is applied.
        max_pixels: pictures that claim more are left to the careful decoder, which refuses them.
        native: whether the kernel does the work; else a window is only read, and decoded by the libraries.
    """

    def __init__(self, programs: Sequence[OutputProgram], *, orientation: str, max_pixels: int, native: bool) -> None:
        self.upright = orientation == "apply"
        self.max_pixels = max_pixels
        self.native = native
        users = [name for program in programs for name in program.columns]
        headless = {name for program in programs if program.head is None for name in program.columns}
        self.heads: list[Head | None] = [
            program.head
            if program.head is not None
            and program.columns[0] not in headless
            and users.count(program.columns[0]) <= MOST_USERS
            else None
            for program in programs
        ]
        self.columns = {
            name: [p for p, program in enumerate(programs) if program.columns[0] == name]
            for name in users
            if name not in headless and users.count(name) <= MOST_USERS
        }
        """By image column, the programs that it is decoded for."""


class BatchHeads:
    """The heads of one batch. One thread reads for it, then one runs it; afterwards any may look at what is done.

    Args:
        rules: of the data set.
        draws: by program.
        count: samples of the batch.
        outs: by program with a head, where its pixels go: (count, 3, H, W) in channels_last memory.
    """

    def __init__(self, rules: HeadRules, draws: Sequence[Draws], count: int, outs: Sequence[Tensor | None]) -> None:
        self._rules = rules
        self._draws = draws
        self._outs = outs
        self._views: list[list[View | None]] = [[None] * count for _ in outs]
        self._done: list[npt.NDArray[np.bool_]] = [np.zeros(count, np.bool_) for _ in outs]
        self._jobs: list[list[tuple[int, ...]]] = [[NO_JOB] * count for _ in outs]
        self._heads: list[list[memoryview | None]] = [[None] * count for _ in outs]
        self._bodies: list[list[memoryview | None]] = [[None] * count for _ in outs]

    def rows(self, i: int, column: str, layout: JpegLayout) -> tuple[int, int] | None:
        """Which rows of pixels, as stored, sample `i` needs of a picture: first and number; None for the whole file."""
        turned = layout.orientation if self._rules.upright else 1
        upright = (layout.width, layout.height) if turned >= 5 else (layout.height, layout.width)
        first, end = layout.height, 0
        for p in self._rules.columns.get(column, ()):
            view = self._view(p, i, *upright)
            if view is None:
                return None
            window = view.source() if self._rules.native else view[:4]
            top, _, height, _ = stored_window(window, height=layout.height, width=layout.width, orientation=turned)
            first, end = min(first, top), max(end, top + height)
        return (first, end - first) if end else None

    def _view(self, p: int, i: int, height: int, width: int) -> View | None:
        head = self._rules.heads[p]
        view = None if head is None else head.view(height, width, self._draws[p], i)
        self._views[p][i] = view
        return view

    def add(self, i: int, raw: dict[str, Any]) -> None:
        """Take what was read for sample `i`, as work for the kernel."""
        if not self._rules.native:
            return
        for column, programs in self._rules.columns.items():
            value = raw[column]
            if isinstance(value, JpegPart):
                self._add_part(i, value, programs)
            else:
                self._add_whole(i, value, programs)

    def _add_part(self, i: int, part: JpegPart, programs: Sequence[int]) -> None:
        layout = part.layout
        turned = layout.orientation if self._rules.upright else 1
        for p in programs:
            view = self._views[p][i]
            assert view is not None
            self._jobs[p][i] = make_job(
                view, orientation=turned, height=layout.height, width=layout.width, first_row=part.first_row
            )
            self._heads[p][i], self._bodies[p][i] = part.header, part.bands

    def _add_whole(self, i: int, data: memoryview, programs: Sequence[int]) -> None:
        frame = find_frame(data, self._rules.max_pixels)
        if frame is None:
            return
        turned = read_header(data).orientation if frame.has_metadata and self._rules.upright else 1
        upright = (frame.width, frame.height) if turned >= 5 else (frame.height, frame.width)
        for p in programs:
            view = self._view(p, i, *upright)
            if view is not None:
                self._jobs[p][i] = make_job(view, orientation=turned, height=frame.height, width=frame.width)
                self._heads[p][i] = data

    def run(self, threads: int, gate: Gate) -> None:
        """Decode what can be decoded, with the GIL released, after whoever went through `gate` before."""
        for p, out in enumerate(self._outs):
            head = self._rules.heads[p]
            if out is None or head is None or not any(view is not None for view in self._views[p]):
                continue
            self._done[p] = decode_batch(
                self._heads[p],
                self._bodies[p],
                np.array(self._jobs[p], dtype=np.int32),
                out,
                table=head.table,
                max_pixels=self._rules.max_pixels,
                threads=threads,
                gate=gate,
            )
        self._heads, self._bodies, self._jobs = [], [], []

    def done(self, p: int) -> npt.NDArray[np.bool_]:
        """By sample, bool (count,): for which samples the pixels of program p's head are there."""
        return self._done[p]

    def pixels(self, p: int, i: int) -> Tensor | None:
        """The pixels (1, 3, H, W) of sample `i` after program p's head, where they are there."""
        out = self._outs[p]
        return out[i : i + 1] if out is not None and self._done[p][i] else None

    def view(self, p: int, i: int) -> View | None:
        """What program p's head shows of sample `i`, where that is known."""
        return self._views[p][i]
