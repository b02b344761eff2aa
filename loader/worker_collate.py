"""Stacking in a worker: torch's `default_collate`, with its tensors written straight into the memory that is sent.

It replaces torch's own function for tensors in the registry of the worker's process, so that a collate function of the
user's that calls `default_collate` gains too. What the user has registered stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data._utils.collate import collate_numpy_array_fn, collate_tensor_fn, default_collate_fn_map

from forebay.loader.shared_batch import INLINE_NBYTES
from forebay.loader.shared_layout import is_plain
from forebay.loader.shared_memory import BatchMemory

__all__ = ["stack_into"]


def stack_into(memory: BatchMemory) -> None:
    """Make `default_collate` of this process stack tensors and arrays into `memory`."""

    def room(count: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        elements = count
        for size in shape:
            elements *= size
        # A small stack may travel in the message itself.
        if elements * dtype.itemsize <= INLINE_NBYTES // 2:
            return torch.empty((count, *shape), dtype=dtype)
        return memory.empty((count, *shape), dtype)

    def stack_tensors(
        batch: Sequence[Tensor], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None
    ) -> Tensor:
        first = batch[0]
        if not is_plain(first):
            return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)  # type: ignore[no-any-return]
        return torch.stack(tuple(batch), 0, out=room(len(batch), first.shape, first.dtype))

    def stack_arrays(
        batch: Sequence[npt.NDArray[Any]], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None
    ) -> Any:
        first = batch[0]
        own = (collate_fn_map or {}).get(Tensor) is stack_tensors
        if not own or not first.ndim or not first.size or not _alike(first, batch):
            return collate_numpy_array_fn(batch, collate_fn_map=collate_fn_map)
        out = room(len(batch), first.shape, _TORCH_DTYPES[first.dtype.str])
        np.concatenate(batch, axis=0, out=out.numpy().reshape(-1, *first.shape[1:]))
        return out

    if default_collate_fn_map[Tensor] is collate_tensor_fn:
        default_collate_fn_map[Tensor] = stack_tensors
        if default_collate_fn_map.get(np.ndarray) is collate_numpy_array_fn:
            default_collate_fn_map[np.ndarray] = stack_arrays


def _alike(first: npt.NDArray[Any], batch: Sequence[npt.NDArray[Any]]) -> bool:
    """Whether numpy may put them together without torch: one dtype that torch has, and one shape."""
    shape, dtype = first.shape, first.dtype
    return dtype.str in _TORCH_DTYPES and all(
        type(array) is np.ndarray and array.shape == shape and array.dtype == dtype for array in batch
    )


_TORCH_DTYPES = {
    np.dtype(name).str: torch.from_numpy(np.empty(0, name)).dtype
    for name in (
        "float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool", "complex64", "complex128"
    )
}  # fmt: skip
