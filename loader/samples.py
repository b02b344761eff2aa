"""From the raw values of one sample to its outputs, and from the outputs of many to a batch. Knows no threads."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forebay.errors import DecodeError, SampleError, ShapeError, SourceError
from forebay.loader.decode import Orientation, Pixels, Scratch, decode_image, decode_mask, decode_window
from forebay.loader.decoded_output import DecodedOutput
from forebay.loader.encoded import JpegPart, Unread
from forebay.loader.geometry import View
from forebay.loader.head_work import BatchHeads, Decoder, HeadRules
from forebay.loader.media_steps import encoded_value
from forebay.loader.outputs import Draws, OutputProgram
from forebay.loader.tails import Tail, split_tails
from forebay.sharding import Column, Kind, Schema

__all__ = ["INDEX", "VALID", "VIRTUAL", "WEIGHT", "Place", "SampleMaker", "collate"]

INDEX = "__index__"
"""Virtual column: the sample's index in the data set, int64; of the sample that fills the place of a bad one."""
VALID = "__valid__"
"""Virtual column: bool, false where a sample fills the place of a bad one or pads a short batch."""
WEIGHT = "__weight__"
"""Virtual column, one number a batch: what this rank's mean weighs in the mean over ranks, float64. A sample that fills
the place of a bad one counts in it as the bad one would: the other ranks do not hear of it."""
VIRTUAL = (INDEX, VALID, WEIGHT)

Outputs = list[tuple[Any, ...]]
"""Per program, the values of its outputs."""
Place = tuple[int, int]
"""Shard and row."""


class SampleMaker:
    """Decodes the columns of a sample, each once, and runs the output programs on them. Thread-safe.

    All that it keeps is memory to decode into, for each thread and column: it is used where every output of the column
    ends in a slot, so that nobody keeps the decoded picture.

    Args:
        schema: of the data set.
        programs: what makes each output.
        orientation: "apply" turns images upright by their EXIF orientation, "ignore" leaves them as stored.
        max_pixels: images that claim more are bad samples, before anything is decoded.
    """

    def __init__(
        self, schema: Schema, programs: Sequence[OutputProgram], *, orientation: Orientation, max_pixels: int
    ) -> None:
        self.programs = tuple(programs)
        self.columns: tuple[str, ...] = tuple(dict.fromkeys(name for p in programs for name in p.columns))
        self._schema_columns = {name: schema[name] for name in self.columns}
        self._orientation = orientation
        self._max_pixels = max_pixels
        self._users = {
            name: [
                (p, k) for p, program in enumerate(programs) for k, used in enumerate(program.columns) if used == name
            ]
            for name in self.columns
        }
        self._of_thread = threading.local()

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what is made."""
        return tuple(name for program in self.programs for name in program.names)

    def only(self, outputs: Collection[str]) -> SampleMaker:
        """One that makes just these outputs, with the same values, from just the columns that they need.

        Raises:
            ConfigError: one cannot be made without another.
        """
        programs = [part for program in self.programs if (part := program.only(outputs)) is not None]
        columns = Schema(tuple(self._schema_columns.values()))
        return SampleMaker(columns, programs, orientation=self._orientation, max_pixels=self._max_pixels)

    def head_rules(self, decoder: Decoder, apart: Collection[int] = ()) -> HeadRules:
        """Which programs have a head to be decoded apart by `decoder`; none of those whose numbers are in `apart`."""
        return HeadRules(
            self.programs,
            orientation=self._orientation,
            max_pixels=self._max_pixels,
            decoder=decoder,
            apart=apart,
        )

    def without_tails(self) -> tuple[SampleMaker, list[Tail | None]]:
        """One that leaves the last pointwise steps of each program to be done to whole batches, and these."""
        programs, tails = split_tails(self.programs)
        columns = Schema(tuple(self._schema_columns.values()))
        return SampleMaker(columns, programs, orientation=self._orientation, max_pixels=self._max_pixels), tails

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_of_thread": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._of_thread = threading.local()

    def _scratch(self, column: str) -> Scratch:
        blocks: dict[str, Scratch] = self._of_thread.__dict__
        if column not in blocks:
            blocks[column] = Scratch()
        return blocks[column]

    def make(
        self,
        raw: dict[str, Any],
        draws: Sequence[Draws],
        i: int,
        out: Sequence[tuple[Tensor | None, ...]],
        heads: BatchHeads | None = None,
        stored: Mapping[int, DecodedOutput] | None = None,
    ) -> Outputs:
        """Make sample `i` of the batch that `draws` and the slots `out` belong to.

        Args:
            raw: by column, what was read.
            draws: by program.
            i: the sample's place.
            out: by program and output, its place in the batch's slot.
            heads: what was decoded of it, or is known of how to.
            stored: by program that goes by way of the decoded cache, what is there.

        Raises:
            StageFailed: the bytes do not decode or a transform raised; says which.
        """
        stage = "decode"
        decoded: dict[str, Any] = {}
        try:
            outputs: Outputs = []
            for p, (program, drawn, slot) in enumerate(zip(self.programs, draws, out, strict=True)):
                stage = "decode"
                if stored is not None and p in stored:
                    k, before = self._take_decoded(stored[p], raw, decoded, i, out)
                    stage = "transform"
                    outputs.append(program.apply_from(k, before, drawn, i, slot))
                    continue
                pixels = heads.pixels(p, i) if heads is not None else None
                if pixels is not None:
                    stage = "transform"
                    outputs.append(program.apply_after_head(pixels, drawn, i, slot))
                    continue
                part = raw[program.columns[0]]
                view = heads.view(p, i) if heads is not None and isinstance(part, JpegPart) else None
                if view is not None:
                    window = self._decode_window(part, view, slot)
                    stage = "transform"
                    outputs.append(program.apply_window(window, view, drawn, i, slot))
                    continue
                for name in program.columns:
                    if name not in decoded:
                        decoded[name] = self._decode(self._schema_columns[name], raw[name], out)
                stage = "transform"
                outputs.append(program.apply(tuple(decoded[name] for name in program.columns), drawn, i, slot))
        except (SourceError, MemoryError):
            raise
        except RuntimeError as error:
            if _is_out_of_memory(error):
                raise MemoryError(str(error)) from error
            raise _stage_failed(stage, error) from error
        except Exception as error:  # what a decoder or the user's transform raises is the sample's fault
            if isinstance(error, DecodeError):  # audio and video are decoded when it is known which part is wanted
                stage = "decode"
            raise _stage_failed(stage, error) from error
        return outputs

    def _take_decoded(
        self,
        stored: DecodedOutput,
        raw: dict[str, Any],
        decoded: dict[str, Any],
        i: int,
        out: Sequence[tuple[Tensor | None, ...]],
    ) -> tuple[int, Tensor]:
        """A sample's pixels by way of the decoded cache, and which step of the program comes next."""
        head, name = stored.head, stored.head.column
        finished = stored.finished(i)
        if finished is not None and head.rest is not None:
            return head.rest.end, finished
        pixels = stored.stored(i)
        if pixels is None:
            if name not in decoded:
                decoded[name] = self._decode(self._schema_columns[name], raw[name], out)
            pixels = head.run(decoded[name])
            stored.keep(i, pixels)
        return len(head.steps), pixels

    def _decode_window(self, part: JpegPart, view: View, slot: tuple[Tensor | None, ...]) -> Pixels:
        return decode_window(
            part,
            view[:4],
            max_pixels=self._max_pixels,
            orientation=self._orientation,
            scratch=self._scratch("") if slot[0] is not None else None,
        )

    def _decode(self, column: Column, raw: Any, out: Sequence[tuple[Tensor | None, ...]]) -> Any:
        if isinstance(raw, JpegPart):
            raw = raw.read_whole()
        elif isinstance(raw, Unread):
            raw = raw.read()
        match column.kind:
            case Kind.IMAGE:
                copied = all(slots[k] is not None for p, k in self._users[column.name] for slots in (out[p],))
                return decode_image(
                    raw,
                    max_pixels=self._max_pixels,
                    orientation=self._orientation,
                    scratch=self._scratch(column.name) if copied else None,
                )
            case Kind.MASK:
                return decode_mask(raw, max_pixels=self._max_pixels, orientation=self._orientation)
            case Kind.AUDIO | Kind.VIDEO:
                return encoded_value(column.kind, raw, self._max_pixels)
            case Kind.STR:
                return str(raw, "utf-8")
            case Kind.BYTES:
                return bytes(raw)
            case Kind.JSON:
                return json.loads(bytes(raw))
            case _:
                return raw


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch has no memory: of its own class on a device, by its message on the CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _stage_failed(stage: str, error: Exception) -> StageFailed:
    error.add_note(f"forebay stage: {stage}")
    return StageFailed(stage)


