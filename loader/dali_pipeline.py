"""DALI driven from one thread: batches of encoded pictures in, finished pictures out, in order, whatever fails.

It knows neither shards nor the order. An iteration that fails costs the pipeline: it is built again, the pictures of
its batch are tried one by one to find the culprit, and the batches behind it are fed again.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from forebay.errors import DecodeError
from forebay.loader.dali_graph import Columns, DaliMode, Encoded, HeadShape, build_pipeline, graph_columns
from forebay.loader.device import on_stream
from forebay.loader.geometry import Views

__all__ = ["DEPTH", "DaliBatch", "DaliPictures", "DaliPipeline", "DaliSettings"]

DEPTH = 2
"""Iterations on their way at once: one whose pictures are decoded, one whose bytes are fed."""
_NO_MEMORY = ("out of memory", "bad_alloc", "memory allocation failed", "cudaerrormemoryallocation", "can't allocate")

_logger = logging.getLogger("forebay")


@dataclass(frozen=True, slots=True)
class DaliBatch:
    """What is to be decoded in one iteration: one picture at least."""

    ticket: int
    """Its number, which must come out again with its pictures."""
    heads: Sequence[tuple[Sequence[Encoded], npt.NDArray[np.int64]]]
    """By head, n encoded pictures, and int64 (n, 11): the fields of their `View`s in the coordinates of these bytes."""

    def __len__(self) -> int:
        return len(self.heads[0][0])

    def only(self, i: int) -> DaliBatch:
        """Picture `i` alone, of each head."""
        return DaliBatch(self.ticket, [(encoded[i : i + 1], fields[i : i + 1]) for encoded, fields in self.heads])


@dataclass(frozen=True, slots=True)
class DaliPictures:
    """What came out for a batch."""

    batch: DaliBatch
    pixels: list[Tensor]
    """By head, uint8 (n, height, width, 3); on a GPU, on the stream of the settings, in torch's memory."""
    failures: Mapping[int, str] = field(default_factory=dict)
    """By place, why a picture could not be decoded; its pixels are unspecified."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DaliSettings:
    """How a pipeline is built."""

    shapes: tuple[HeadShape, ...]
    """By head."""
    batch_size: int
    """Of the largest batch."""
    threads: int
    """Of DALI's own that decode."""
    device_id: int | None = None
    """Number of the GPU; None runs the same graph on the CPU."""
    mode: DaliMode = "region"
    """How it decodes on a GPU."""
    depth: int = DEPTH
    """Iterations on their way at once."""


