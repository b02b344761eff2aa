"""A data-parallel step: gradients of a rank's batches, exchanged once, then the optimizer's step. And measuring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from forebay.loader import DataLoader
from forebay.trainers.batch import Batch, Fed, Loss, Metric, give_only, valid_samples
from forebay.trainers.data_parallel_config import DataParallelConfig
from forebay.trainers.model_state import load_model_state, model_state
from forebay.trainers.random_state import kept_random_state
from forebay.trainers.ranks import broadcast_buffers, world_size
from forebay.trainers.strategy import share_model, without_sync
from forebay.trainers.update import Update
from forebay.trainers.validation import evaluated, in_order, validate

__all__ = ["DataParallelStepper"]


class DataParallelStepper:
    """Steps the model on a rank's batches, and measures it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss: Loss,
        config: DataParallelConfig,
        *,
        scheduler: LRScheduler | None,
        metrics: Mapping[str, Metric],
        inputs: str,
        device: torch.device,
        loaders: Sequence[DataLoader],
    ) -> None:
        self.update_size = config.accumulate
        self._model = model
        self._shared = model
        self._loss = loss
        self._config = config
        self._metrics = metrics
        self._inputs = inputs
        self._device = device
        self._loaders = loaders
        self._rehearse_next = False
        self._update = Update(
            optimizer, scheduler, precision=config.precision, clip_norm=config.clip_norm, device=device
        )

    def begin(self) -> None:
        """Ask the loaders for what tells valid samples, and share the model."""
        for loader in self._loaders:
            give_only(loader, None)
        self._model.to(self._device)
        self._shared = share_model(
            self._model, self._update.optimizer, self._config.strategy, self._config.comm_hook, self._device
        )

    def step(self, batches: Iterator[Fed], count: int) -> Tensor:
        """Add up the gradients of the batches, and step once."""
        self._shared.train()
        if isinstance(self._shared, FSDPModule):
            broadcast_buffers(self._model)  # as DistributedDataParallel does
        total = torch.zeros((), device=self._device)
        for i in range(count):
            fed = next(batches)
            if self._rehearse_next:
                self._rehearse(fed.batch)
            with without_sync(self._shared, last=i == count - 1):
                loss = self._forward(fed.batch) * (fed.weight / count)  # ranks are averaged: with the weight, samples
                self._update.backward(loss)
            total += loss.detach()
        self._update.step(self._model.parameters())
        return total

    def _forward(self, batch: Batch) -> Tensor:
        with self._update.autocast():
            outputs, kept, samples = valid_samples(self._shared(batch[self._inputs]), batch)
            return self._loss(outputs, kept) if samples else outputs.sum() * 0.0

    def _rehearse(self, batch: Batch) -> None:
        """Bring DistributedDataParallel to where it was in the run that was not killed.

        It groups gradients anew after its first backward pass, and more than two ranks add up in an order, hence round,
        that depends on the groups. So after a resume the first step is done once for nothing.
        """
        self._rehearse_next = False
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        with kept_random_state(self._device):
            self._forward(batch).backward()  # type: ignore[no-untyped-call]
        self._update.optimizer.zero_grad()
        for name, buffer in self._model.named_buffers():
            buffer.copy_(buffers[name])

    def validate(self, loader: DataLoader) -> dict[str, float]:
        """Measure on all ranks."""
        with self._update.autocast():
            return validate(self._model, loader, self._loss, self._metrics, inputs=self._inputs, device=self._device)

    def predict(self, loader: DataLoader) -> Tensor:
        """Outputs in the order of the data set."""
        give_only(loader, None)
        model = self._model.to(self._device)
        with self._update.autocast():
            return in_order(evaluated(model, loader, inputs=self._inputs, device=self._device))

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of model and optimizer, and of schedule and scaler."""
        return model_state(self._model, self._update.optimizer), self._update.state()

    def load_state(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        load_model_state(self._model, self._update.optimizer, tensors)
        self._update.load_state(values)
        self._rehearse_next = isinstance(self._shared, DistributedDataParallel) and world_size() > 2

    def end(self) -> None:
        """Let go of what wraps the model."""
        self._shared = self._model
