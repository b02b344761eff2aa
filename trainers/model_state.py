"""Model and optimizer as a checkpoint has them: by the names of parameters, on any number of ranks and stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from forebay.errors import ConfigError

__all__ = ["load_model_state", "model_state"]

_BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)


def model_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Parameters, buffers and the optimizer's state, not copied."""
    return {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=_BY_NAME),
    }


def load_model_state(model: nn.Module, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Take back what `model_state` gave.

    Raises:
        ConfigError: it is of another model or optimizer.
    """
    try:
        set_model_state_dict(model, state["model"])
        set_optimizer_state_dict(model, optimizer, state["optimizer"], options=_BY_NAME)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the checkpoint does not fit: {error}; it is of another model or optimizer. Give back what it was taken "
            "with, or another checkpoint folder to begin anew"
        ) from error
