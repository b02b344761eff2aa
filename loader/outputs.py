"""What makes each output of a sample: declared transforms, checked against the schema and compiled once.

A program is a list of steps on decoded values. It draws its numbers for a whole batch and runs a sample at a time,
straight into the batch's slot where the shape is known. It knows neither files nor threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from forebay.errors import ConfigError
from forebay.loader.pixels import from_pixels
from forebay.loader.randomness import DrawKey, uniforms
from forebay.loader.steps import Step, make_step
from forebay.loader.transforms import Declared, From, Transform
from forebay.sharding import Column, Kind, Schema

__all__ = ["Draws", "OutputProgram", "TensorSpec", "compile_outputs"]

Int64s = npt.NDArray[np.int64]
_Made = Sequence[Transform] | From
Transforms = Mapping[str, _Made] | Mapping[tuple[str, ...], _Made] | Mapping[str | tuple[str, ...], _Made]
_PICTURES = (Kind.IMAGE, Kind.MASK)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What every sample of an output surely is, so that a batch of them can be made in place."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool

    def memory_layout(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape in memory of a batch of `count`, and the permutation that gives it the shape it is seen with."""
        if self.channels_last:
            channels, height, width = self.shape
            return (count, height, width, channels), (0, 3, 1, 2)
        return (count, *self.shape), tuple(range(len(self.shape) + 1))


@dataclass(frozen=True, slots=True)
class Draws:
    """The numbers of one batch for one program."""

    seed: int
    epoch: int
    indices: Int64s
    occurrences: Int64s
    numbers: list[list[list[float]] | None]
    """By step: (B, draws) uniform numbers, or None."""


