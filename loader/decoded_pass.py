"""Decoded samples in one pass: which outputs take them, where they lie, and whether new ones are stored.

It brings programs and files together; what is done to a batch is told by `decoded_output.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from forebay.cache import CacheConfig, DecodedStore
from forebay.loader.decode import Orientation
from forebay.loader.decoded_choice import StoreDecision
from forebay.loader.decoded_counts import DecodedCounts
from forebay.loader.decoded_files import DecodedFiles
from forebay.loader.decoded_head import DecodedHead, decoder_versions
from forebay.loader.decoded_output import DecodedOutput
from forebay.loader.draws import Draws
from forebay.loader.encoded import EncodedColumn
from forebay.loader.heads import Head
from forebay.loader.kernel import Gate
from forebay.loader.outputs import OutputProgram
from forebay.loader.readers import ReaderPool
from forebay.sharding import StoredDataset

__all__ = ["DecodedPass", "DecodedSettings"]

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedSettings:
    """Where decoded samples are kept, and what they are."""

    cache: CacheConfig
    """That shards are kept in; the budget is one."""
    auto: bool
    """Whether what is decoded is stored only if that pays; else it is stored in any case."""
    orientation: Orientation
    max_pixels: int

    def what(self, head: DecodedHead, *, native: bool) -> str:
        """All that the pixels of a head depend on, beside the encoded picture; and which pictures have any."""
        return json.dumps(
            [head.column, head.described, self.orientation, self.max_pixels, decoder_versions(native=native)]
        )


class DecodedPass:
    """The work of one pass. `close` when nobody is at work any more.

    Args:
        settings: of the data set.
        data: of the data set.
        programs: all of the pass.
        pool: reads shards; stays the caller's.
        native: whether the kernel decodes.
        decision: whether samples are stored, when that is to be found out.

    Raises:
        CacheError: the cache cannot be used.
    """

    def __init__(
        self,
        settings: DecodedSettings,
        data: StoredDataset,
        programs: Sequence[OutputProgram],
        pool: ReaderPool,
        *,
        native: bool,
        decision: StoreDecision | None = None,
    ) -> None:
        self._settings = settings
        self._data = data
        self._decision = decision if settings.auto else None
        self.counts = DecodedCounts()
        self.heads = [DecodedHead.of(program) for program in programs]
        """By program, how it is divided; None of those that take no decoded samples."""
        columns = [name for program in programs for name in program.columns]
        taken = [head.column for head in self.heads if head is not None]
        self._alone = {name for name in taken if columns.count(name) == taken.count(name)}
        self._files: dict[str, DecodedFiles] = {}
        self._of: list[DecodedFiles | None] = []
        try:
            for head in self.heads:
                self._of.append(None if head is None else self._open(head, pool, native))
        except BaseException:
            self.close()
            raise

    def _open(self, head: DecodedHead, pool: ReaderPool, native: bool) -> DecodedFiles:
        s = self._settings
        what = s.what(head, native=native)
        if what not in self._files:
            self._files[what] = DecodedFiles(
                DecodedStore(s.cache, self._data, what),
                self._data,
                pool,
                orientation=s.orientation,
                max_pixels=s.max_pixels,
            )
        return self._files[what]

    @property
    def programs(self) -> list[int]:
        """Numbers of the programs that take decoded samples."""
        return [p for p, head in enumerate(self.heads) if head is not None]

    @property
    def rests(self) -> list[Head | None]:
        """By program, what the kernel can do from stored pixels on; None where that is nothing."""
        return [None if head is None else head.rest for head in self.heads]

    def begin(
        self, shards: Sequence[int], rows: Sequence[int], draws: Sequence[Draws], outs: Sequence[Tensor | None]
    ) -> dict[int, DecodedOutput]:
        """Find what is stored of a batch.

        Args:
            shards: by sample.
            rows: by sample, its row of the shard.
            draws: by program.
            outs: by program, where the kernel's pixels go.

        Returns:
            By program that takes decoded samples. The caller releases them.
        """
        outputs: dict[int, DecodedOutput] = {}
        for p, (head, files) in enumerate(zip(self.heads, self._of, strict=True)):
            if head is not None and files is not None:
                outputs[p] = DecodedOutput(head, files, self.counts, draws[p], shards, rows, outs[p])
        return outputs

    def unread(self, outputs: dict[int, DecodedOutput]) -> dict[str, Bools]:
        """By column, bool (n,): which samples' encoded pictures nobody needs."""
        found: dict[str, Bools] = {}
        for output in outputs.values():
            name = output.head.column
            if name in self._alone:
                found[name] = found[name] & output.found if name in found else output.found
        return found

    def add(self, outputs: dict[int, DecodedOutput], pictures: Mapping[str, EncodedColumn]) -> None:
        """Take what was read of a batch."""
        keep = self.keeps()
        for output in outputs.values():
            output.add(
                pictures[output.head.column],
                keep=keep,
                upright=self._settings.orientation == "apply",
                max_pixels=self._settings.max_pixels,
            )
        self._decide()

    def run(self, outputs: dict[int, DecodedOutput], threads: int, gate: Gate) -> None:
        """Let the kernel finish what it can of a batch."""
        for output in outputs.values():
            output.run(threads, gate, max_pixels=self._settings.max_pixels)

    def keeps(self) -> bool:
        """Whether what is decoded is stored now."""
        return not self._settings.auto or (self._decision is not None and self._decision.choice.store)

    def _decide(self) -> None:
        if self._decision is not None and self._decision.is_due(self.counts.seen):
            self._decision.decide(
                sample_nbytes=self.counts.mean_nbytes,
                samples=self._data.rows,
                room_nbytes=min(files.store.room_nbytes() for files in self._files.values()),
            )

    def stats(self) -> dict[str, int | str]:
        """Counts, and in words whether decoded samples are stored."""
        why = "stored: as decoded= says" if self._decision is None else self._decision.choice.why
        return {**self.counts.to_dict(), "choice": why}

    def close(self) -> None:
        """Close all files. Calling it again does nothing."""
        for files in self._files.values():
            files.close()
