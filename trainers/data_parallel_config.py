"""The options of data-parallel training, checked when they are given. They do nothing themselves."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import ConfigError
from forebay.trainers.strategy import CommHook, Strategy
from forebay.trainers.update import Precision

__all__ = ["DataParallelConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DataParallelConfig:
    """How the model is shared among ranks, and how a step is made of batches."""

    strategy: Strategy = "ddp"
    """"ddp" copies the model to each rank; "fsdp2" gives each a part, when it does not fit. Alone neither acts."""
    precision: Precision = "float32"
    """Of the model's operations, by torch.autocast; parameters stay float32. "fp16" scales the loss."""
    accumulate: int = 1
    """Batches a step; their gradients are added up, and exchanged once. Each batch counts alike."""
    clip_norm: float | None = None
    """The longest that a step's gradient may be; None leaves it."""
    comm_hook: CommHook | None = None
    """Sends the gradients of "ddp" in half; "bf16" needs NCCL. None sends them as they are."""

    def __post_init__(self) -> None:
        if self.strategy not in ("ddp", "fsdp2"):
            raise ConfigError(f'strategy={self.strategy!r}; give "ddp" or "fsdp2"')
        if self.accumulate < 1:
            raise ConfigError(f"accumulate={self.accumulate}; give at least 1 batch a step")
        if self.comm_hook not in (None, "fp16", "bf16"):
            raise ConfigError(f'comm_hook={self.comm_hook!r}; give "fp16", "bf16" or None')
        if self.comm_hook is not None and self.strategy != "ddp":
            raise ConfigError(f'comm_hook={self.comm_hook!r} is for strategy="ddp"; leave it out')