class DaliPipeline:
    """One DALI pipeline, kept from pass to pass. Used by one thread at a time.

    On a GPU, pictures are copied once more on the device, into torch's memory: torch keeps that from being used again
    while a stream works with it, and DALI knows nothing of torch's streams. At 2 TB/s a batch of 128 takes 20
    microseconds. On the CPU they are DALI's own memory, which is free when the last reference to them is gone.

    Args:
        settings: what to build.
        stream: of torch, on the GPU, that the pictures are bound to; None on the CPU.
        build: makes the graph.
    """

    def __init__(
        self,
        settings: DaliSettings,
        stream: torch.cuda.Stream | None = None,
        *,
        build: Callable[..., Any] = build_pipeline,
    ) -> None:
        self._settings = settings
        self._build = build
        self._stream = stream
        self._depth = settings.depth
        self._pipeline: Any = None
        self._batches: Iterator[DaliBatch | None] = iter(())
        self._again: deque[DaliBatch] = deque()
        self._fed: deque[tuple[DaliBatch | None, Columns]] = deque()
        self._copied: deque[tuple[torch.cuda.Event, Any]] = deque()
        self._error: BaseException | None = None
        self._running = False
        self._ended = True
        self.rebuilds = 0
        """How often it was built again after an error."""

    def decode(self, batches: Iterable[DaliBatch | None]) -> Generator[DaliPictures]:
        """The pictures of each batch, in order. Batches are taken `depth` ahead; their bytes are kept until then.

        Leaving early drops what is on its way; another pass may follow.

        Args:
            batches: to decode; None where the next one is not there yet and those on their way are wanted first. DALI
                gives nothing out until it is fed again, so a blank picture is fed then.

        Raises:
            BaseException: what `batches` raised, after what came before it.
            MemoryError: DALI has none left, even for one iteration at a time.
        """
        self._batches, self._error, self._ended = iter(batches), None, False
        try:
            while not self._ended:
                try:
                    yield from self._iterations()
                except RuntimeError as error:  # DALI has no other kind; ours are no RuntimeErrors
                    if not self._fed:
                        raise
                    yield from self._recover(error)
            if self._error is not None:
                raise self._error
        finally:
            self._drain()

    def _iterations(self) -> Iterator[DaliPictures]:
        settings = self._settings
        if self._pipeline is None:
            self._pipeline = self._build(
                settings.shapes,
                self._feed,
                mode=settings.mode,
                batch_size=settings.batch_size,
                threads=settings.threads,
                device_id=settings.device_id,
                depth=self._depth,
            )
        self._running = True
        self._pipeline.schedule_run()  # the first one takes `depth` batches
        while True:
            try:
                outputs = self._pipeline.share_outputs(self._stream)
            except StopIteration:
                self._rewind()
                self._ended = True
                return
            batch, columns = self._fed[0]
            self._check(batch, outputs)
            pictures = None if batch is None else DaliPictures(batch, self._take(outputs, columns))
            self._pipeline.release_outputs()
            self._fed.popleft()
            if pictures is not None:
                yield pictures
            self._pipeline.schedule_run()

    def _feed(self) -> Columns:
        """The source of the graph; called by DALI within `schedule_run`."""
        if self._ended or self._error is not None:
            raise StopIteration
        batch: DaliBatch | None
        if self._again:
            batch = self._again.popleft()
        else:
            try:
                batch = next(self._batches)
            except StopIteration:
                raise
            except BaseException as error:  # noqa: BLE001 - delivered after what came before it
                self._error = error
                raise StopIteration from None
        fed = batch or _blank_batch(self._settings.shapes)
        columns = graph_columns(fed.ticket, self._settings.shapes, fed.heads)
        self._fed.append((batch, columns))
        return columns

    @staticmethod
    def _check(batch: DaliBatch | None, outputs: Sequence[Any]) -> None:
        tickets = np.asarray(outputs[-1].as_tensor())
        if batch is not None and (len(tickets) != len(batch) or (tickets != batch.ticket).any()):
            raise DecodeError(
                f"DALI gave batch {tickets.ravel()[:1].tolist()} of {len(tickets)} pictures where batch {batch.ticket} "
                f'of {len(batch)} was due; nothing of it was used. Take decode="native", and report it with the '
                "version of DALI"
            )

    def _take(self, outputs: Sequence[Any], columns: Columns) -> list[Tensor]:
        if self._stream is None:
            return [from_dlpack(pictures.as_tensor()) for pictures in outputs[:-1]]
        with on_stream(self._stream):
            pixels = [from_dlpack(pictures.as_tensor()).clone() for pictures in outputs[:-1]]
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        self._copied.append((event, (outputs, columns)))  # the bytes too: they may still be on their way
        while len(self._copied) > self._depth + 1 or (self._copied and self._copied[0][0].query()):  # type: ignore[no-untyped-call]
            oldest, _ = self._copied.popleft()
            oldest.synchronize()
        return pixels

    # -- failures ----------------------------------------------------------------------------------------------------

    def _recover(self, error: RuntimeError) -> Iterator[DaliPictures]:
        """Build anew after an iteration failed, which is the oldest that was fed; feed again what was behind it."""
        self._discard()
        self.rebuilds += 1
        fed = [batch for batch, _ in self._fed if batch is not None]
        self._fed.clear()
        if not fed:
            raise error
        if any(sign in str(error).lower() for sign in _NO_MEMORY):
            if self._depth == 1:
                raise MemoryError(
                    f"DALI has no memory left for a batch of {len(fed[0])} pictures at a time: lower batch_size or the "
                    f"size of the pictures, or leave it more of the device's memory. {_reason(error)}"
                ) from error
            self._depth //= 2
            _logger.warning("DALI has no memory left; it goes on with %d iteration(s) at once", self._depth)
            self._again.extendleft(reversed(fed))
            return
        failed, *behind = fed
        self._again.extendleft(reversed(behind))
        if len(failed) == 1:
            yield DaliPictures(failed, [self._blank(shape, 1) for shape in self._settings.shapes], {0: _reason(error)})
        else:
            yield self._one_by_one(failed)

    def _one_by_one(self, batch: DaliBatch) -> DaliPictures:
        settings = self._settings
        alone = DaliPipeline(
            DaliSettings(
                shapes=settings.shapes,
                batch_size=1,
                threads=1,
                device_id=settings.device_id,
                mode=settings.mode,
                depth=1,
            ),
            self._stream,
            build=self._build,
        )
        pixels = [self._blank(shape, len(batch)) for shape in settings.shapes]
        failures: dict[int, str] = {}
        with contextlib.closing(alone), on_stream(self._stream):
            for i, pictures in enumerate(alone.decode(batch.only(i) for i in range(len(batch)))):
                for whole, one in zip(pixels, pictures.pixels, strict=True):
                    whole[i : i + 1].copy_(one)
                if pictures.failures:
                    failures[i] = pictures.failures[0]
        return DaliPictures(batch, pixels, failures)

    def _blank(self, shape: HeadShape, count: int) -> Tensor:
        device = "cpu" if self._stream is None else self._stream.device
        with on_stream(self._stream):
            return torch.zeros((count, shape.height, shape.width, 3), dtype=torch.uint8, device=device)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Let what is on its way come out, unseen, so that the next pass begins clean."""
        self._ended = True  # for `_feed`
        try:
            while self._running:
                self._pipeline.schedule_run()
                self._pipeline.share_outputs(self._stream)
                self._pipeline.release_outputs()
        except StopIteration:
            self._rewind()
        except RuntimeError:  # an iteration that nobody wants any more failed
            self._discard()
        self._fed.clear()
        self._again.clear()

    def _rewind(self) -> None:
        self._pipeline.reset()
        self._running = False

    def _discard(self) -> None:
        self._pipeline, self._running = None, False

    def close(self) -> None:
        """Free everything. Another pass would build it again."""
        self._discard()
        for event, _ in self._copied:
            event.synchronize()
        self._copied.clear()


def _blank_batch(shapes: Sequence[HeadShape]) -> DaliBatch:
    blanks = [shape.blank() for shape in shapes]
    return DaliBatch(-1, [([data], Views.of([view]).fields()) for data, view in blanks])


def _reason(error: BaseException) -> str:
    """What DALI says was encountered, without its traceback of our graph."""
    told = str(error).partition("encountered:")[2] or str(error)
    lines = [line.strip() for line in told.splitlines() if line.strip() and "no longer valid" not in line]
    return "DALI: " + " ".join(lines)[:300]
