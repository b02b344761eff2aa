"""What makes each output of a sample: declared transforms, checked against the schema and compiled once.

A program is a list of steps on decoded values. It draws its numbers for a whole batch and runs a sample at a time,
straight into the batch's slot where the shape is known. It knows neither files nor threads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from forebay.errors import ConfigError
from forebay.loader.draws import Draws, Numbers, draw
from forebay.loader.geometry import View
from forebay.loader.heads import compile_head
from forebay.loader.media_steps import (
    PICTURES,
    TIMED,
    advice_for,
    check_acts_on,
    decoded_value,
    make_steps,
)
from forebay.loader.mixing import CutMix, MixUp
from forebay.loader.pixels import from_pixels, render
from forebay.loader.randomness import DrawKey
from forebay.loader.steps import Step
from forebay.loader.tensor_spec import TensorSpec, array_spec, timed_spec
from forebay.loader.transforms import Declared, From, Transform
from forebay.sharding import Column, Kind, Schema

__all__ = ["Draws", "OutputProgram", "TensorSpec", "compile_outputs"]

Int64s = npt.NDArray[np.int64]
_Made = Sequence[Transform] | From
Transforms = Mapping[str, _Made] | Mapping[tuple[str, ...], _Made] | Mapping[str | tuple[str, ...], _Made]
_RESIZED = (torch.uint8, torch.float32, torch.float64)


class OutputProgram:
    """Makes one output, or several of one geometry, from as many columns. Thread-safe: it keeps nothing.

    Args:
        names: of the outputs.
        columns: that they come from.
        transforms: in order.
        shared: others read the same decoded values, so a callable, which may change what it is given, gets a copy.
        drawn_as: names of the outputs that share its random numbers, itself among them; None: its own alone.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        columns: tuple[Column, ...],
        transforms: Sequence[Transform],
        *,
        shared: bool = False,
        drawn_as: tuple[str, ...] | None = None,
    ) -> None:
        self.names = names
        self._drawn_as = names if drawn_as is None else drawn_as
        self.columns = tuple(column.name for column in columns)
        self.ragged = tuple(column.kind is Kind.TENSOR and column.is_variable for column in columns)
        """Whether the samples of an output differ in shape by declaration."""
        self._kinds = tuple(column.kind for column in columns)
        self.is_image = self._kinds == (Kind.IMAGE,)
        """Whether it makes one output of one column of pictures."""
        self._pictures = all(kind in PICTURES for kind in self._kinds)
        self._given = columns, transforms, shared
        self._check(columns, transforms)
        self._masks = tuple(kind is Kind.MASK for kind in self._kinds)
        self._steps = make_steps(columns, transforms)
        self.steps = tuple(self._steps)
        self._check_types()
        self._copied_at = next((k for k, step in enumerate(self._steps) if step.opaque and shared), None)
        self._streams = _stream_names(self._steps)
        self.timed = self._kinds[0] in TIMED
        """Whether it makes audio or video, which may be given a place that does not fit."""
        self.specs = self._specs(columns, transforms)
        """By output, what it surely is; None where samples may differ."""
        self.unsized = (self._pictures or self.timed) and None in self.specs
        """Whether it makes pictures, or clips, whose size only decoding tells."""
        self.head = compile_head(self._steps) if self._kinds == (Kind.IMAGE,) else None
        """The steps that a decoder can do by itself; None when there are none."""
        self.all_head = self.head is not None and len(self.head.steps) == len(self._steps)
        """Whether these are all."""
        self.opaque = any(step.opaque for step in self._steps)
        """Whether it calls what is not ours, and may take any time."""
        self.needs_process = any(step.needs_process for step in self._steps)
        """Whether it draws from generators that threads share."""
        self.scalar = not self._steps and self._kinds == (Kind.SCALAR,)
        """Whether its values are just those of a scalar column."""

    def _check(self, columns: tuple[Column, ...], transforms: Sequence[Transform]) -> None:
        for transform in transforms:
            if isinstance(transform, Declared):
                check_acts_on(transform, columns)
            elif isinstance(transform, MixUp | CutMix):
                raise ConfigError(
                    f"output {'+'.join(self.names)}: {type(transform).__name__} acts on batches; give it to the "
                    "loader: DataLoader(..., batch_transforms=[...])"
                )
            elif not callable(transform) or (isinstance(transform, type) and issubclass(transform, Declared)):
                raise ConfigError(
                    f"output {'+'.join(self.names)}: {transform!r} is no transform; give one of forebay.transforms, "
                    "or a callable"
                )

    def _check_types(self) -> None:
        dtype = torch.uint8
        for step in self._steps:
            if step.opaque:
                return
            if step.resizes and dtype not in _RESIZED:
                raise ConfigError(
                    f"output {'+'.join(self.names)}: {step.name} acts on uint8, float32 and float64, not on "
                    f"{dtype}; put it before ToDtype"
                )
            dtype = step.dtype_after(dtype)

    def _specs(self, columns: tuple[Column, ...], transforms: Sequence[Transform]) -> tuple[TensorSpec | None, ...]:
        if self.timed:
            return (timed_spec(self._kinds[0], transforms, self._steps),)
        if self._steps or Kind.IMAGE in self._kinds:
            return tuple(self._spec() if kind is Kind.IMAGE else None for kind in self._kinds)
        return tuple(map(array_spec, columns))

    def _spec(self) -> TensorSpec | None:
        size: tuple[int, int] | None = None
        dtype = torch.uint8
        for step in self._steps:
            if step.opaque:
                return None
            size = step.size_after(size)
            dtype = step.dtype_after(dtype)
        return None if size is None else TensorSpec((3, *size), dtype, channels_last=True)

    def advice(self, k: int) -> str:
        """Transforms that would make the samples of output k equal in shape, as one declares them."""
        return advice_for(self._kinds[k], self.names[k])

    def split_pointwise(self) -> tuple[OutputProgram, tuple[Step, ...]]:
        """This program without the steps at its end that change single values, and these.

        All stays as it is where there are none, or where it makes anything but one picture of a known size.
        """
        columns, transforms, shared = self._given
        count = len(self._steps)
        while count and self._steps[count - 1].pointwise:
            count -= 1
        if count == len(self._steps) or self._kinds != (Kind.IMAGE,) or self.specs[0] is None:
            return self, ()
        head = OutputProgram(self.names, columns, transforms[:count], shared=shared, drawn_as=self._drawn_as)
        return head, tuple(self._steps[count:])

    def only(self, outputs: Collection[str]) -> OutputProgram | None:
        """One that makes just those of its outputs, with the same values; None: they are none of its own.

        Raises:
            ConfigError: a callable makes them together with others.
        """
        chosen = [k for k, name in enumerate(self.names) if name in outputs]
        if len(chosen) in (0, len(self.names)):
            return self if chosen else None
        if self.opaque:
            raise ConfigError(
                f"output {self.names[chosen[0]]!r} alone: a callable makes {' and '.join(self.names)} together; "
                "ask for all of them, or give each a list of transforms of its own"
            )
        columns, transforms, shared = self._given
        names = tuple(self.names[k] for k in chosen)
        return OutputProgram(
            names, tuple(columns[k] for k in chosen), transforms, shared=shared, drawn_as=self._drawn_as
        )

    def draw(self, *, seed: int, epoch: int, indices: Int64s, occurrences: Int64s) -> Draws:
        """The numbers of a batch, by one vectorised call.

        Args:
            seed: of the loader.
            epoch: of the pass.
            indices: int64 (B,) of the samples in the data set.
            occurrences: int64 (B,) of each in the epoch, 0 the first time.
        """
        output = "+".join(self._drawn_as)
        keys = [DrawKey(seed, output, name, epoch) for name in self._streams]
        return draw(keys, [step.draws for step in self._steps], indices, occurrences)

    def apply(self, decoded: Sequence[Any], draws: Draws, i: int, out: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """Make sample `i` of the batch that `draws` belongs to.

        Args:
            decoded: by column: pixels uint8 (H, W, 3), a mask (H, W), or whatever else the column holds.
            draws: of the batch.
            i: the sample's place in it.
            out: by output, the place in the batch's slot to write to, (1, *shape) by its spec, or None.

        Returns:
            The values of the outputs; `out` itself where it was given.

        Raises:
            Exception: whatever a callable raises; ValueError where a picture does not allow a step.
        """
        if self.timed:
            return self._apply_timed(decoded[0], draws, i, out[0])
        if not self._pictures:
            return self._apply_plain(decoded, draws, i, out)
        values = [from_pixels(pixels[:, :, None] if pixels.ndim == 2 else pixels) for pixels in decoded]
        if len(values) > 1 and len({value.shape[2:] for value in values}) > 1:
            sizes = {name: tuple(value.shape[2:]) for name, value in zip(self.columns, values, strict=True)}
            raise ValueError(f"columns that share geometry differ in size: {sizes}")
        return self._run(values, range(len(self._steps)), draws, i, out)

    def apply_window(
        self, pixels: Any, view: View, draws: Draws, i: int, out: Sequence[Tensor | None]
    ) -> tuple[Any, ...]:
        """`apply`, given only the window that the head's view looks at: uint8 (view.height, view.width, 3)."""
        assert self.head is not None
        values = [render(from_pixels(pixels), view)]
        todo = [k for k, step in enumerate(self._steps) if k >= len(self.head.steps) or step.pointwise]
        return self._run(values, todo, draws, i, out)

    def apply_after_head(self, pixels: Tensor, draws: Draws, i: int, out: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """The rest of `apply`, given the pixels (1, 3, H, W) after the head."""
        assert self.head is not None
        return self._run([pixels], range(len(self.head.steps), len(self._steps)), draws, i, out)

    def apply_from(self, k: int, pixels: Tensor, draws: Draws, i: int, out: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """The rest of `apply` from step k on, given the pixels (1, 3, H, W) before it; they may be changed."""
        return self._run([pixels], range(k, len(self._steps)), draws, i, out)

    def _run(
        self, values: list[Any], todo: Sequence[int], draws: Draws, i: int, out: Sequence[Tensor | None]
    ) -> tuple[Any, ...]:
        for k in todo:
            if k == self._copied_at:
                values = [value.clone(memory_format=torch.channels_last) for value in values]
            values = self._steps[k].run(values, self._masks, Numbers(draws, k, i), out if k == todo[-1] else None)
        return tuple(self._finish(*each) for each in zip(values, self._masks, out, strict=True))

    def _apply_timed(self, source: Any, draws: Draws, i: int, out: Tensor | None) -> tuple[Any, ...]:
        values = [source]
        for k, step in enumerate(self._steps):
            if not step.hears_encoded:
                values = [decoded_value(values[0])]
            values = step.run(values, () if step.opaque else self._masks, Numbers(draws, k, i), None)
        place = None if out is None else out[0]
        value = decoded_value(values[0], place)
        if place is None or not isinstance(value, Tensor) or (value.shape, value.dtype) != (place.shape, place.dtype):
            return (value,)
        if value.data_ptr() != place.data_ptr():
            place.copy_(value)
        return (place,)

    def _apply_plain(
        self, decoded: Sequence[Any], draws: Draws, i: int, out: Sequence[Tensor | None]
    ) -> tuple[Any, ...]:
        values = [_array(value, place) for value, place in zip(decoded, out, strict=True)]
        for k, step in enumerate(self._steps):
            values = step.run(values, (), Numbers(draws, k, i), None)
        return tuple(values)

    @staticmethod
    def _finish(value: Any, mask: bool, out: Tensor | None) -> Any:
        if out is not None:
            if value.data_ptr() != out.data_ptr():
                out.copy_(value)
            return out
        if isinstance(value, Tensor) and value.ndim == 4:
            return value[0, 0] if mask else value[0]
        return value


def _array(value: Any, place: Tensor | None) -> Any:
    """An array as a tensor in its place; anything else as it is.

    It is copied once: torch has no tensors that cannot be written to, and what was read may be a map of the file.
    """
    if not isinstance(value, np.ndarray):
        return value
    if place is None:
        return torch.from_numpy(np.array(value))
    np.copyto(place[0].numpy(), value)
    return place[0]


def _stream_names(steps: Sequence[Step]) -> list[str]:
    """Names of the steps' streams: the transform's name and its occurrence in the list."""
    seen: dict[str, int] = {}
    names = []
    for step in steps:
        count = seen.get(step.name, 0)
        seen[step.name] = count + 1
        names.append(f"{step.name}#{count}")
    return names


def compile_outputs(
    schema: Schema, columns: Sequence[str] | None, transforms: Transforms | None
) -> list[OutputProgram]:
    """One program an output, in the order of the columns that they come from.

    Args:
        schema: of the data set.
        columns: those to read; None takes all. A column that a transform mentions is read in any case.
        transforms: what makes each output; columns that no output mentions become outputs of their own name.

    Raises:
        SchemaError: a column that does not exist; names those that do.
        ConfigError: a transform that cannot act on its column, or an output that is made twice.
    """
    declared = [_declaration(schema, key, value) for key, value in (transforms or {}).items()]
    names = [name for output, _, _ in declared for name in output]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"transforms: output {name!r} is made twice")
        if name.startswith("__"):
            raise ConfigError(f"transforms: output {name!r}: names that begin with __ are forebay's own")
    read = [column.name for _, sources, _ in declared for column in sources]
    programs: list[OutputProgram] = []
    wanted = [column.name for column in schema.select(columns)]
    for name in dict.fromkeys([*wanted, *read]):
        if name not in read:
            programs.append(OutputProgram((name,), (schema[name],), ()))
        for output, sources, steps in declared:
            if sources[0].name == name:
                shared = any(read.count(column.name) > 1 for column in sources)
                programs.append(OutputProgram(output, sources, steps, shared=shared))
    return programs


def _declaration(
    schema: Schema, key: str | tuple[str, ...], value: Sequence[Transform] | From
) -> tuple[tuple[str, ...], tuple[Column, ...], Sequence[Transform]]:
    """Output names, columns and steps of one entry of `transforms`."""
    names = key if isinstance(key, tuple) else (key,)
    if isinstance(value, From):
        if len(names) != 1:
            raise ConfigError(f"transforms: From names one column, and {key!r} are several outputs; give a plain list")
        return names, tuple(_find(schema, value.column, key)), tuple(value.transforms)
    if not isinstance(value, list | tuple):
        raise ConfigError(f"transforms[{key!r}] is {value!r}; give a list of transforms, or T.From(column, [...])")
    return names, tuple(column for name in names for column in _find(schema, name, key)), tuple(value)


def _find(schema: Schema, name: str, key: object) -> Iterator[Column]:
    if name not in schema:
        raise ConfigError(
            f"transforms[{key!r}]: there is no column {name!r}; the columns are {list(schema.names)}. An output of "
            'another name says its column: {"view": T.From("image", [...])}'
        )
    yield schema[name]
