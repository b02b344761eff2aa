"""How far a run has come, as a checkpoint has it: written down from all its parts, and taken back by them."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from forebay.errors import ConfigError
from forebay.loader import DataLoader
from forebay.trainers.checkpoint import Checkpoints
from forebay.trainers.random_state import random_state, restore_random_state
from forebay.trainers.ranks import gather, rank
from forebay.trainers.report import EpochReport
from forebay.trainers.stepper import Stepper

__all__ = ["Run", "load_run", "run_state"]

logger = logging.getLogger(__name__)

_VERSION = 2


@dataclass(kw_only=True)
class Run:
    """How far training has come."""

    epoch: int = 0
    step: int = 0
    epoch_step: int = 0
    """Steps done of `epoch`."""
    epoch_loss: float = 0.0
    """Sum of their losses."""
    reports: list[EpochReport] = field(default_factory=list)
    first_step: int = 0
    losses: list[float] = field(default_factory=list)
    """Since `first_step`, over all ranks."""
    pending: list[tuple[Tensor, range]] = field(default_factory=list)
    """Losses of this rank that are still on the device, and the numbers of their batches."""


def run_state(run: Run, stepper: Stepper, loader: DataLoader, device: torch.device) -> dict[str, Any]:
    """What `Checkpoints.save` is given, on every rank."""
    tensors, values = stepper.state()
    progress = {
        "epoch": run.epoch,
        "epoch_step": run.epoch_step,
        "epoch_loss": run.epoch_loss,
        "reports": [asdict(report) for report in run.reports],
    }
    return {
        **tensors,
        "version": _VERSION,
        "run": json.dumps(progress),
        "loader": json.dumps(loader.state_dict()),
        "values": SimpleNamespace(**values),
        f"random.{rank()}": SimpleNamespace(**random_state(device)),
    }


def load_run(checkpoints: Checkpoints, step: int, stepper: Stepper, loader: DataLoader, device: torch.device) -> Run:
    """Give every part what the checkpoint of `step` has of it. A collective.

    Raises:
        ConfigError: it is of another model, optimizer, data set or version.
    """
    keys = checkpoints.keys(step)
    tensors, values = stepper.state()
    _check_names(step, set().union(*gather(set(_leaves(tensors)))), keys)
    state = tensors | {"version": 0, "run": "", "loader": "", "values": SimpleNamespace(**values)}
    mine = f"random.{rank()}"
    if mine in keys:  # ranks that were not there before keep their own
        state[mine] = SimpleNamespace()
    checkpoints.load(step, state)
    if state["version"] != _VERSION:
        raise ConfigError(
            f"the checkpoint of step {step} has version {state['version']!r}, this forebay reads {_VERSION}; "
            "go on with the version that wrote it, or give another checkpoint folder to begin anew"
        )
    stepper.load_state({name: state[name] for name in tensors}, vars(state["values"]))
    loader.load_state_dict(json.loads(state["loader"]))
    if mine in keys:
        restore_random_state(vars(state[mine]), device)
    told = json.loads(state["run"])
    reports = [EpochReport.from_dict(report) for report in told.pop("reports")]
    logger.info("going on after step %d, in epoch %d", step, told["epoch"])
    return Run(step=step, first_step=step, reports=reports, **told)


def _check_names(step: int, expected: set[str], found: set[str]) -> None:
    ours = {"version", "run", "loader", "values"}
    found = {name for name in found if name not in ours and not name.startswith("random.")}
    if expected != found:
        missing, unknown = sorted(expected - found)[:3], sorted(found - expected)[:3]
        raise ConfigError(
            f"the checkpoint of step {step} does not fit: it lacks {missing} and has {unknown} besides; it is of "
            "another model, optimizer or scheduler. Give back what it was taken with, or another checkpoint folder "
            "to begin anew"
        )


def _leaves(tree: dict[str, Any], prefix: str = "") -> list[str]:
    """The names that the checkpoint gives to the values of nested dicts."""
    names: list[str] = []
    for key, value in tree.items():
        names += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [f"{prefix}{key}"]
    return names