class StageFailed(Exception):
    """A sample failed in `stage`; the cause is attached."""

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage

    def at(self, *, dataset: str, shard: str, row: int) -> SampleError:
        """The same failure with its place, for the user."""
        cause = self.__cause__
        reason = f"{type(cause).__name__}: {cause}"
        error = SampleError(
            f"{dataset}: shard {shard}, row {row}: {self.stage} failed: {reason}; repair or leave out the sample, or "
            'pass on_error="skip" to fill its place from the same shard',
            dataset=dataset,
            shard=shard,
            row=row,
            stage=self.stage,
            reason=reason,
        )
        error.__cause__ = cause
        return error


def collate(name: str, values: Sequence[Any], places: Sequence[str], *, ragged: bool, advice: str) -> Any:
    """Stack the values of one output.

    Args:
        name: of the output, for the message.
        values: one a sample.
        places: where each came from, for the message.
        ragged: the column's shape varies by declaration.
        advice: transforms that make them stack, for the message.

    Returns:
        Tensors stacked to (B, ...), images (B, 3, H, W) in channels_last memory; numbers as a tensor (B,); a list of
        tensors when `ragged`, a list of whatever else the values are.

    Raises:
        ShapeError: tensors of different shapes; names the first sample that differs.
    """
    first = values[0]
    if isinstance(first, np.generic) and not ragged:
        return torch.from_numpy(np.array(values, dtype=first.dtype))
    if isinstance(first, bool | int | float) and not ragged:
        return torch.tensor(values)
    if ragged or not isinstance(first, Tensor):
        return list(values)
    for value, place in zip(values, places, strict=True):
        if value.shape != first.shape:
            raise ShapeError(
                f"output {name!r}: {place} has shape {tuple(value.shape)}, {places[0]} has {tuple(first.shape)}, and "
                "they do not stack into one batch; declare transforms that make them equal, such as "
                f"transforms={advice}, or take batch_size=1"
            )
    if first.ndim == 3 and first.stride(0) == 1:
        return torch.stack([value.permute(1, 2, 0) for value in values]).permute(0, 3, 1, 2)
    if first.ndim == 4 and first.stride(1) == 1 and first.shape[1] == 3:  # frames of video
        return torch.stack([value.permute(0, 2, 3, 1) for value in values]).permute(0, 1, 4, 2, 3)
    return torch.stack(list(values))
