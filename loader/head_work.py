"""What the heads of one batch have to do: which window of which bytes becomes which place of the batch.

The reader asks it which rows of a picture are needed and gives it what it read; the kernel runs it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from forebay.loader.draws import Draws
from forebay.loader.encoded import EncodedColumn
from forebay.loader.geometry import Ints, View, Views, stored_windows
from forebay.loader.heads import Head
from forebay.loader.kernel import FIRST_ROW, JOB_FIELDS, WHOLE_FILE, Gate, decode_batch, find_frames, make_jobs
from forebay.loader.outputs import OutputProgram
from forebay.sharding import Frames, read_header

__all__ = ["BatchHeads", "Decoder", "HeadRules"]

Decoder = Literal["dali", "native", "library"]
"""What decodes the heads: DALI, the native kernel, or, with all that they leave, simplejpeg, Pillow and torch."""

MOST_USERS = 2
"""Outputs of one column that are decoded each by itself; more of them share one decode of the whole picture."""


class HeadRules:
    """Which programs of a data set have a head that is decoded apart, the same for all batches.

    Args:
        programs: all of them.
        orientation: whether EXIF orientation is applied.
        max_pixels: pictures that claim more are left to the careful decoder, which refuses them.
        decoder: what does the work; for "library" a window is only read.
        apart: numbers of programs whose pictures are decoded whole, by somebody else.
    """

    def __init__(
        self,
        programs: Sequence[OutputProgram],
        *,
        orientation: str,
        max_pixels: int,
        decoder: Decoder,
        apart: Collection[int] = (),
    ) -> None:
        self.upright = orientation == "apply"
        self.max_pixels = max_pixels
        self.decoder = decoder
        users = [name for program in programs for name in program.columns]
        headless = {
            name for p, program in enumerate(programs) if program.head is None or p in apart for name in program.columns
        }
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

    def looks_at_sources(self, p: int) -> bool:
        """Whether the decoder of program p needs only what its output is computed from, not the whole window."""
        head = self.heads[p]
        return self.decoder == "native" or (self.decoder == "dali" and head is not None and not head.resizes)


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
        self._outs = list(outs)
        self._views: list[list[Views]] = [[] for _ in outs]
        self._done: list[npt.NDArray[np.bool_]] = [np.zeros(count, np.bool_) for _ in outs]
        self._upright: list[npt.NDArray[np.bool_]] = [np.ones(count, np.bool_) for _ in outs]
        self._jobs = [np.zeros((count, JOB_FIELDS), np.int32) for _ in outs]
        self._pictures: list[EncodedColumn | None] = [None] * len(outs)

    def rows(self, column: str, samples: Ints, frames: Frames) -> tuple[Ints, Ints]:
        """Which rows of pixels, as stored, some samples need of their crop-addressable pictures.

        Args:
            column: the pictures are of.
            samples: int64 (n,) places in the batch.
            frames: of the pictures.

        Returns:
            First and number, int64 (n,) each; 0 where the whole file is to be read.
        """
        if column not in self._rules.columns:
            return np.zeros_like(frames.height), np.zeros_like(frames.height)
        turned = frames.orientation if self._rules.upright else np.ones_like(frames.orientation)
        first, end = frames.height, np.zeros_like(frames.height)
        known = np.ones(len(samples), np.bool_)
        for p in self._rules.columns[column]:
            views = self._look(p, samples, frames.height, frames.width, turned)
            window = views.sources() if self._rules.looks_at_sources(p) else views.windows()
            tops, _, heights, _ = stored_windows(window, frames.height, frames.width, turned)
            first, end = np.minimum(first, tops), np.maximum(end, tops + heights)
            known &= views.known
        return first, np.where(known, end - first, 0)

    def _look(self, p: int, samples: Ints, heights: Ints, widths: Ints, turned: Ints) -> Views:
        """Find what program p shows of some samples, and note it as work for the kernel."""
        head = self._rules.heads[p]
        assert head is not None
        upright = np.where(turned >= 5, (widths, heights), (heights, widths))
        views = head.views(upright[0], upright[1], self._draws[p], samples)
        views = replace(views, known=views.known & (heights * widths <= self._rules.max_pixels))
        self._views[p].append(views)
        self._upright[p][samples] = turned == 1
        self._jobs[p][samples] = make_jobs(views, orientations=turned, heights=heights, widths=widths)
        return views

    def add(self, pictures: Mapping[str, EncodedColumn]) -> None:
        """Take what was read, as work for the kernel."""
        if self._rules.decoder == "library":
            return
        for column, programs in self._rules.columns.items():
            encoded = pictures[column]
            whole = [i for i, bands in enumerate(encoded.bands) if bands is None]
            if whole:
                self._look_at_whole(np.array(whole), [encoded.heads[i] for i in whole], programs)
            for p in programs:
                self._pictures[p] = encoded
                self._jobs[p][:, FIRST_ROW] = [
                    WHOLE_FILE if bands is None else row
                    for bands, row in zip(encoded.bands, encoded.first_rows, strict=True)
                ]

    def _look_at_whole(self, samples: Ints, data: list[memoryview | None], programs: Sequence[int]) -> None:
        frames = find_frames(data, self._rules.max_pixels)
        taken = np.flatnonzero(frames[:, 0])
        if not taken.size:
            return
        heights, widths, has_metadata = frames[taken].T
        turned = np.ones_like(heights)
        if self._rules.upright:
            for k in np.flatnonzero(has_metadata).tolist():
                picture = data[taken[k]]
                assert picture is not None
                turned[k] = read_header(picture).orientation
        for p in programs:
            self._look(p, samples[taken], heights, widths, turned)

    def run(self, threads: int, gate: Gate) -> None:
        """Decode what can be decoded, with the GIL released, after whoever went through `gate` before."""
        for p, out in enumerate(self._outs):
            head, pictures = self._rules.heads[p], self._pictures[p]
            if out is None or head is None or pictures is None or not self._views[p]:
                continue
            known = np.zeros(len(out), np.bool_)
            for views in self._views[p]:
                known[views.samples] = views.known
            self._done[p] = decode_batch(
                [data if taken else None for data, taken in zip(pictures.heads, known.tolist(), strict=True)],
                pictures.bands,
                self._jobs[p],
                out,
                table=head.table,
                max_pixels=self._rules.max_pixels,
                threads=threads,
                gate=gate,
            )
        self.forget_bytes()

    def encoded(self, p: int) -> EncodedColumn | None:
        """What was read for program p's head; None without one."""
        return self._pictures[p]

    def fields(self, p: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """The view of each sample that program p's head shows, for a decoder that turns no picture.

        Returns:
            int64 (count, 11): the fields of `View`; and bool (count,), where these are known and the picture upright.
        """
        fields, known = (
            np.zeros((len(self._done[p]), len(View._fields)), np.int64),
            np.zeros(len(self._done[p]), np.bool_),
        )
        for views in self._views[p]:  # the newest counts
            fields[views.samples], known[views.samples] = views.fields(), views.known
        return fields, known & self._upright[p]

    def give(self, p: int, pixels: Tensor, done: npt.NDArray[np.bool_]) -> None:
        """Take what another decoder made of program p's head: (count, 3, H, W), and bool (count,) where it did."""
        self._outs[p], self._done[p] = pixels, done

    def forget_bytes(self) -> None:
        """Let go of what was read: the decoding is over."""
        self._pictures, self._jobs = [], []

    def done(self, p: int) -> npt.NDArray[np.bool_]:
        """By sample, bool (count,): for which samples the pixels of program p's head are there."""
        return self._done[p]

    def pixels(self, p: int, i: int) -> Tensor | None:
        """The pixels (1, 3, H, W) of sample `i` after program p's head, where they are there."""
        out = self._outs[p]
        return out[i : i + 1] if out is not None and self._done[p][i] else None

    def view(self, p: int, i: int) -> View | None:
        """What program p's head shows of sample `i`, where that is known."""
        for views in reversed(self._views[p]):  # the newest first: a picture that was looked at in vain was read whole
            at = np.flatnonzero(views.samples == i)
            if at.size:
                return views[at.item()]
        return None
