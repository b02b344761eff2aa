"""Reused memory for batches: a tensor's block goes back to the pool when the user's last reference to it is gone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from forebay.loader.outputs import TensorSpec
from forebay.sharding import IDLE_READ_BLOCKS, BlockPool

__all__ = ["LoaderMemory", "SlotPool"]


class SlotPool:
    """Hands out batch tensors in recycled memory. Thread-safe.

    Every tensor that `take` gives rests on a lent block; whatever shares the tensor's storage (views, `.numpy()`,
    DLPack exports) keeps it. So a batch that the user keeps is never overwritten, and a user who keeps every batch gets
    fresh memory.
    """

    def __init__(self, *, pin_memory: bool = False, idle_limit: int = 8) -> None:
        self._pin_memory = pin_memory
        self._blocks = BlockPool(idle_limit)

    def take(self, count: int, spec: TensorSpec) -> Tensor:
        """A tensor of shape (count, *spec.shape) with unspecified content.

        (count, C, H, W) lies in channels_last memory when `spec.channels_last`. Pinned tensors come from torch's own
        allocator, which alone knows when a copy to the device has finished with them.
        """
        memory_shape, permutation = spec.memory_layout(count)
        if self._pin_memory:
            return torch.empty(memory_shape, dtype=spec.dtype, pin_memory=True).permute(permutation)
        nbytes = math.prod(memory_shape) * spec.dtype.itemsize
        block = torch.from_numpy(self._blocks.lease(nbytes)).view(spec.dtype).view(memory_shape)
        return block.permute(permutation) if spec.channels_last else block

    @property
    def idle_nbytes(self) -> int:
        """Bytes that wait for the next batch."""
        return self._blocks.idle_nbytes

    def close(self) -> None:
        """Free the idle blocks; those that the user still holds are freed when the user lets go."""
        self._blocks.close()


class LoaderMemory:
    """What the passes of one loader work in, kept from one to the next. Thread-safe.

    Args:
        pin_memory: batches lie in pinned memory.
        batches: that are kept while nobody uses them.
    """

    def __init__(self, *, pin_memory: bool, batches: int) -> None:
        self.slots = SlotPool(pin_memory=pin_memory, idle_limit=batches)
        self.reads = BlockPool(IDLE_READ_BLOCKS)
        self.expected: dict[tuple[int, int], TensorSpec] = {}
        """By program and output of audio or video that surely is nothing, what the newest batch was."""

    def close(self) -> None:
        """Free what nobody uses, and the rest when it comes home."""
        self.slots.close()
        self.reads.close()
