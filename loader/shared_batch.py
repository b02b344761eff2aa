"""A batch as one message: tensors and arrays as places in shared memory, everything else pickled as torch would.

It decides where bytes lie and copies them there. It knows no socket, and not when memory is free again.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forebay.loader.shared_layout import (
    DTYPES,
    Array,
    Block,
    Layout,
    describe_array,
    describe_tensors,
    is_flat,
    is_plain,
)
from forebay.loader.shared_memory import BatchMemory
from forebay.loader.shared_segments import Bytes, SegmentRef

__all__ = ["INLINE_NBYTES", "PackedBatch", "pack", "unpack"]

INLINE_NBYTES = 16 << 10
"""Batches up to this size travel in the message itself: a copy of them costs less than a segment."""

_LENGTHS = struct.Struct("<III")


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A message about a batch, and what goes along."""

    parts: list[bytes | memoryview]
    fds: list[int]


class _BatchPickler(ForkingPickler):
    """Sets tensors and arrays aside, to be placed in memory, and leaves their numbers in the pickle."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self.arrays: list[Array] = []

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is Tensor:
            if is_plain(obj) and not obj.requires_grad and not obj._backward_hooks:
                self.tensors.append(obj)
                return _tensor, (len(self.tensors) - 1,)
        elif kind is np.ndarray and is_flat(obj.dtype):
            self.arrays.append(obj)
            return _array, (len(self.arrays) - 1,)
        return NotImplemented


def _tensor(number: int) -> Tensor:
    raise pickle.UnpicklingError(f"tensor {number} of a batch is elsewhere; forebay.loader.shared_batch.unpack has it")


def _array(number: int) -> Array:
    raise pickle.UnpicklingError(f"array {number} of a batch is elsewhere; forebay.loader.shared_batch.unpack has it")


def pack(batch: object, memory: BatchMemory) -> PackedBatch:
    """Write a batch as a message. What lies in `memory` already is not copied.

    Raises:
        Exception: whatever pickling raises; the memory is taken back then.
    """
    file = io.BytesIO()
    pickler = _BatchPickler(file)
    try:
        pickler.dump(batch)
        return _place(file.getbuffer(), pickler.tensors, pickler.arrays, memory)
    except BaseException:
        memory.give_up()
        raise


def _place(pickled: memoryview, tensors: list[Tensor], arrays: list[Array], memory: BatchMemory) -> PackedBatch:
    plan = Layout(memory)
    tensor_table = describe_tensors(plan, tensors)
    array_table = [describe_array(plan, array) for array in arrays]
    inline = plan.nbytes + len(pickled) <= INLINE_NBYTES
    pickle_block = None
    if not inline and len(pickled) > INLINE_NBYTES // 2:
        pickle_block = plan.add(np.frombuffer(pickled, dtype=np.uint8))
        pickled = memoryview(b"")
    data = plan.carry_out(inline=inline)
    table = pickle.dumps((plan.blocks, tensor_table, array_table, pickle_block), pickle.HIGHEST_PROTOCOL)
    table_block = None
    if len(table) > INLINE_NBYTES:
        here, segment, offset = memory.take(len(table))
        here[offset : offset + len(table)] = np.frombuffer(table, dtype=np.uint8)
        table_block, table = (segment, offset, len(table)), b""
    references, fds, dropped = memory.lend()
    head = pickle.dumps((references, dropped, table_block), pickle.HIGHEST_PROTOCOL)
    return PackedBatch([_LENGTHS.pack(len(head), len(table), len(pickled)), head, table, pickled, data], fds)


class _BatchUnpickler(pickle.Unpickler):
    """Puts the tensors and arrays back in."""

    def __init__(self, file: Any, tensor: Callable[[int], Tensor], array: Callable[[int], Array]) -> None:
        super().__init__(file)
        self._here = {"_tensor": tensor, "_array": array}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if module_name == __name__ and global_name in self._here:
            return self._here[global_name]
        return super().find_class(module_name, global_name)


def unpack(message: bytes, open_segments: Callable[[list[SegmentRef], list[int]], list[Bytes]]) -> Any:
    """Read what `pack` wrote.

    Args:
        message: of a worker of this loader, and so trusted as much as the data set's code is.
        open_segments: gives the memory of the segments named, having forgotten those of the numbers given.
    """
    head_nbytes, table_nbytes, pickle_nbytes = _LENGTHS.unpack_from(message)
    view = memoryview(message)[_LENGTHS.size :]
    head, view = view[:head_nbytes], view[head_nbytes:]
    table, view = view[:table_nbytes], view[table_nbytes:]
    pickled, inline = view[:pickle_nbytes], view[pickle_nbytes:]
    references, dropped, table_block = pickle.loads(head)  # noqa: S301 - of our own worker
    regions = open_segments(references, dropped)
    if table_block is not None:
        table = _part(regions, table_block)
    regions.append(np.frombuffer(bytearray(inline), dtype=np.uint8))  # block -1
    blocks, tensor_table, array_table, pickle_block = pickle.loads(table)  # noqa: S301
    if pickle_block is not None:
        pickled = _part(regions, blocks[pickle_block])
    bases: dict[int, Tensor] = {}

    def tensor(number: int) -> Tensor:
        block, code, shape, strides, first = tensor_table[number]
        region, offset, nbytes = blocks[block]
        dtype = DTYPES[code]
        if not nbytes:
            return torch.empty_strided(shape, strides, dtype=dtype)
        if strides is None:
            return torch.frombuffer(regions[region], dtype=dtype, count=nbytes // dtype.itemsize, offset=offset).view(
                shape
            )
        base = bases.get(block)
        if base is None:
            bases[block] = base = torch.frombuffer(regions[region], dtype=torch.uint8, count=nbytes, offset=offset)
        return torch.empty(0, dtype=dtype).set_(base.untyped_storage(), first, shape, strides)

    def array(number: int) -> Array:
        block, dtype, shape, order = array_table[number]
        region, offset, nbytes = blocks[block]
        if not nbytes:
            return np.empty(shape, dtype, order)
        return np.ndarray(shape, dtype, buffer=regions[region], offset=offset, order=order)

    return _BatchUnpickler(io.BytesIO(pickled), tensor, array).load()


def _part(regions: list[Bytes], block: Block) -> memoryview:
    region, offset, nbytes = block
    return regions[region][offset : offset + nbytes].data
