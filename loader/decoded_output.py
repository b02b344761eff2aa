"""The pictures of one output in one batch, by way of their deterministic head: stored, or decoded and stored now.

One thread finds and prepares them, one lets the kernel finish them, any number make what it leaves, each a sample of
its own. A hit and a miss go through the same steps from the same pixels.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from forebay.cache import DecodedFile
from forebay.loader.decoded_counts import DecodedCounts
from forebay.loader.decoded_files import DecodedFiles
from forebay.loader.decoded_head import DecodedHead
from forebay.loader.decoded_jobs import HeadJobs, plan_heads
from forebay.loader.decoded_kernel import ENCODED, NOWHERE, STORED, STORED_DTYPE, TO_STORE, finish_batch
from forebay.loader.draws import Draws
from forebay.loader.encoded import EncodedColumn
from forebay.loader.geometry import Ints
from forebay.loader.kernel import JOB_FIELDS, Gate, make_jobs
from forebay.loader.outputs import OutputProgram
from forebay.loader.pixels import from_pixels

__all__ = ["DecodedOutput"]

_NEW_NBYTES = 256 << 20
"""Bytes of the shards that get a file for one batch, which waits until all headers in them are read: 4 usual shards."""

Bools = npt.NDArray[np.bool_]

log = logging.getLogger(__name__)


class DecodedOutput:
    """See the module. Closed by `release`, when nobody is at work on the batch any more.

    Args:
        head: how the program is divided.
        files: of this kind of pixels.
        counts: of the pass.
        draws: of the program.
        shards: by sample.
        rows: by sample, its row of the shard.
        out: where finished pictures go, (n, 3, H, W) in channels_last memory; None where the kernel finishes none.
    """

    def __init__(
        self,
        head: DecodedHead,
        files: DecodedFiles,
        counts: DecodedCounts,
        draws: Draws,
        shards: Sequence[int],
        rows: Sequence[int],
        out: Tensor | None,
    ) -> None:
        self.head = head
        self._files = files
        self._counts = counts
        self._draws = draws
        self._shards, self._rows = shards, np.array(rows, np.int64)
        self._out = out
        count = len(rows)
        self._of: list[DecodedFile | None] = [None] * count
        self._leased: list[DecodedFile] = []
        self._heights, self._widths = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._stored = np.zeros(count, STORED_DTYPE)
        self._head_jobs = np.zeros((count, JOB_FIELDS), np.int32)
        self._jobs = np.zeros((count, JOB_FIELDS), np.int32)
        self._pictures: list[memoryview | None] = [None] * count
        self._done = np.zeros(count, np.bool_)
        self._keeping = False
        self._find()

    # -- one thread: what is stored, and what the kernel has to do -----------------------------------------------------

    def _places(self) -> dict[int, Ints]:
        """By shard, the places of its samples in the batch."""
        shards = np.array(self._shards)
        return {int(shard): np.flatnonzero(shards == shard) for shard in np.unique(shards)}

    def _find(self) -> None:
        for shard, places in self._places().items():
            file = self._files.lease(shard)
            if file is None:
                continue
            self._leased.append(file)
            rows = self._rows[places]
            filled = file.find(rows)
            if not filled.heights.all():
                file.refresh()
                filled = file.find(rows)
            for i in places.tolist():
                self._of[i] = file
            self._heights[places], self._widths[places] = filled.heights, filled.widths
            stored = self._stored[places]
            stored["origin"] = np.where(filled.heights > 0, STORED, NOWHERE)
            stored["fd"], stored["offset"], stored["checksum"] = file.fd, filled.offsets, filled.checksums
            self._stored[places] = stored
        hits = int(np.count_nonzero(self._heights))
        self._counts.add(hits=hits, misses=len(self._rows) - hits)

    @property
    def found(self) -> Bools:
        """Whose encoded pictures are not needed: bool (n,)."""
        found: Bools = self._stored["origin"] == STORED
        return found

    def add(self, encoded: EncodedColumn, *, keep: bool, upright: bool, max_pixels: int) -> None:
        """Take the encoded pictures of the others, and prepare the work of the kernel.

        Args:
            encoded: all that was read of the column.
            keep: whether what is decoded is stored.
            upright: whether EXIF orientation is applied.
            max_pixels: pictures that claim more are left to the careful decoder, which refuses them.
        """
        self._keeping = keep
        misses = np.flatnonzero(~self.found)
        if misses.size and keep:
            self._give_files(misses)
        if self._out is None or self.head.rest is None:
            return
        if misses.size:
            pictures = [encoded.heads[i] for i in misses.tolist()]
            self._plan(plan_heads(self.head, pictures, misses, upright=upright, max_pixels=max_pixels))
        known = np.flatnonzero(self._stored["origin"])
        if not known.size:
            return
        heights, widths = self._heights[known], self._widths[known]
        views = self.head.rest.views(heights, widths, self._draws, known)
        self._jobs[known] = make_jobs(views, orientations=1, heights=heights, widths=widths)
        self._stored["origin"][known[~views.known]] = NOWHERE
        for i in np.flatnonzero(self._stored["origin"] >= ENCODED).tolist():
            self._pictures[i] = encoded.heads[i]

    def _give_files(self, misses: Ints) -> None:
        """A file for each sample that has none, as far as they are to be had; none that was evicted."""
        cost = 0
        for shard, places in self._places().items():
            missing = np.intersect1d(places, misses, assume_unique=True)
            if not missing.size:
                continue
            file = self._of[int(missing[0])]
            if file is not None and not file.kept():
                self._files.drop(shard, file)
                file = None
            if file is None and (not cost or cost + self._files.cost(shard) <= _NEW_NBYTES):
                file = self._files.make(shard, self.head)
                cost += self._files.cost(shard)
                if file is not None:
                    self._leased.append(file)
                    self._counts.add(files=1)
            for i in missing.tolist():
                self._of[i] = file

    def _plan(self, plan: HeadJobs) -> None:
        """Note what the kernel has to decode, and where it goes."""
        places = plan.places
        self._head_jobs[places] = plan.jobs
        self._heights[places], self._widths[places] = plan.heights, plan.widths
        self._stored["origin"][places] = ENCODED
        nbytes = 3 * plan.heights * plan.widths
        self._counts.see(len(places), int(nbytes.sum()))
        if not self._keeping:
            return
        for i, size in zip(places.tolist(), nbytes.tolist(), strict=True):
            file, row = self._of[i], self._rows[i : i + 1]
            if file is not None and size <= file.room(row)[0]:
                self._stored[i] = TO_STORE, file.fd, file.offset(int(row[0])), 0, 0

    # -- one thread: the kernel ----------------------------------------------------------------------------------------

    def run(self, threads: int, gate: Gate, *, max_pixels: int) -> None:
        """Finish what can be finished, with the GIL released, and make known what was stored."""
        rest = self.head.rest
        if self._out is None or rest is None or not self._stored["origin"].any():
            return
        self._done = finish_batch(
            self._pictures,
            self._head_jobs,
            self._stored,
            self._jobs,
            self._out,
            table=rest.table,
            max_pixels=max_pixels,
            threads=threads,
            gate=gate,
        )
        self._pictures = [None] * len(self._pictures)
        for i in np.flatnonzero(self._stored["written"]).tolist():
            self._note(i, self._stored[i])

    def _note(self, i: int, stored: Any) -> None:
        file, written = self._of[i], int(stored["written"])
        assert file is not None
        height, width = int(self._heights[i]), int(self._widths[i])
        if written < 0:
            self._stop_keeping(i, OSError(-written, "decoded pixels cannot be written"))
            return
        try:
            file.note(int(self._rows[i]), height, width, int(stored["checksum"]))
        except OSError as error:
            self._stop_keeping(i, error)
        else:
            self._counts.add(stored=1, stored_nbytes=3 * height * width)

    def _stop_keeping(self, i: int, error: OSError) -> None:
        self._keeping = False
        self._files.store.give_up(self._shards[i], error)

    def ends(self, program: OutputProgram) -> bool:
        """Whether what the kernel finishes is the program's output."""
        return self._out is not None and self.head.rest is not None and self.head.rest.end == len(program.steps)

    @property
    def done(self) -> Bools:
        """Which samples the kernel has finished: bool (n,)."""
        return self._done

    # -- any thread: a sample that the kernel has left -----------------------------------------------------------------

    def finished(self, i: int) -> Tensor | None:
        """The pixels (1, 3, H, W) of sample `i` after all steps that the kernel does, where it has done them."""
        return self._out[i : i + 1] if self._out is not None and self._done[i] else None

    def stored(self, i: int) -> Tensor | None:
        """The pixels (1, 3, H, W) of sample `i` after the head, from the store; None where it has none, or damaged."""
        file = self._of[i]
        if file is None or not self.found[i]:
            return None
        try:
            pixels = file.read(int(self._rows[i]))
        except (OSError, ValueError) as error:
            log.warning("decoded samples cannot be read: %s; they are decoded again", str(error))
            pixels = None
        if pixels is None:
            self._counts.add(damaged=1)
            return None
        return from_pixels(pixels)

    def keep(self, i: int, pixels: Tensor) -> None:
        """Store what was decoded: the pixels (1, 3, H, W) after the head.

        Raises:
            OSError: they cannot be written, and it is none of what a cache bears.
        """
        self._counts.see(1, pixels.numel())
        file = self._of[i]
        if file is None or not self._keeping:
            return
        stored = np.ascontiguousarray(pixels[0].permute(1, 2, 0).numpy())
        try:
            written = file.kept() and file.write(int(self._rows[i]), stored)
        except OSError as error:
            self._stop_keeping(i, error)
        else:
            if written:
                self._counts.add(stored=1, stored_nbytes=stored.nbytes)

    def release(self) -> None:
        """Use the files no longer. Calling it again does nothing."""
        leased, self._leased = self._leased, []
        for file in leased:
            self._files.release(file)
