"""Where the tensors and arrays of a batch lie in its memory, and the copies that bring them there.

Tensors that share memory lie in one block, so that they share it on the other side; it pickles and sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from forebay.loader.shared_memory import BatchMemory
from forebay.loader.shared_segments import ALIGNMENT, Bytes

__all__ = [
    "CODES",
    "DTYPES",
    "Array",
    "Block",
    "Layout",
    "describe_array",
    "describe_tensors",
    "is_flat",
    "is_plain",
]

DTYPES = (
    torch.float32, torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool,
    torch.int16, torch.int8, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
)  # fmt: skip
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_LOOSE = 4
"""A view that spans more than so many times its bytes (a column of a table) is sent without what lies between."""
_INLINE = -1

Block = tuple[int, int, int]
"""Segment's place in the message's list (-1: the message itself), first byte, length."""
Array = npt.NDArray[Any]


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is nothing but elements in the memory of this process."""
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype in CODES
        and not tensor.is_nested
    )


def is_flat(dtype: np.dtype[Any]) -> bool:
    """Whether an array of this type is nothing but bytes, and the type is told by a string or by its fields."""
    return bool(dtype.itemsize) and not dtype.hasobject and (dtype.kind in "biufcSUmM" or dtype.fields is not None)


class Layout:
    """Which bytes go where: blocks, by number, that lie in the batch's memory already or are to be copied."""

    def __init__(self, memory: BatchMemory) -> None:
        self._memory = memory
        self._copies: list[tuple[int, Bytes | Tensor]] = []
        self.blocks: list[Block] = []
        self.nbytes = 0
        """To be copied."""

    def add(self, source: Bytes | Tensor, address: int = 0) -> int:
        """Have some bytes in a block; `address` is theirs, where they may lie in the batch's memory."""
        place = self._memory.find(address, source.nbytes) if address else None
        if place is not None:
            self.blocks.append((*place, source.nbytes))
        else:
            self.blocks.append((_INLINE, 0, source.nbytes))
            if source.nbytes:
                self._copies.append((len(self.blocks) - 1, source))
                self.nbytes += -(-source.nbytes // ALIGNMENT) * ALIGNMENT
        return len(self.blocks) - 1

    def carry_out(self, *, inline: bool) -> bytes:
        """Copy; gives the bytes that go with the message itself."""
        if not self._copies:
            return b""
        if inline:
            here, segment, offset = np.empty(self.nbytes, np.uint8), _INLINE, 0
        else:
            here, segment, offset = self._memory.take(self.nbytes)
        into, at = torch.from_numpy(here), offset
        for number, source in self._copies:
            self.blocks[number] = segment, at, source.nbytes
            tensor = torch.from_numpy(source) if isinstance(source, np.ndarray) else source
            into[at : at + source.nbytes].copy_(tensor)
            at += -(-source.nbytes // ALIGNMENT) * ALIGNMENT
        return here.tobytes() if inline else b""


def _extent(tensor: Tensor) -> int:
    """Elements from the first to the last that a tensor with elements touches."""
    return 1 + sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _tight(tensor: Tensor) -> Tensor:
    """The tensor itself, or a dense copy where its memory holds mostly something else."""
    loose = not tensor.is_contiguous() and tensor.numel() and _extent(tensor) > _LOOSE * tensor.numel()
    return tensor.contiguous() if loose else tensor


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor; one with a side of 1 may have others there, and be contiguous too."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _bytes_of(tensor: Tensor, first: int, nbytes: int) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), first, (nbytes,))  # type: ignore[call-overload,no-any-return]


def _describe(plan: Layout, tensor: Tensor) -> tuple[Any, ...]:
    """One tensor in a block of its own: block, dtype, shape, strides unless row-major, and first element there."""
    tensor = _tight(tensor)
    itemsize = tensor.itemsize
    strides = None if tensor.stride() == _row_major(tensor.shape) else tensor.stride()
    if not tensor.numel():
        return plan.add(np.empty(0, np.uint8)), CODES[tensor.dtype], tuple(tensor.shape), tensor.stride(), 0
    nbytes = _extent(tensor) * itemsize
    block = plan.add(_bytes_of(tensor, int(tensor.storage_offset()) * itemsize, nbytes), tensor.data_ptr())
    return block, CODES[tensor.dtype], tuple(tensor.shape), strides, 0


def describe_array(plan: Layout, array: Array) -> tuple[Any, ...]:
    """Block, dtype, shape and order; an array keeps the layout that pickling it would keep."""
    order: Any = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    flat = np.asarray(array, order=order).reshape(-1, order=order)
    named = array.dtype.kind != "V" and np.dtype(array.dtype.str) == array.dtype and not array.dtype.metadata
    return plan.add(flat.view(np.uint8)), array.dtype.str if named else array.dtype, array.shape, order


def describe_tensors(plan: Layout, tensors: list[Tensor]) -> list[tuple[Any, ...]]:
    """Tensors whose memory overlaps get one block together, so that they share it afterwards as they did before."""
    tensors = [t.resolve_conj().resolve_neg() if t.is_conj() or t.is_neg() else t for t in tensors]
    if len(tensors) == 1:
        return [_describe(plan, tensors[0])]
    by_storage: dict[int, list[int]] = {}
    for i, tensor in enumerate(tensors):
        by_storage.setdefault(tensor.untyped_storage().data_ptr() or -1 - i, []).append(i)
    table: list[Any] = [None] * len(tensors)
    for members in by_storage.values():
        for group in _overlapping(tensors, members) if len(members) > 1 else [members]:
            if len(group) == 1:
                table[group[0]] = _describe(plan, tensors[group[0]])
                continue
            spans = [_span(tensors[i]) for i in group]
            first, end = min(start for start, _ in spans), max(stop for _, stop in spans)
            source = _bytes_of(tensors[group[0]], first, end - first)
            block = plan.add(source, source.data_ptr())
            for i, (start, _) in zip(group, spans, strict=True):
                t = tensors[i]
                table[i] = block, CODES[t.dtype], tuple(t.shape), t.stride(), (start - first) // t.itemsize
    return table


def _span(tensor: Tensor) -> tuple[int, int]:
    """First byte in the storage, and the one after the last."""
    first = int(tensor.storage_offset()) * tensor.itemsize
    return first, first + (_extent(tensor) * tensor.itemsize if tensor.numel() else 0)


def _overlapping(tensors: list[Tensor], members: Sequence[int]) -> Iterator[list[int]]:
    group: list[int] = []
    end = widest = 0
    for first, stop, i in sorted((*_span(tensors[i]), i) for i in members):
        itemsize = tensors[i].itemsize
        if group and (first >= end or first % max(widest, itemsize)):
            yield group
            group, end, widest = [], 0, 0
        group.append(i)
        end, widest = max(end, stop), max(widest, itemsize)
    if group:
        yield group
