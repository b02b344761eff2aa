"""Pinned batches, where there is an accelerator: which parts are pinned, by whom, and what else stays as it is.

Without one, torch's warning and plain batches are tested beside the other warnings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.dropin.same import assert_same_outcome, read
from tests.dropin.samples import Kinds, Split

Make = Callable[..., Any]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device to pin memory for")


class Own:
    """A batch that pins itself."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.pinned_by_itself = False

    def pin_memory(self) -> Own:
        """Pin, and say so."""
        self.x = self.x.pin_memory()
        self.pinned_by_itself = True
        return self


def own(batch: Sequence[Tensor]) -> dict[str, Any]:
    """A batch with one of these in it."""
    return {"own": Own(torch.stack(tuple(batch))), "name": "batch"}


def pinned(batch: Any) -> list[bool]:
    """Of every tensor in a batch, whether it is pinned."""
    if isinstance(batch, Tensor):
        return [batch.is_pinned()]
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return [each for part in parts for each in pinned(part)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["tensor", "tuple", "named tuple", "nested", "str", "ordered dict", "frozen mapping"])
def test_what_torch_pins_is_pinned_and_nothing_else_changes(workers: int, kind: str) -> None:
    def use(make: Make) -> Any:
        batches = read(make(Kinds(kind, 9, 5000), 2, num_workers=workers, pin_memory=True), 2)
        return batches, [pinned(batch) for epoch in batches for batch in epoch]

    assert_same_outcome(use)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_s_own_pin_memory_is_called(workers: int) -> None:
    def use(make: Make) -> Any:
        batches = list(make(Kinds("tensor", 6), 2, num_workers=workers, pin_memory=True, collate_fn=own))
        return [(batch["own"].x, batch["own"].x.is_pinned(), batch["own"].pinned_by_itself) for batch in batches]

    assert all(is_pinned and itself for _, is_pinned, itself in assert_same_outcome(use))


@pytest.mark.parametrize("persistent", [False, True])
def test_a_stream_left_early_and_begun_again_is_pinned_too(persistent: bool) -> None:
    def use(make: Make) -> Any:
        loader = make(Split(40), 2, num_workers=2, pin_memory=True, persistent_workers=persistent)
        first = [batch for batch, _ in zip(loader, range(3), strict=False)]
        second = list(loader)
        loader._iterator = None
        return first, second, [pinned(batch) for batch in second]

    assert_same_outcome(use)
