"""From gradients to new parameters: precision, clipping, the optimizer's step and the schedule's. It runs no model."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR, LRScheduler, SequentialLR

from forebay.errors import ConfigError

__all__ = ["Precision", "Update", "move_parameters", "scale_learning_rate", "warm_up"]

Precision = Literal["float32", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Update:
    """Turns the gradients of a step into new parameters. Used by the training loop alone.

    With "fp16" the loss is scaled, and a step whose gradients overflow is left out (Micikevicius et al. 2018).
    """

    def __init__(
        self,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        *,
        precision: Precision,
        clip_norm: float | None,
        device: torch.device,
    ) -> None:
        if precision not in ("float32", *_DTYPES):
            raise ConfigError(f'precision={precision!r}; give "float32", "bf16" or "fp16"')
        if clip_norm is not None and not clip_norm > 0:
            raise ConfigError(f"clip_norm={clip_norm}; give a positive norm, or None not to clip")
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.clip_norm = clip_norm
        self._precision = precision
        self._device = device
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which the model and the loss run."""
        if self._precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, _DTYPES[self._precision])

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
        """Clip, step and clear the gradients, then step the schedule.

        Args:
            parameters: of this process.
            group: the processes that hold the other parameters of the model, whose gradients count for the norm.
        """
        if self.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            _clip(list(parameters), self.clip_norm, group)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.scheduler is not None:
            self.scheduler.step()

    def state(self) -> dict[str, Any]:
        """Of scaler and schedule; the optimizer's goes with the model's, by the names of parameters."""
        return {
            "scaler": self.scaler.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        if (self.scheduler is None) != (state["scheduler"] is None):
            raise ConfigError(
                f"the checkpoint does not fit: it was taken {'with' if self.scheduler is None else 'without'} a "
                "scheduler; give back what it was taken with, or another checkpoint folder to begin anew"
            )
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])


def _clip(parameters: list[nn.Parameter], limit: float, group: dist.ProcessGroup | None) -> None:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if group is None:
        torch.nn.utils.clip_grad_norm_(parameters, limit)
        return
    square = torch.stack([g.float().norm() for g in gradients]).square().sum() if gradients else torch.zeros(())
    dist.all_reduce(square, group=group)
    factor = limit / (math.sqrt(float(square)) + 1e-6)  # as torch's clip_grad_norm_ has it
    if factor < 1:
        for gradient in gradients:
            gradient.mul_(factor)


def move_parameters(optimizer: Optimizer, places: Mapping[int, nn.Parameter]) -> None:
    """Let the optimizer step other parameters than it was made with; those that have no place here it forgets.

    Args:
        optimizer: one that has not stepped yet.
        places: `id` of the parameter that it was made with, to the parameter that takes its place.

    Raises:
        ConfigError: it has stepped already, so that its state belongs to the former parameters.
    """
    if optimizer.state:
        raise ConfigError("the optimizer has stepped already, and the model is about to be divided; give a fresh one")
    for settings in optimizer.param_groups:
        settings["params"] = [places[id(parameter)] for parameter in settings["params"] if id(parameter) in places]


def scale_learning_rate(optimizer: Optimizer, factor: float) -> None:
    """Multiply every learning rate by `factor`: the global batch over the one that they were chosen for.

    The linear rule of Goyal et al. 2017; call it before a scheduler is made, and warm up.
    """
    if not factor > 0:
        raise ConfigError(f"factor={factor}; give the global batch size over the one that the learning rate is for")
    for settings in optimizer.param_groups:
        settings["lr"] *= factor


def warm_up(optimizer: Optimizer, steps: int, then: LRScheduler | None = None) -> LRScheduler:
    """A schedule that raises the learning rate linearly over `steps` steps, from a `steps`-th; `then` follows it.

    Returns:
        A scheduler for the trainer, which steps it after each optimizer step.
    """
    if steps < 1:
        raise ConfigError(f"steps={steps}; give at least 1 step of warm-up")
    rise = LinearLR(optimizer, 1 / steps, 1.0, total_iters=steps)
    return rise if then is None else SequentialLR(optimizer, [rise, then], milestones=[steps])
