"""Rows of many units as one batch of tensors: one native call for all fixed columns, one for each column of lists.

There is no Python per row but for strings, which are Python's own. Which rows, somebody else decides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from forebay.errors import ShapeError
from forebay.loader.row_kernel import list_lengths, take_lists, take_rows
from forebay.loader.table_kept import Unit
from forebay.loader.table_outputs import Layout, TableOutput
from forebay.loader.table_ragged import Padded
from forebay.loader.table_values import Array

__all__ = ["gather_batch", "new_batch"]

Places = npt.NDArray[np.int64]
Batch = dict[str, Any]


def new_batch(outputs: Sequence[TableOutput], rows: int, *, pin_memory: bool = False) -> dict[str, Tensor]:
    """Tensors for `gather_batch` to fill, of all outputs whose shape is known before the batch is."""
    batch = {}
    for output in outputs:
        if (shape := output.padded_shape) is not None:
            batch[output.name] = torch.empty((rows, *shape), dtype=output.dtype, pin_memory=pin_memory)
            if output.lengths is not None:
                batch[output.lengths] = torch.empty(rows, dtype=torch.int64, pin_memory=pin_memory)
    return batch


def gather_batch(
    outputs: Sequence[TableOutput],
    units: Sequence[Unit],
    which: Places,
    rows: Places,
    out: Mapping[str, Tensor] | None,
    wanted: Collection[str],
) -> Batch:
    """The batch, by output name in the order of `outputs`, those in `wanted`; see `TablePlan.gather`."""
    if not wanted:
        return {}
    which, rows = np.ascontiguousarray(which, np.int64), np.ascontiguousarray(rows, np.int64)
    sizes = np.array([unit.rows for unit in units], np.int64)
    batch: Batch = {}
    count = dict.fromkeys(Layout, 0)
    fixed: dict[int, Tensor] = {}
    for output in outputs:
        number = count[output.layout]
        count[output.layout] += 1
        if output.name not in wanted:
            continue
        match output.layout:
            case Layout.FIXED:
                tensor = _take_out(out, output.name, (len(rows), *output.shape), output.dtype)
                fixed[number] = tensor
                batch[output.name] = tensor
            case Layout.LISTS:
                batch |= _lists(output, [unit.lists[number] for unit in units], units, number, sizes, which, rows, out)
            case _:
                place = count[Layout.TEXTS] + count[Layout.TEXT_LISTS] - 1
                batch[output.name] = _texts([unit.texts[place] for unit in units], which, rows)
    if fixed:
        numbers = list(fixed)
        addresses = np.concatenate([unit.fixed_addresses for unit in units]) if units else np.empty(0, np.uint64)
        addresses = np.ascontiguousarray(addresses.reshape(len(units), count[Layout.FIXED])[:, numbers].T)
        columns: list[Sequence[Array]] = [unit.fixed for unit in units]
        if len(numbers) < count[Layout.FIXED]:
            columns = [[each[number] for number in numbers] for each in columns]
        take_rows(columns, addresses, sizes, which, rows, [tensor.numpy() for tensor in fixed.values()])
    return batch


def _take_out(out: Mapping[str, Tensor] | None, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor:
    if out is None or name not in out:
        return torch.empty(shape, dtype=dtype)
    tensor = out[name]
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        raise ShapeError(
            f"out[{name!r}] is {tensor.dtype} {tuple(tensor.shape)}, and the batch {dtype} {shape}; give one that is, "
            "contiguous"
        )
    return tensor


def _lists(
    output: TableOutput,
    parts: Sequence[tuple[Places, Any]],
    units: Sequence[Unit],
    number: int,
    sizes: Places,
    which: Places,
    rows: Places,
    out: Mapping[str, Tensor] | None,
) -> Batch:
    offsets, values = [part[0] for part in parts], [part[1] for part in parts]
    addresses = np.ascontiguousarray(
        np.array([unit.list_addresses[number] for unit in units], np.uint64).reshape(-1, 2).T
    )
    lengths = list_lengths(offsets, addresses[0], sizes, which, rows)
    ragged, from_end, batch = output.ragged, False, Batch()
    if isinstance(ragged, Padded):
        longest = int(lengths.max(initial=0))
        length = longest if ragged.length is None else ragged.length
        if longest > length and ragged.cut is None:
            place = int(np.argmax(lengths))
            raise ShapeError(
                f"column {output.name!r}: the list of row {rows[place]} has {longest} values, and Padded {length}; "
                f'declare T.Padded({longest}) or T.Padded({length}, cut="start") or "end", what is kept',
                column=output.name,
                row=int(rows[place]),
                unit=int(which[place]),
            )
        from_end = ragged.cut == "end"
        counts = np.minimum(lengths, length)
        begins = np.arange(len(rows), dtype=np.int64) * length
        tensor = _take_out(out, output.name, (len(rows), length, *output.shape), output.dtype)
        tensor.fill_(ragged.value)
        flat = tensor.numpy().reshape(len(rows) * length, *output.shape)
        batch[output.name] = tensor
        if output.lengths is not None:
            shown = _take_out(out, output.lengths, (len(rows),), torch.int64)
            shown.numpy()[:] = counts
            batch[output.lengths] = shown
    else:
        counts, ends = lengths, np.cumsum(lengths)
        begins = ends - lengths
        total = int(ends[-1]) if len(ends) else 0
        kept = torch.empty((total, *output.shape), dtype=output.dtype)
        flat = kept.numpy()
        bounds = torch.zeros(len(rows) + 1, dtype=torch.int64)
        bounds.numpy()[1:] = ends
        batch[output.name] = torch.nested.nested_tensor_from_jagged(kept, bounds)
    take_lists(offsets, values, addresses, sizes, which, rows, begins, counts, flat, from_end=from_end)
    return batch


def _texts(arrays: Sequence[pa.Array], which: Places, rows: Places) -> list[Any]:
    order = np.argsort(which, kind="stable")
    present, begins = np.unique(which[order], return_index=True)
    parts = np.split(rows[order], begins[1:])
    if not len(rows):
        return []
    taken = pa.concat_arrays([arrays[unit].take(pa.array(part)) for unit, part in zip(present, parts, strict=True)])
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    texts = taken.take(pa.array(back))
    if pa.types.is_large_list(texts.type):
        listed: list[Any] = texts.to_pylist()
        return listed
    plain: list[Any] = texts.to_numpy(zero_copy_only=False).tolist()
    return plain
