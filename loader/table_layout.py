"""Which outputs a table's columns and stacks make: names, types and shapes, masks and lengths included.

Decided when a plan is made, and refused there when columns do not go together; no rows are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from forebay.errors import ConfigError
from forebay.loader.table_columns import TableColumn
from forebay.loader.table_nulls import MASK_SUFFIX, Mask
from forebay.loader.table_outputs import Layout, TableOutput
from forebay.loader.table_ragged import LENGTH_SUFFIX, Jagged, Padded, Ragged
from forebay.loader.table_stack import Stack, stack_dtype
from forebay.loader.table_work import ColumnWork

__all__ = ["plan_outputs", "some_names"]


def plan_outputs(
    works: Mapping[str, ColumnWork], stacks: Mapping[str, Stack], ragged: Mapping[str, Ragged]
) -> list[TableOutput]:
    """The outputs of single columns in their order, then the stacks.

    Raises:
        ConfigError: a stack's columns do not go together, or a declaration of lists is of no lists.
    """
    outputs: list[TableOutput] = []
    stacked = {name for stack in stacks.values() for name in stack.columns}
    for name, work in works.items():
        if name not in stacked:
            outputs += _alone(work, ragged.get(name))
        elif name in ragged:
            raise ConfigError(f"ragged: column {name!r} is in a stack, which takes no lists", column=name)
    for name, stack in stacks.items():
        outputs += _stacked(name, stack, works)
    return outputs


def _alone(work: ColumnWork, ragged: Ragged | None) -> list[TableOutput]:
    """A column's own output, and its mask's."""
    column, source = work.column, (_source(work.column),)
    if ragged is not None and not isinstance(ragged, Jagged | Padded):
        raise ConfigError(
            f"ragged: give {column.name!r} T.Padded(...) or T.Jagged(), not {ragged!r}", column=column.name
        )
    if ragged is not None and (not column.ragged or work.dtype is None):
        raise ConfigError(
            f"ragged: column {column.name!r} is {column.type}, no lists of numbers; leave it out of ragged=",
            column=column.name,
        )
    if work.dtype is None:
        layout, dtype, how = Layout.TEXT_LISTS if column.ragged else Layout.TEXTS, None, None
    else:
        layout, dtype = Layout.LISTS if column.ragged else Layout.FIXED, _torch_dtype(work.dtype)
        how = (ragged or Jagged()) if column.ragged else None
    lengths = column.name + LENGTH_SUFFIX if isinstance(how, Padded) and how.lengths else None
    binary = dtype is None and pa.types.is_large_binary(column.value)
    outputs = [TableOutput(column.name, layout, dtype, column.shape, source, how, binary, lengths)]
    if isinstance(work.rule, Mask):
        layout = Layout.LISTS if column.ragged else Layout.FIXED
        how = ragged or Jagged() if column.ragged else None
        if isinstance(how, Padded):
            how = Padded(how.length, value=False, cut=how.cut)
        outputs.append(TableOutput(column.name + MASK_SUFFIX, layout, torch.bool, column.shape, source, how))
    return outputs


def _source(column: TableColumn) -> str:
    return f"{column.name} {column.type}"


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype.name)
    return found


def _stacked(name: str, stack: Stack, works: Mapping[str, ColumnWork]) -> list[TableOutput]:
    members, width, masked = [], 0, False
    for column in stack.columns:
        if column not in works:
            raise ConfigError(
                f"stack {name!r}: there is no column {column!r}; there are {some_names(works)}", column=column
            )
        work = works[column]
        if work.dtype is None or work.column.ragged:
            what = "lists of different lengths" if work.column.ragged else "texts"
            raise ConfigError(
                f"stack {name!r}: column {column!r} holds {what}; leave it out"
                + ("" if work.column.ragged else ", or declare a vocabulary or T.HashBucket for it"),
                column=column,
            )
        members.append((column, work.dtype))
        width += work.column.width
        masked |= isinstance(work.rule, Mask)
    dtype = _torch_dtype(stack_dtype(name, stack, members))
    source = tuple(_source(works[column].column) for column in stack.columns)
    outputs = [TableOutput(name, Layout.FIXED, dtype, (width,), source)]
    if masked:
        outputs.append(TableOutput(name + MASK_SUFFIX, Layout.FIXED, torch.bool, (width,), source))
    return outputs


def some_names(names: Mapping[str, Any]) -> str:
    """The first of some names, for a message."""
    shown = ", ".join(list(names)[:20])
    return shown if len(names) <= 20 else f"{shown}, ... ({len(names)} columns)"
