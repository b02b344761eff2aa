"""A pipeline's step: a batch through torch's schedule, gradients averaged over the pipelines, the optimizer's step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from forebay.loader import DataLoader, ShardDataset
from forebay.trainers.batch import Batch, Fed, Loss, Metric, give_only, to_device
from forebay.trainers.microbatches import MicroLoss, filled
from forebay.trainers.model_state import load_model_state, model_state
from forebay.trainers.random_state import kept_random_state
from forebay.trainers.stages import StageModules, stages_of_rank
from forebay.trainers.update import Precision, Update, move_parameters
from forebay.trainers.validation import MetricSums

__all__ = ["PipelineStepper", "ScheduleName"]

ScheduleName = Literal["gpipe", "1f1b", "interleaved"]


class PipelineStepper:
    """Steps this rank's stages, together with the ranks of its pipeline and those with the same stages."""

    update_size = 1

    def __init__(
        self,
        modules: Sequence[nn.Module],
        cuts: Sequence[int],
        optimizer: Optimizer,
        loss: Loss,
        mesh: DeviceMesh,
        *,
        schedule: ScheduleName,
        microbatches: int,
        precision: Precision,
        clip_norm: float | None,
        scheduler: LRScheduler | None,
        metrics: Mapping[str, Metric],
        inputs: str,
        targets: Sequence[str] | None,
        device: torch.device,
        loaders: tuple[DataLoader, DataLoader | None],
    ) -> None:
        self._pipeline = mesh["pp"].get_group()
        self._peers = mesh["dp"].get_group()
        ranks, here = mesh["pp"].size(), mesh.get_local_rank("pp")
        bounds = [0, *cuts, len(modules)]
        self._stages = len(cuts) + 1
        self._mine = stages_of_rank(here, ranks=ranks, stages=self._stages)
        self._parts = [StageModules(modules[bounds[s] : bounds[s + 1]], bounds[s]) for s in self._mine]
        self._model = nn.ModuleDict({name: module for part in self._parts for name, module in part.named_children()})
        self._first, self._last = here == 0, here == ranks - 1
        self._ranks, self._data_ranks = ranks, mesh["dp"].size()
        self._schedule_name = schedule
        self._microbatches = microbatches
        self._loss = loss
        self._metrics = metrics
        self._inputs = inputs
        self._targets = targets
        self._device = device
        self._loaders = loaders
        self._micro_loss = MicroLoss(loss, microbatches)
        self._update = Update(optimizer, scheduler, precision=precision, clip_norm=clip_norm, device=device)
        self._training: Any = None
        self._evaluation: Any = None
        self._rehearsed = False

    def begin(self) -> None:
        """Cut the model and join the schedule."""
        for loader in self._loaders:
            if loader is not None:
                give_only(loader, self._outputs(loader))
        self._model.to(self._device)
        for tensor in [*self._model.parameters(), *self._model.buffers()]:
            dist.broadcast(tensor.detach(), group=self._peers, group_src=0)
        move_parameters(self._update.optimizer, {id(parameter): parameter for parameter in self._model.parameters()})
        self._training, self._evaluation = self._schedule(self._micro_loss), self._schedule(None)
        self._rehearsed = False

    def _outputs(self, loader: DataLoader) -> list[str]:
        """What this rank needs of the data: nothing, between the first stage and the last."""
        assert isinstance(loader.dataset, ShardDataset)
        targets = loader.dataset.outputs if self._targets is None else self._targets
        others = [name for name in targets if name != self._inputs or self._targets is not None]
        return list(dict.fromkeys([*([self._inputs] if self._first else []), *(others if self._last else [])]))

    def _schedule(self, loss: MicroLoss | None) -> Any:
        stages = [
            PipelineStage(part, index, self._stages, self._device, group=self._pipeline)
            for part, index in zip(self._parts, self._mine, strict=True)
        ]
        if self._schedule_name == "interleaved":
            return ScheduleInterleaved1F1B(stages, self._microbatches, loss_fn=loss)  # type: ignore[arg-type]
        kind = ScheduleGPipe if self._schedule_name == "gpipe" else Schedule1F1B
        return kind(stages[0], self._microbatches, loss_fn=loss)

    def _rows(self, loader: DataLoader) -> int:
        """Places in each batch: the same in all, so that every stage knows what comes."""
        rows = loader.batch_size
        if loader.global_batch_size is not None:
            rows = -(-loader.global_batch_size // self._data_ranks)
        assert rows is not None
        return -(-rows // self._microbatches) * self._microbatches

    def step(self, batches: Iterator[Fed], count: int) -> Tensor:
        """Pass one batch through all stages."""
        assert count == 1
        fed, rows = next(batches), self._rows(self._loaders[0])
        batch = filled(fed.batch, rows)
        self._micro_loss.take(batch, fed.weight, rows)
        self._model.train()
        if not self._rehearsed:
            self._rehearse(batch)
        losses = self._run(batch)
        self._average_gradients()
        self._update.step(self._model.parameters(), self._pipeline)
        # Only the last stage knows it, and the loop takes the mean over all ranks.
        return torch.stack(losses).mean().detach() * self._ranks if losses else torch.zeros((), device=self._device)

    def _run(self, batch: Batch) -> list[Tensor]:
        losses: list[Tensor] = []
        with self._update.autocast():
            self._training.step(
                *([batch[self._inputs]] if self._first else []),
                target=self._micro_loss.numbers if self._last else None,
                losses=losses if self._last else None,
                return_outputs=False,
            )
        return losses

    def _rehearse(self, batch: Batch) -> None:
        """Let the schedule learn the shapes that pass: it runs the stages on anything for that, with running means."""
        self._rehearsed = True
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        with kept_random_state(self._device):
            self._run(batch)
        self._update.optimizer.zero_grad()
        for name, buffer in self._model.named_buffers():
            buffer.copy_(buffers[name])

    def _average_gradients(self) -> None:
        """In one message, after the last micro-batch: a wrapper would send in the middle of the schedule's messages."""
        gradients = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        if self._data_ranks == 1 or not gradients:
            return
        together = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(together, group=self._peers)
        together /= self._data_ranks
        parts = torch.split(together, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def validate(self, loader: DataLoader) -> dict[str, float]:
        """Measure on the last stage."""
        sums, rows = MetricSums(self._loss, self._metrics), self._rows(loader)
        for buffer in self._model.buffers():
            dist.broadcast(buffer, group=self._peers, group_src=0)
        self._model.eval()
        loader.set_epoch(0)
        with kept_random_state(self._device), torch.no_grad(), self._update.autocast():
            for told in loader:
                batch = filled(to_device(told, self._device), rows)
                outputs = self._evaluation.step(*([batch[self._inputs]] if self._first else []))
                if self._last:
                    sums.add(outputs, batch)
        return sums.means(self._device)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of the modules of this rank."""
        return model_state(self._model, self._update.optimizer), self._update.state()

    def load_state(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        load_model_state(self._model, self._update.optimizer, tensors)
        self._update.load_state(values)

    def end(self) -> None:
        """Let go of the schedules."""
        self._training = self._evaluation = None
