"""What a training step is given: batches on the device, each with its weight, and which of its samples count.

It reads nothing ahead: that is the loader's work, and the copy to the device too where the loader has `device=`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forebay.loader import DataLoader, ShardDataset

__all__ = ["VALID", "Batch", "Fed", "Loss", "Metric", "feed", "give_only", "to_device", "valid_samples"]

VALID = "__valid__"
"""The column that is false where a sample stands only to fill a place."""

Batch = dict[str, Any]
Loss = Callable[[Any, Batch], Tensor]
"""`(outputs, batch)` to the mean over the samples."""
Metric = Callable[[Any, Batch], Tensor]
"""`(outputs, batch)` to a number or bool for each sample, (B,)."""


@dataclass(frozen=True, slots=True)
class Fed:
    """A batch as a step gets it."""

    batch: Batch
    weight: float
    """This rank's share of the global batch's valid samples, times the ranks: the mean over ranks of loss × weight is
    the mean over samples."""
    number: int
    """Counted from 0 in this pass of the loader."""


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on `device`; copies from pinned memory are not waited for."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }


def valid_samples(outputs: Any, batch: Batch) -> tuple[Any, Batch, int]:
    """Outputs and batch without the samples that only fill a place, and how many are left."""
    valid = batch.get(VALID)
    if valid is None or bool(valid.all()):
        return outputs, batch, len(next(value for value in batch.values() if isinstance(value, Tensor)))
    kept = {k: v[valid] if isinstance(v, Tensor) and v.ndim else v for k, v in batch.items()}
    return outputs[valid], kept, int(valid.sum())


def give_only(loader: DataLoader, outputs: Sequence[str] | None) -> None:
    """Let the loader give these outputs of its data set, None means all, with the virtual columns and `__valid__`."""
    dataset = loader.dataset
    assert isinstance(dataset, ShardDataset)
    wanted = dataset.outputs if outputs is None else outputs
    virtual = dict.fromkeys([*dataset.virtual, VALID])
    if outputs is not None or VALID not in dataset.virtual:
        loader.only([*wanted, *virtual])


def feed(loader: DataLoader, batches: Iterator[Batch], device: torch.device) -> Iterator[Fed]:
    """The batches of the newest pass, on the device, with their weights."""
    for number, batch in enumerate(batches):
        yield Fed(to_device(batch, device), loader.weight_of(batch=number), number)
