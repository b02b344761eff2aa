"""Validation: exact means of loss and metrics over all samples of all ranks. It leaves no trace in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forebay.loader import DataLoader
from forebay.trainers.checkpoint import random_state, restore_random_state
from forebay.trainers.ranks import broadcast_buffers, sums_over_ranks

__all__ = ["VALID", "Batch", "Loss", "Metric", "accuracy", "to_device", "validate"]

VALID = "__valid__"
"""The column that is false where a sample stands only to fill a place."""

Batch = dict[str, Any]
Loss = Callable[[Any, Batch], Tensor]
"""`(outputs, batch)` to the mean over the samples."""
Metric = Callable[[Any, Batch], Tensor]
"""`(outputs, batch)` to a number or bool for each sample, (B,)."""


def accuracy(outputs: Tensor, batch: Batch) -> Tensor:
    """Whether the highest of the scores (B, classes) is that of `batch["label"]` (B,): a metric, bool (B,)."""
    right: Tensor = outputs.argmax(dim=1) == batch["label"]
    return right


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on `device`; copies from pinned memory are not waited for."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }


def validate(
    model: nn.Module,
    loader: DataLoader,
    loss: Loss,
    metrics: Mapping[str, Metric],
    *,
    inputs: str,
    device: torch.device,
) -> dict[str, float]:
    """Means of loss ("loss") and metrics, the same on every rank. A collective.

    The model is left in evaluation mode; generators of random numbers are left as they were.
    """
    generators = random_state(device)
    broadcast_buffers(model)
    model.eval()
    sums = dict.fromkeys(["loss", *metrics], 0.0)
    samples = 0
    loader.set_epoch(0)
    with torch.inference_mode():
        for batch in loader:
            here = to_device(batch, device)
            outputs, count = model(here[inputs]), len(here[inputs])
            if VALID in here and not bool(here[VALID].all()):
                valid = here[VALID]
                outputs, count = outputs[valid], int(valid.sum())
                here = {k: v[valid] if isinstance(v, Tensor) else v for k, v in here.items()}
            if count:
                samples += count
                sums["loss"] += float(loss(outputs, here)) * count
                for name, metric in metrics.items():
                    sums[name] += float(metric(outputs, here).sum(dtype=torch.float64))
    restore_random_state(generators, device)
    *totals, samples_everywhere = sums_over_ranks([*sums.values(), samples], device)
    return {name: total / max(samples_everywhere, 1) for name, total in zip(sums, totals, strict=True)}