class OutputProgram:
    """Makes one output, or several of one geometry, from as many columns. Thread-safe: it keeps nothing."""

    def __init__(self, names: tuple[str, ...], columns: tuple[Column, ...], transforms: Sequence[Transform]) -> None:
        self.names = names
        self.columns = tuple(column.name for column in columns)
        self.ragged = tuple(column.kind is Kind.TENSOR and column.is_variable for column in columns)
        """Whether the samples of an output differ in shape by declaration."""
        self._kinds = tuple(column.kind for column in columns)
        self._pictures = all(kind in _PICTURES for kind in self._kinds)
        self._check(columns, transforms)
        self._masks = tuple(kind is Kind.MASK for kind in self._kinds)
        self._steps = [make_step(transform) for transform in transforms]
        self._keys = _step_keys(self._steps)
        self.specs = tuple(self._spec(kind) for kind in self._kinds)
        """By output, what it surely is; None where samples may differ."""

    def _check(self, columns: tuple[Column, ...], transforms: Sequence[Transform]) -> None:
        for transform in transforms:
            if isinstance(transform, Declared):
                if not self._pictures:
                    wrong = next(column for column in columns if column.kind not in _PICTURES)
                    raise ConfigError(
                        f"{type(transform).__name__} acts on image and mask columns, and {wrong.name!r} is "
                        f"{wrong.spec}; a callable f(x) acts on any"
                    )
            elif not callable(transform):
                raise ConfigError(
                    f"output {'+'.join(self.names)}: {transform!r} is no transform; give one of forebay.transforms, "
                    "or a callable"
                )

    def _spec(self, kind: Kind) -> TensorSpec | None:
        if kind is not Kind.IMAGE:
            return None  # masks have 8 or 16 bits; the rest is stacked as it is
        size: tuple[int, int] | None = None
        dtype = torch.uint8
        for step in self._steps:
            if step.opaque:
                return None
            size = step.size_after(size)
            dtype = step.dtype_after(dtype)
        return None if size is None else TensorSpec((3, *size), dtype, channels_last=True)

    def draw(self, *, seed: int, epoch: int, indices: Int64s, occurrences: Int64s) -> Draws:
        """The numbers of a batch, a vectorised call a random step.

        Args:
            seed: of the loader.
            epoch: of the pass.
            indices: int64 (B,) of the samples in the data set.
            occurrences: int64 (B,) of each in the epoch, 0 the first time.
        """
        numbers: list[list[list[float]] | None] = []
        for step, key in zip(self._steps, self._keys, strict=True):
            drawn = uniforms(self._draw_key(key, seed, epoch), indices, occurrences, step.draws) if step.draws else None
            numbers.append(None if drawn is None else drawn.tolist())
        return Draws(seed, epoch, indices, occurrences, numbers)

    def _draw_key(self, key: str, seed: int, epoch: int) -> DrawKey:
        return DrawKey(seed, "+".join(self.names), key, epoch)

    def apply(self, decoded: Sequence[Any], draws: Draws, i: int, out: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """Make sample `i` of the batch that `draws` belongs to.

        Args:
            decoded: by column: pixels uint8 (H, W, 3), a mask (H, W), or whatever else the column holds.
            draws: of the batch.
            i: the sample's place in it.
            out: by output, the place in the batch's slot to write to, of the shape of its spec, or None.

        Returns:
            The values of the outputs: `out` where it was given.

        Raises:
            Exception: whatever a callable raises; ValueError where a picture does not allow a step.
        """
        if not self._pictures:
            return self._apply_plain(decoded, draws, i)
        values = [from_pixels(pixels[:, :, None] if pixels.ndim == 2 else pixels) for pixels in decoded]
        if len(values) > 1 and len({value.shape[2:] for value in values}) > 1:
            sizes = {name: tuple(value.shape[2:]) for name, value in zip(self.columns, values, strict=True)}
            raise ValueError(f"columns that share geometry differ in size: {sizes}")
        last = len(self._steps) - 1
        for k, step in enumerate(self._steps):
            values = step.run(values, self._masks, _StepDraws(self, draws, k, i), out if k == last else None)
        return tuple(self._finish(*each) for each in zip(values, self._masks, out, strict=True))

    def _apply_plain(self, decoded: Sequence[Any], draws: Draws, i: int) -> tuple[Any, ...]:
        values = [torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value for value in decoded]
        for k, step in enumerate(self._steps):
            values = step.run(values, (), _StepDraws(self, draws, k, i), None)
        return tuple(values)

    @staticmethod
    def _finish(value: Any, mask: bool, out: Tensor | None) -> Any:
        if isinstance(value, Tensor) and value.ndim == 4:
            value = value[0, 0] if mask else value[0]
        if out is None:
            return value
        if value.data_ptr() != out.data_ptr():
            out.copy_(value)
        return out


class _StepDraws:
    """The numbers of one step for one sample; those beyond the first few are computed only when asked for."""

    __slots__ = ("_draws", "_i", "_k", "_program")

    def __init__(self, program: OutputProgram, draws: Draws, k: int, i: int) -> None:
        self._program, self._draws, self._k, self._i = program, draws, k, i

    @property
    def key(self) -> DrawKey:
        """The step's stream."""
        return self._program._draw_key(self._program._keys[self._k], self._draws.seed, self._draws.epoch)

    @property
    def sample(self) -> tuple[int, int]:
        """Index and occurrence."""
        return int(self._draws.indices[self._i]), int(self._draws.occurrences[self._i])

    def first(self) -> list[float]:
        """The numbers that were drawn with the batch."""
        numbers = self._draws.numbers[self._k]
        assert numbers is not None
        return numbers[self._i]

    def block(self, number: int) -> list[float]:
        """Four numbers: draw `number` of the sample's counter."""
        first = self.first()
        if 4 * (number + 1) <= len(first):
            return first[4 * number : 4 * (number + 1)]
        index, occurrence = self.sample
        drawn = uniforms(self.key, np.array([index]), np.array([occurrence]), 4 * (number + 1))
        block: list[float] = drawn[0, 4 * number :].tolist()
        return block


def _step_keys(steps: Sequence[Step]) -> list[str]:
    """Names of the steps' streams: the transform's name and its occurrence in the list."""
    seen: dict[str, int] = {}
    keys = []
    for step in steps:
        count = seen.get(step.name, 0)
        seen[step.name] = count + 1
        keys.append(f"{step.name}#{count}")
    return keys


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
    mentioned = {column.name for _, sources, _ in declared for column in sources}
    programs: list[OutputProgram] = []
    wanted = [column.name for column in schema.select(columns)]
    for name in dict.fromkeys([*wanted, *(c.name for _, sources, _ in declared for c in sources)]):
        if name not in mentioned:
            programs.append(OutputProgram((name,), (schema[name],), ()))
        for output, sources, steps in declared:
            if sources[0].name == name:
                programs.append(OutputProgram(output, sources, steps))
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
