"""A run from its configuration: data sets, model, optimizer and trainer are made, then trained. It parses no file."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from forebay.errors import ConfigError
from forebay.loader import DataLoader, ShardDataset, transforms
from forebay.trainers.checkpoint_folder import CheckpointConfig
from forebay.trainers.data_parallel import DataParallelTrainer
from forebay.trainers.data_parallel_config import DataParallelConfig
from forebay.trainers.pipeline import PipelineConfig, PipelineTrainer, pipeline_mesh
from forebay.trainers.progress import ConsoleProgress, TrainProgress
from forebay.trainers.ranks import choose_device, joined_ranks, world_size
from forebay.trainers.report import TrainReport
from forebay.trainers.run_config import RunConfig
from forebay.trainers.tensorboard import TensorBoardProgress
from forebay.trainers.update import scale_learning_rate, warm_up

__all__ = ["import_name", "train"]


def import_name(path: str) -> Any:
    """What "package.module:name" names.

    Raises:
        ConfigError: there is no such module or name.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f'{path!r} cannot be imported: {error}; give "package.module:name", from a folder on PYTHONPATH'
        ) from error


def train(config: RunConfig, *, progress: TrainProgress | None = None) -> TrainReport:
    """Make what the configuration says, and train it, on every rank that torchrun started.

    Args:
        config: read from a file, or made in Python.
        progress: who is told; None shows it on standard error.
    """
    told: TrainProgress = ConsoleProgress() if progress is None else progress
    if config.train.tensorboard is not None:
        told = TensorBoardProgress(config.train.tensorboard, beside=told)
    device = choose_device(config.train.device)
    if config.train.stage_ranks:
        with pipeline_mesh(config.train.stage_ranks, device) as mesh:
            return _trainer(config, told, device, mesh).fit()
    with joined_ranks(device):
        return _trainer(config, told, device, None).fit()


def _trainer(
    config: RunConfig, progress: TrainProgress, device: torch.device, mesh: DeviceMesh | None
) -> DataParallelTrainer | PipelineTrainer:
    torch.manual_seed(config.model.seed)
    made = import_name(config.model.make)(**config.model.arguments)
    model = made if isinstance(made, torch.nn.Module) else torch.nn.Sequential(*made)
    optimizer, scheduler = _optimizer(config, model, world_size() if mesh is None else mesh["dp"].size())
    validation = None if config.data.validation is None else _loader(config, device, mesh, training=False)
    options: dict[str, Any] = {
        "epochs": config.train.epochs,
        "validation": validation,
        "metrics": {name: import_name(path) for name, path in config.model.metrics.items()},
        "scheduler": scheduler,
        "inputs": config.model.inputs,
        "checkpoint": None
        if config.train.checkpoint is None
        else CheckpointConfig(path=Path(config.train.checkpoint), every_steps=config.train.every_steps),
        "progress": progress,
    }
    loss, loader = import_name(config.model.loss), _loader(config, device, mesh, training=True)
    if mesh is None:
        parallel = _settings(DataParallelConfig, config.train.settings)
        return DataParallelTrainer(model, optimizer, loss, loader, config=parallel, device=device, **options)
    modules = list(model.children()) if isinstance(model, torch.nn.Sequential) else [model]
    pipeline = _settings(PipelineConfig, config.train.settings)
    return PipelineTrainer(
        modules, optimizer, loss, loader, mesh=mesh, config=pipeline, targets=config.model.targets, **options
    )


def _settings(kind: Any, values: Mapping[str, Any]) -> Any:
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        return kind(**given)
    except TypeError as error:
        raise ConfigError(f"[train] settings: {error}; look at {kind.__name__} for what there is") from error


def _optimizer(config: RunConfig, model: torch.nn.Module, data_ranks: int) -> tuple[Optimizer, LRScheduler | None]:
    table = config.optimizer
    optimizer: Optimizer = import_name(table.make)(model.parameters(), **table.arguments)
    if table.batch_size_of_lr is not None:
        batches = config.train.settings.get("accumulate", 1)
        scale_learning_rate(optimizer, config.data.batch_size * data_ranks * batches / table.batch_size_of_lr)
    then = None if table.schedule is None else import_name(table.schedule)(optimizer, **table.schedule_arguments)
    return optimizer, warm_up(optimizer, table.warm_up_steps, then) if table.warm_up_steps else then


def _loader(config: RunConfig, device: torch.device, mesh: DeviceMesh | None, *, training: bool) -> DataLoader:
    data = config.data
    path = data.train if training else data.validation
    assert path is not None
    steps = data.transforms if training or data.validation_transforms is None else data.validation_transforms
    dataset = ShardDataset(path, cache=data.cache, columns=data.columns, transforms=_transforms(steps) or None)
    place: dict[str, Any] = {} if mesh is None else {"mesh": mesh, "data_dims": ("dp",)}
    return DataLoader(
        dataset,
        data.batch_size,
        shuffle=data.shuffle and training,
        num_workers=data.num_workers,
        seed=data.seed,
        tail=data.tail if training else "short",
        device=device if device.type == "cuda" else None,
        **place,
    )


def _transforms(tables: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[Any]]:
    made: dict[str, list[Any]] = {}
    for output, steps in tables.items():
        made[output] = []
        for step in steps:
            arguments = {key: value for key, value in step.items() if key != "name"}
            kind = getattr(transforms, str(step.get("name")), None)
            if kind is None:
                raise ConfigError(f"transforms of {output!r}: {step} names none of forebay.transforms; give its `name`")
            made[output].append(kind(**arguments))
    return made
