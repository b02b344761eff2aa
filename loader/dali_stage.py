"""DALI as the decoder of a loader: which pictures it is given, what becomes of those that it cannot decode.

It takes plain JPEGs only, as a walk over their markers and our checksums find them; everything else is left, in its
place of the batch, to the careful decoders. What fails in DALI all the same is remembered and not given to it again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from forebay.loader.channel import Channel, ChannelEnd
from forebay.loader.dali_graph import DaliMode, Encoded, HeadShape
from forebay.loader.dali_pipeline import DaliBatch, DaliPictures, DaliPipeline, DaliSettings
from forebay.loader.device import on_stream
from forebay.loader.geometry import Ints
from forebay.loader.head_work import HeadRules
from forebay.loader.pending_batch import PendingBatch

__all__ = ["DaliCounts", "DaliDecoder", "DaliStage"]

Place = tuple[int, int]
_END_OF_IMAGE = b"\xff\xd9"

_logger = logging.getLogger("forebay")


@dataclass(slots=True)
class DaliCounts:
    """What did not go the straight way, since the loader was made."""

    careful: int = 0
    """Pictures that were left to the careful decoders."""
    refused: int = 0
    """Different pictures that DALI failed on, and is not given again."""
    rebuilds: int = 0
    """Pipelines that were built again after an error."""

    def to_dict(self) -> dict[str, int]:
        """By name."""
        return {"careful": self.careful, "refused": self.refused, "rebuilds": self.rebuilds}


class DaliDecoder:
    """What the passes of one loader share: pipelines that are kept, and the pictures that DALI failed on. Thread-safe.

    Args:
        device: of CUDA; None decodes on the CPU.
        mode: how a GPU decodes.
        threads: of DALI's that decode.
    """

    def __init__(self, *, device: torch.device | None, mode: DaliMode, threads: int) -> None:
        self.stream = None if device is None else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        """That pictures come out on; None on the CPU."""
        self._device_id = None if device is None else device.index
        self._mode = mode
        self._threads = threads
        self._idle: list[tuple[DaliSettings, DaliPipeline]] = []
        self._refused: set[Place] = set()
        self._lock = threading.Lock()
        self.counts = DaliCounts()

    @contextlib.contextmanager
    def pipeline(self, shapes: tuple[HeadShape, ...], batch_size: int) -> Iterator[DaliPipeline]:
        """One for a pass: kept from a pass before, or new."""
        settings = DaliSettings(
            shapes=shapes, batch_size=batch_size, threads=self._threads, device_id=self._device_id, mode=self._mode
        )
        with self._lock:
            kept = next((pipeline for made, pipeline in self._idle if made == settings), None)
            self._idle = [each for each in self._idle if each[1] is not kept]
        pipeline = kept or DaliPipeline(settings, self.stream)
        before = pipeline.rebuilds
        try:
            yield pipeline
        finally:
            with self._lock:
                self.counts.rebuilds += pipeline.rebuilds - before
                self._idle.append((settings, pipeline))

    def refuse(self, place: Place, reason: str) -> None:
        """Do not give this picture to DALI again."""
        with self._lock:
            new = place not in self._refused
            self._refused.add(place)
            self.counts.refused += new
        if new:
            _logger.debug("DALI failed on shard %d, row %d: %s", *place, reason)

    def is_refused(self, place: Place) -> bool:
        """Whether DALI failed on this picture before."""
        return place in self._refused

    def count_careful(self, pictures: int) -> None:
        """Count pictures that were left to the careful decoders."""
        with self._lock:
            self.counts.careful += pictures

    def close(self) -> None:
        """Free the pipelines that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, pipeline in idle:
            pipeline.close()


