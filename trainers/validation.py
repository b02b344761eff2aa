"""Validation: exact means of loss and metrics over all samples of all ranks. It leaves no trace in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forebay.errors import ConfigError
from forebay.loader import DataLoader
from forebay.trainers.batch import Batch, Loss, Metric, to_device, valid_samples
from forebay.trainers.random_state import kept_random_state
from forebay.trainers.ranks import broadcast_buffers, gather, sums_over_ranks

__all__ = ["MetricSums", "accuracy", "evaluated", "in_order", "validate"]

INDEX = "__index__"
"""The column that tells a sample's place in the data set."""


def accuracy(outputs: Tensor, batch: Batch) -> Tensor:
    """Whether the highest of the scores (B, classes) is that of `batch["label"]` (B,): a metric, bool (B,)."""
    right: Tensor = outputs.argmax(dim=1) == batch["label"]
    return right


class MetricSums:
    """Sums of loss and metrics over the samples that count, to become means over all ranks."""

    def __init__(self, loss: Loss, metrics: Mapping[str, Metric]) -> None:
        self._loss = loss
        self._metrics = metrics
        self._sums = dict.fromkeys(["loss", *metrics], 0.0)
        self._samples = 0

    def add(self, outputs: Any, batch: Batch) -> None:
        """Count a batch; its samples that only fill a place are left out."""
        outputs, batch, samples = valid_samples(outputs, batch)
        if samples == 0:
            return
        self._samples += samples
        self._sums["loss"] += float(self._loss(outputs, batch)) * samples
        for name, metric in self._metrics.items():
            self._sums[name] += float(metric(outputs, batch).sum(dtype=torch.float64))

    def means(self, device: torch.device) -> dict[str, float]:
        """Over all ranks, the same on each. A collective."""
        *totals, samples = sums_over_ranks([*self._sums.values(), self._samples], device)
        return {name: total / max(samples, 1) for name, total in zip(self._sums, totals, strict=True)}


def evaluated(
    model: nn.Module, loader: DataLoader, *, inputs: str, device: torch.device
) -> Iterator[tuple[Any, Batch]]:
    """Outputs of the model in evaluation mode, and the batch, over the loader's first epoch.

    The generators of random numbers are afterwards as they were; the model is left in evaluation mode.
    """
    with kept_random_state(device):
        model.eval()
        loader.set_epoch(0)
        for batch in loader:
            here = to_device(batch, device)
            with torch.no_grad():
                outputs = model(here[inputs])
            yield outputs, here


def validate(
    model: nn.Module,
    loader: DataLoader,
    loss: Loss,
    metrics: Mapping[str, Metric],
    *,
    inputs: str,
    device: torch.device,
) -> dict[str, float]:
    """Means of loss ("loss") and metrics, the same on every rank. A collective."""
    broadcast_buffers(model)
    sums = MetricSums(loss, metrics)
    for outputs, batch in evaluated(model, loader, inputs=inputs, device=device):
        sums.add(outputs, batch)
    return sums.means(device)


def in_order(results: Iterator[tuple[Any, Batch]]) -> Tensor:
    """The outputs of all ranks, one for each sample of the data set that the loader covers, by index. A collective.

    Args:
        results: outputs (B, ...) and the batch with `__index__`; samples that only fill a place are left out.

    Returns:
        (N, ...) on the CPU, the same on every rank.

    Raises:
        ConfigError: the batches have no `__index__`.
    """
    pieces: list[tuple[Tensor, Tensor]] = []
    for outputs, batch in results:
        if INDEX not in batch:
            raise ConfigError(
                f'outputs cannot be put in order: the batches have no "{INDEX}"; name it among the columns'
            )
        outputs, batch, samples = valid_samples(outputs, batch)
        if samples:
            pieces.append((batch[INDEX].cpu(), outputs.cpu()))
    everywhere = [piece for of_rank in gather(pieces) for piece in of_rank]
    order = torch.cat([index for index, _ in everywhere]).argsort()
    return torch.cat([outputs for _, outputs in everywhere])[order]
