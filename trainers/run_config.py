"""A training run as a file says it: the tables of a TOML, checked, with nothing left unread. It builds nothing."""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from forebay.errors import ConfigError

__all__ = ["DataTable", "ModelTable", "OptimizerTable", "RunConfig", "TrainTable", "read_config"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataTable:
    """`[data]`: what is read, and how."""

    train: str
    """Folder or URL of the shards."""
    validation: str | None = None
    """Likewise; None measures nothing."""
    cache: str | None = None
    """As `ShardDataset` takes it: "/nvme/forebay:200GB"."""
    columns: list[str] | None = None
    """To be read; None reads all."""
    transforms: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By output, a list of tables: `name` of one of forebay.transforms, and its arguments."""
    validation_transforms: dict[str, list[dict[str, Any]]] | None = None
    """Instead of these, for validation."""
    batch_size: int = 32
    """Samples a rank."""
    shuffle: bool = True
    """Of the training data."""
    seed: int | None = None
    """Of order and augmentation."""
    num_workers: int = 0
    """Decode threads; 0 means this process's share of the cores."""
    tail: Literal["drop", "pad", "short"] = "drop"
    """What becomes of a last batch that is not full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelTable:
    """`[model]`: what is trained, by import paths such as "package.module:name"."""

    make: str
    """Called with `arguments`; gives the model, for a pipeline an `nn.Sequential` or a list of modules."""
    loss: str
    """`loss(outputs, batch)`, the mean over the samples."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Of `make`."""
    metrics: dict[str, str] = field(default_factory=dict)
    """Name to import path."""
    inputs: str = "image"
    """The output of the data that goes into the model."""
    targets: list[str] | None = None
    """In a pipeline: the outputs that loss and metrics look at."""
    seed: int = 0
    """Of its first values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerTable:
    """`[optimizer]`: how parameters change."""

    make: str = "torch.optim:AdamW"
    """Called with the parameters and `arguments`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Its own: lr, weight_decay and the like."""
    batch_size_of_lr: int | None = None
    """The global batch size for which `lr` was chosen: it is scaled in proportion. None takes it as it is."""
    warm_up_steps: int = 0
    """Steps in which the learning rate rises."""
    schedule: str | None = None
    """Import path of a torch scheduler that follows, called with the optimizer and `schedule_arguments`."""
    schedule_arguments: dict[str, Any] = field(default_factory=dict)
    """Of `schedule`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainTable:
    """`[train]`: how long, where its state is kept, and how ranks share the work."""

    epochs: int
    """Passes over the data."""
    checkpoint: str | None = None
    """Folder of this run; None keeps nothing."""
    every_steps: int = 500
    """Steps from one checkpoint to the next."""
    device: str | None = None
    """None means a GPU where there is one."""
    stage_ranks: int = 0
    """Ranks in a pipeline; 0 trains data-parallel."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of `DataParallelConfig`, or of `PipelineConfig` where `stage_ranks` is given."""
    tensorboard: str | None = None
    """Folder for scalars."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """The whole file."""

    data: DataTable
    model: ModelTable
    train: TrainTable
    optimizer: OptimizerTable = field(default_factory=OptimizerTable)


def read_config(path: str | os.PathLike[str]) -> RunConfig:
    """Read a TOML file.

    Raises:
        ConfigError: it is not there, is no TOML, lacks a setting or has one that nobody knows.
    """
    try:
        tables = tomllib.loads(Path(path).read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{os.fspath(path)} cannot be read as TOML: {error}") from error
    kinds: dict[str, type[Any]] = {
        "data": DataTable,
        "model": ModelTable,
        "train": TrainTable,
        "optimizer": OptimizerTable,
    }
    given = {
        name: _table(kinds[name], table, where=f"{os.fspath(path)}, [{name}]") if name in kinds else table
        for name, table in tables.items()
    }
    return _table(RunConfig, given, where=os.fspath(path))


def _table(kind: type[T], values: Any, *, where: str) -> T:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} is {values!r}; give a table")
    known = {each.name: each for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {close[0]!r}?" if close else f"there are {sorted(known)}"
            raise ConfigError(f"{where}: there is no setting {name!r}; {meant}")
    missing = [
        name
        for name, each in known.items()
        if name not in values and each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where} lacks {missing[0]!r}; add it")
    return kind(**values)