class DaliStage:
    """One pass of batches through DALI, by the thread that calls it.

    Args:
        decoder: of the loader.
        rules: which programs have a head.
        given: by program, whether its output is just what DALI makes.
        batch_size: of the largest batch.
    """

    def __init__(self, decoder: DaliDecoder, rules: HeadRules, given: list[bool], batch_size: int) -> None:
        self._decoder = decoder
        self._given = given
        self._batch_size = batch_size
        self._shapes = {p: HeadShape.of(head) for p, head in enumerate(rules.heads) if head is not None}
        self._taken: deque[dict[int, npt.NDArray[np.bool_]]] = deque()
        self.pending: deque[PendingBatch] = deque()
        """Batches that went in and have not come out."""

    def run(self, batches: Channel[PendingBatch]) -> Generator[PendingBatch]:
        """Batches with the pixels of their heads, in order.

        Raises:
            BaseException: what failed for the oldest batch that is pending.
        """
        if not self._shapes:
            yield from batches
            return
        with (
            self._decoder.pipeline(tuple(self._shapes.values()), self._batch_size) as pipeline,
            contextlib.closing(pipeline.decode(self._prepared(batches))) as decoded,
        ):
            for pictures in decoded:
                batch = self.pending[0]
                self._give(batch, pictures)
                self.pending.popleft()
                yield batch

    def _prepared(self, batches: Channel[PendingBatch]) -> Iterator[DaliBatch | None]:
        """What DALI is to do; None where nothing is read yet and there are batches that it may give out first."""
        while True:
            try:
                batch = batches.get(0 if self.pending else None)
            except TimeoutError:
                yield None
            except ChannelEnd:
                return
            else:
                yield self._prepare(batch)

    def _prepare(self, batch: PendingBatch) -> DaliBatch:
        self.pending.append(batch)
        heads: list[tuple[list[Encoded], Ints]] = []
        taken: dict[int, npt.NDArray[np.bool_]] = {}
        for p, shape in self._shapes.items():
            encoded, fields, taken[p] = self._head(batch, p, shape)
            heads.append((encoded, fields))
        self._taken.append(taken)
        return DaliBatch(batch.number, heads)

    def _head(self, batch: PendingBatch, p: int, shape: HeadShape) -> tuple[list[Encoded], Ints, npt.NDArray[np.bool_]]:
        """Encoded pictures, their views, and which of them are those of the batch: the others are blank."""
        fields, taken = batch.heads.fields(p)
        pictures = batch.heads.encoded(p)
        blank, blank_view = shape.blank()
        encoded: list[Encoded] = [blank] * len(taken)
        parts = np.zeros(len(taken), np.bool_)
        for i in np.flatnonzero(taken).tolist():
            if pictures is None or self._decoder.is_refused((batch.shards[i], batch.rows[i])):
                taken[i] = False
            elif pictures.bands[i] is not None:
                parts[i] = True
            else:
                whole = pictures.heads[i]
                taken[i] = whole is not None and whole[-2:] == _END_OF_IMAGE  # else cut short, or something is behind
                encoded[i] = whole or blank
        if pictures is not None and parts.any():
            which = np.flatnonzero(parts)
            smaller, origins = pictures.cut(which, _windows(fields[which]))
            for i, part in zip(which.tolist(), smaller, strict=True):
                encoded[i] = part or blank
                taken[i] = part is not None  # else the careful decoder says what is wrong
            fields[which, :2] -= origins
        fields[~taken] = blank_view
        return [each if done else blank for each, done in zip(encoded, taken.tolist(), strict=True)], fields, taken

    def _give(self, batch: PendingBatch, pictures: DaliPictures) -> None:
        taken = self._taken.popleft()
        for i, reason in pictures.failures.items():
            self._decoder.refuse((batch.shards[i], batch.rows[i]), reason)
        for (p, done), pixels in zip(taken.items(), pictures.pixels, strict=True):
            done[list(pictures.failures)] = False
            pixels_NCHW = pixels.permute(0, 3, 1, 2)
            if self._given[p]:
                batch.slots[p] = (pixels_NCHW,)
            else:  # other steps go on from these, on the CPU
                with on_stream(self._decoder.stream):
                    pixels_NCHW = pixels_NCHW.cpu()
            batch.heads.give(p, pixels_NCHW, done)
            self._decoder.count_careful(len(done) - int(done.sum()))
        batch.heads.forget_bytes()


def _windows(fields: Ints) -> Ints:
    """What the graph decodes of pictures for their views, int64 (n, 4): see `graph_columns`."""
    window, scaled, cut, out = fields[:, 0:4], fields[:, 4:6], fields[:, 6:8], fields[:, 8:10]
    as_it_is = (window[:, 2:] == scaled).all(axis=1, keepdims=True)
    return np.where(as_it_is, np.concatenate((window[:, :2] + cut, out), axis=1), window)
