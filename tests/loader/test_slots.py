"""Reused memory: home when the last reference is gone, and not a moment sooner."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.dlpack
from torch import Tensor

from forebay.loader.outputs import TensorSpec
from forebay.loader.slots import SlotPool

SPEC = TensorSpec(shape=(3, 8, 6), dtype=torch.float32, channels_last=True)


def test_a_slot_has_the_shape_asked_for_in_channels_last_memory() -> None:
    slot = SlotPool().take(5, SPEC)
    assert slot.shape == (5, 3, 8, 6)
    assert slot.dtype == torch.float32
    assert slot.is_contiguous(memory_format=torch.channels_last)
    assert slot.data_ptr() % 16 == 0
    slot.zero_()


WAYS_TO_KEEP: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda slot: slot,
    "slice": lambda slot: slot[2:3],
    "view": lambda slot: slot.permute(0, 2, 3, 1).view(-1),
    "numpy": lambda slot: slot.numpy()[1],
    "dlpack": torch.utils.dlpack.from_dlpack,
    "storage": lambda slot: slot.untyped_storage(),
    "buffer": lambda slot: slot.numpy().data,
    "samples": lambda slot: {"nested": [slot.unbind()]},
}


@pytest.mark.parametrize("keep", WAYS_TO_KEEP.values(), ids=WAYS_TO_KEEP.keys())
def test_while_anything_refers_to_it_the_memory_is_not_used_again(keep: Callable[[Tensor], Any]) -> None:
    pool = SlotPool()
    slot = pool.take(4, SPEC)
    address = slot.data_ptr()
    kept = keep(slot)
    del slot
    gc.collect()
    assert pool.take(4, SPEC).data_ptr() != address
    del kept
    gc.collect()
    again = [pool.take(4, SPEC) for _ in range(2)]
    assert address in [slot.data_ptr() for slot in again]


def test_a_slot_dropped_in_another_thread_comes_home() -> None:
    pool = SlotPool()
    held = [pool.take(4, SPEC)]
    address = held[0].data_ptr()
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert pool.take(4, SPEC).data_ptr() == address


def test_no_more_is_kept_idle_than_allowed_and_nothing_after_closing() -> None:
    pool = SlotPool(idle_limit=2)
    slots = [pool.take(1, SPEC) for _ in range(5)]
    del slots
    assert pool.idle_nbytes == 2 * 3 * 8 * 6 * 4
    slot = pool.take(1, SPEC)
    pool.close()
    assert pool.idle_nbytes == 0
    slot.fill_(1.0)
    del slot
    assert pool.idle_nbytes == 0
