"""A batch cut into micro-batches of one size for a pipeline, by views, and the loss of each as its share of the whole.

Only a batch with fewer samples than its places, the last of an epoch, is copied: its last sample fills the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forebay.trainers.batch import VALID, Batch, Loss, valid_samples

__all__ = ["MicroLoss", "filled"]


def filled(batch: Batch, rows: int) -> Batch:
    """The batch with its last sample repeated until there are `rows`; what was added is not `__valid__`."""
    sizes = [len(value) for value in batch.values() if isinstance(value, Tensor) and value.ndim]
    if not sizes or sizes[0] == rows:
        return batch
    device = next(value.device for value in batch.values() if isinstance(value, Tensor) and value.ndim)
    places = torch.arange(rows, device=device)
    source = places.clamp(max=sizes[0] - 1)
    full = {k: v[source] if isinstance(v, Tensor) and v.ndim else v for k, v in batch.items()}
    full[VALID] = full.get(VALID, torch.ones(rows, dtype=torch.bool, device=device)) & (places < sizes[0])
    return full


class MicroLoss:
    """The loss of a micro-batch, so weighted that the mean over a batch's micro-batches is the batch's weighted loss.

    torch's schedule calls it with the micro-batch's number in place of a target.
    """

    def __init__(self, loss: Loss, microbatches: int) -> None:
        self._loss = loss
        self._microbatches = microbatches
        self._batch: Batch = {}
        self._weight = 1.0
        self._valid = 1
        self.numbers = torch.arange(microbatches)
        """The target that is given to the schedule."""

    def take(self, batch: Batch, weight: float, rows: int) -> None:
        """The batch that the next step is of."""
        self._batch, self._weight = batch, weight
        valid = batch.get(VALID)
        self._valid = rows if valid is None else int(valid.sum())

    def __call__(self, outputs: Tensor, number: Tensor) -> Tensor:
        """The weighted loss of the micro-batch with this number."""
        size = len(outputs)
        first = int(number) * size
        views = {k: v[first : first + size] if isinstance(v, Tensor) and v.ndim else v for k, v in self._batch.items()}
        outputs, views, samples = valid_samples(outputs, views)
        if samples == 0:
            return outputs.sum() * 0.0
        return self._loss(outputs, views) * (self._weight * samples * self._microbatches / self._valid)
