"""From a table to tensors: what every column becomes, decided once, then done unit by unit and batch by batch.

`TablePlan.prepare` makes a unit ready to be kept, `open` views it, `gather` makes batches of many. It reads no files
and starts no threads.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash
from torch import Tensor

from forebay.errors import ConfigError, SchemaError
from forebay.loader.table_columns import find_columns
from forebay.loader.table_gather import gather_batch, new_batch
from forebay.loader.table_kept import Unit, keep, kept_schema, open_unit
from forebay.loader.table_layout import plan_outputs, some_names
from forebay.loader.table_nulls import MASK_SUFFIX, NullRule
from forebay.loader.table_outputs import TableOutput
from forebay.loader.table_ragged import Ragged
from forebay.loader.table_saved import transforms_to_dict
from forebay.loader.table_stack import Stack, interleave
from forebay.loader.table_transforms import ColumnTransform
from forebay.loader.table_values import Array
from forebay.loader.table_work import ColumnWork, Made
from forebay.loader.vocabulary import Vocabulary

__all__ = ["TablePlan"]

_VERSION = 1
"""Of what `prepare` makes of equal declarations; part of the identity."""


class TablePlan:
    """What becomes of a table's columns. Immutable, picklable, safe in threads.

    Without declarations a column of numbers gives a tensor (B,) of its own type; dates, times and durations the whole
    number of their unit (`outputs` tells unit and zone); fixed-size lists (B, n); other lists a jagged tensor; strings
    and bytes Python lists; structs an output a field, `user.age`; dictionaries what their values give.

    Args:
        schema: of the tables that will come.
        columns: columns, structs or fields of structs to use; None takes all.
        stack: by the name of an output, the columns that make it one tensor (B, F): a list of names, or `T.Stack`.
        nulls: by column, `T.Fill(value)`, `T.Mask()` or `T.AsNaN()`; a null without a rule is an error.
        vocabularies: by column, the `Vocabulary` that makes codes of its values.
        ragged: by column of lists, `T.Padded(...)` or `T.Jagged()`.
        transforms: by column, declared transforms, in their order; of lists, each value is transformed.

    Raises:
        ConfigError: declarations that do not fit the columns.
        SchemaError: a column that no tensor holds.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        columns: Sequence[str] | None = None,
        stack: Mapping[str, Sequence[str] | Stack] | None = None,
        nulls: Mapping[str, NullRule] | None = None,
        vocabularies: Mapping[str, Vocabulary] | None = None,
        ragged: Mapping[str, Ragged] | None = None,
        transforms: Mapping[str, Sequence[ColumnTransform]] | None = None,
    ) -> None:
        if isinstance(columns, str):
            raise ConfigError(f"columns={columns!r} is one name; give a list: columns=[{columns!r}]")
        found = {column.name: column for column in find_columns(schema, columns)}
        declared = {"nulls": nulls, "vocabularies": vocabularies, "ragged": ragged, "transforms": transforms}
        for argument, by_column in declared.items():
            for name in by_column or ():
                if name not in found:
                    raise ConfigError(
                        f"{argument}: there is no column {name!r}; there are {some_names(found)}", column=name
                    )
        nulls, vocabularies, ragged, transforms = nulls or {}, vocabularies or {}, ragged or {}, transforms or {}
        for name, chain in transforms.items():
            if not isinstance(chain, Sequence):
                raise ConfigError(f"transforms: give column {name!r} a list of transforms, not {chain!r}", column=name)
            for step in chain:
                if not isinstance(step, ColumnTransform):
                    raise ConfigError(
                        f"column {name!r}: {step!r} is no declared transform of columns; give T.Standardize and its "
                        "kind, or do it to whole record batches in table_transform=",
                        column=name,
                    )
        self._works = {
            name: ColumnWork.plan(column, nulls.get(name), vocabularies.get(name), transforms.get(name, ()))
            for name, column in found.items()
        }
        self._stacks = {name: one if isinstance(one, Stack) else Stack(one) for name, one in (stack or {}).items()}
        self.outputs: tuple[TableOutput, ...] = tuple(plan_outputs(self._works, self._stacks, ragged))
        """What a batch consists of, with types, shapes and sources."""
        self.columns: tuple[str, ...] = tuple(dict.fromkeys(column.path[0] for column in found.values()))
        """The table's columns that are needed."""
        self.names: tuple[str, ...] = tuple(
            name for output in self.outputs for name in (output.name, output.lengths) if name is not None
        )
        """Of a batch's outputs, masks and lengths included, in their order."""
        self._wanted = frozenset(output.name for output in self.outputs)
        self._types = {name: schema.field(name).type for name in self.columns}
        self.identity: str = self._identify(transforms)
        """A hash of all that changes what `prepare` gives: equal plans meet each other's prepared units."""
        for name, count in _counts(self.names).items():
            if count > 1:
                raise ConfigError(
                    f"two outputs are called {name!r}; give the stack another name, or leave a column out"
                )

    @property
    def prepared_schema(self) -> pa.Schema:
        """Of what `prepare` gives."""
        return kept_schema(self.outputs)

    def only(self, names: Sequence[str]) -> TablePlan:
        """The same plan, with the same prepared units, that gathers fewer outputs.

        Args:
            names: of `names`; a padded list's lengths go with it.
        """
        fewer = copy.copy(self)
        fewer._wanted = frozenset(
            output.name for output in self.outputs if output.name in names or output.lengths in names
        )
        fewer.names = tuple(
            name
            for output in self.outputs
            if output.name in fewer._wanted
            for name in (output.name, output.lengths)
            if name is not None
        )
        return fewer

    def prepare(self, table: pa.Table | pa.RecordBatch, where: str) -> pa.RecordBatch:
        """Make a unit ready to gather from: one contiguous batch without nulls, each output a column.

        Args:
            table: of the schema, or with its needed columns alone.
            where: for errors, the file and row group.

        Raises:
            SchemaError: a column is missing or of another type, a null without a rule, a value that a transform or
                vocabulary refuses.
        """
        for name, kind in self._types.items():
            here = table.schema.get_all_field_indices(name)
            if len(here) != 1 or table.schema.field(here[0]).type != kind:
                has = "is missing" if not here else f"is {table.schema.field(here[0]).type}, not {kind}"
                raise SchemaError(f"column {name!r} {has} in {where}", column=name, where=where)
        made = {name: work.make(table.column(work.column.path[0]), where) for name, work in self._works.items()}
        kept: dict[str, Made | Array] = dict(made)
        for name, one in made.items():
            if one.mask is not None:
                kept[name + MASK_SUFFIX] = Made(one.mask, one.offsets, None)
        for name, stack in self._stacks.items():
            dtype = next(output.numpy_dtype for output in self.outputs if output.name == name)
            members = [made[column] for column in stack.columns]
            kept[name] = interleave([member.values for member in members], table.num_rows, dtype)
            if any(member.mask is not None for member in members):
                masks = [
                    np.ones(len(member.values), np.bool_) if member.mask is None else member.mask for member in members
                ]
                kept[name + MASK_SUFFIX] = interleave(masks, table.num_rows, np.dtype(np.bool_))
        return keep(self.outputs, kept, table.num_rows)

    def open(self, batch: pa.RecordBatch) -> Unit:
        """View what `prepare` gave, without a copy; the unit keeps `batch` alive.

        Raises:
            SchemaError: the batch is of another plan.
            ShardCorruptError: lists that lead outside of their values.
        """
        return open_unit(self.outputs, batch)

    def gather(
        self,
        units: Sequence[Unit],
        which: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        out: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Any]:
        """One batch of rows of many units. Releases the GIL while it copies.

        Args:
            units: opened by this plan.
            which: int64 (B,) by sample, the unit's place in `units`.
            rows: int64 (B,) by sample, the row in that unit.
            out: tensors to fill, as `new_batch` gives them; outputs that are not in it are new. Nobody else may use
                them during the call.

        Returns:
            By output name: tensors on the CPU, (B, ...), or lists of B strings or bytes.

        Raises:
            IndexError: a row that its unit does not have.
            ShapeError: a list longer than its padding, or a tensor in `out` that does not fit.
        """
        return gather_batch(self.outputs, units, which, rows, out, self._wanted)

    def new_batch(self, rows: int, *, pin_memory: bool = False) -> dict[str, Tensor]:
        """Tensors for `gather` to fill, of the outputs whose shape is known beforehand."""
        return new_batch(
            [output for output in self.outputs if output.name in self._wanted], rows, pin_memory=pin_memory
        )

    def _identify(self, transforms: Mapping[str, Sequence[ColumnTransform]]) -> str:
        columns = []
        for name, work in self._works.items():
            vocabulary = next((step.identity for step in work.steps if isinstance(step, Vocabulary)), None)
            column = work.column
            columns.append([name, column.path, str(column.type), repr(work.rule), vocabulary])
        stacks = {name: [list(stack.columns), str(stack.dtype)] for name, stack in self._stacks.items()}
        kept = [[output.name, output.layout, str(output.dtype), output.shape] for output in self.outputs]
        declared = {"version": _VERSION, "columns": columns, "stacks": stacks, "kept": kept}
        chains = {name: chain for name, chain in sorted(transforms_to_dict(transforms).items()) if chain}
        return xxhash.xxh3_128_hexdigest(json.dumps({**declared, "transforms": chains}).encode())

    def __repr__(self) -> str:
        return f"TablePlan({len(self._works)} columns -> {', '.join(self.names)})"


def _counts(names: Sequence[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts
