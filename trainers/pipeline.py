"""Pipelined training: the model's stages lie on different ranks, and micro-batches pass through them.

torch.distributed.pipelining runs the schedule; the loop of epochs and checkpoints is in `loop.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from forebay.errors import ConfigError
from forebay.loader import DataLoader
from forebay.trainers.batch import Loss, Metric
from forebay.trainers.checkpoint_folder import CheckpointConfig
from forebay.trainers.loop import Loop
from forebay.trainers.pipeline_stepper import PipelineStepper, ScheduleName
from forebay.trainers.progress import TrainProgress
from forebay.trainers.ranks import choose_device, joined_ranks
from forebay.trainers.report import TrainReport
from forebay.trainers.stages import check_cuts, cut_evenly
from forebay.trainers.update import Precision

__all__ = ["PipelineConfig", "PipelineTrainer", "pipeline_mesh"]


@contextmanager
def pipeline_mesh(stage_ranks: int, device: torch.device | str | None = None) -> Iterator[DeviceMesh]:
    """Join the ranks that torchrun started, as a mesh ("dp", "pp") with `stage_ranks` ranks in each pipeline.

    The ranks are left again at the end. Neighbouring ranks make a pipeline: on one machine, if it has enough of them.

    Raises:
        ConfigError: the ranks do not divide into such pipelines.
    """
    here = choose_device(device)
    with joined_ranks(here):
        ranks = dist.get_world_size()
        if stage_ranks < 1 or ranks % stage_ranks:
            raise ConfigError(
                f"stage_ranks={stage_ranks}, and there are {ranks} ranks; start a multiple of {stage_ranks} of them"
            )
        yield init_device_mesh(here.type, (ranks // stage_ranks, stage_ranks), mesh_dim_names=("dp", "pp"))


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineConfig:
    """How the model is cut into stages, and how a batch passes through them."""

    schedule: ScheduleName = "1f1b"
    """"gpipe": all forward, then all backward (Huang et al. 2019); "1f1b": in turn, with less memory (Narayanan et al.
    2019); "interleaved": 1f1b with several stages a rank, with less idle time (Narayanan et al. 2021)."""
    microbatches: int = 4
    """Pieces of a rank's batch; at least as many as ranks in a pipeline, so that none waits long."""
    stages_per_rank: int = 1
    """Two and more with "interleaved"; one otherwise."""
    cuts: tuple[int, ...] | None = None
    """Index of the module with which each stage but the first begins; None cuts evenly by parameters."""
    precision: Precision = "float32"
    """Of the model's operations, by torch.autocast: "float32" or "bf16"."""
    clip_norm: float | None = None
    """The longest that a step's gradient may be, over all stages; None leaves it."""

    def __post_init__(self) -> None:
        if self.schedule not in ("gpipe", "1f1b", "interleaved"):
            raise ConfigError(f'schedule={self.schedule!r}; give "gpipe", "1f1b" or "interleaved"')
        if self.microbatches < 1:
            raise ConfigError(f"microbatches={self.microbatches}; give at least 1")
        if (self.stages_per_rank > 1) != (self.schedule == "interleaved") or self.stages_per_rank < 1:
            raise ConfigError(
                f"stages_per_rank={self.stages_per_rank} with schedule={self.schedule!r}; give 2 or more with "
                '"interleaved", 1 with the others'
            )
        if self.precision not in ("float32", "bf16"):
            raise ConfigError(f'precision={self.precision!r} in a pipeline; give "float32" or "bf16"')


class PipelineTrainer:
    """Trains a model whose stages lie on different ranks, on every rank that torchrun started.

        with pipeline_mesh(stage_ranks=2) as mesh:
            loader = DataLoader(dataset, 32, shuffle=True, mesh=mesh, data_dims=("dp",))
            print(PipelineTrainer(modules, optimizer, loss, loader, mesh=mesh, epochs=2, inputs="tokens").fit())

    Several pipelines step on different parts of each global batch, and average their gradients. Loss and gradients are
    those of one process with the whole batch, to rounding, but for dropout and batch statistics. Checkpoints, Ctrl-C
    and errors are as with `DataParallelTrainer`; a checkpoint may be resumed on another number of pipelines and stages.

    Args:
        modules: the model as modules that run one after another, each from a tensor (B, ...) to one. Every rank makes
            all of them, alike, and keeps those of its stages.
        optimizer: of the parameters of all modules; it keeps those that stay here.
        loss: `loss(outputs, batch)`, the mean over the samples of `batch`; called on the last stage, with the
            `targets` of the batch.
        train: loader of a `ShardDataset`, with the same batch on all ranks of a pipeline.
        mesh: with the dimensions "dp" and "pp", as `pipeline_mesh` gives it.
        epochs: passes over the data in all, those before a resume included.
        config: schedule, stages, precision; None is the default of each.
        validation: loader of what is measured after each epoch.
        metrics: name to `metric(outputs, batch)`, a number or bool for each sample, (B,).
        scheduler: stepped after each step.
        inputs: the output of the data set that goes into the first stage, the only one that is read there.
        targets: the outputs that loss and metrics look at, read for the last stage alone; None: all but `inputs`. The
            stages between read nothing.
        checkpoint: where to keep checkpoints, a folder or a `CheckpointConfig`; None keeps none. All ranks see it.
        progress: who is told of steps and epochs; None shows them on standard error.

    Raises:
        ConfigError: settings that cannot work.
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        optimizer: Optimizer,
        loss: Loss,
        train: DataLoader,
        *,
        mesh: DeviceMesh,
        epochs: int,
        config: PipelineConfig | None = None,
        validation: DataLoader | None = None,
        metrics: Mapping[str, Metric] | None = None,
        scheduler: LRScheduler | None = None,
        inputs: str = "image",
        targets: Sequence[str] | None = None,
        checkpoint: str | os.PathLike[str] | CheckpointConfig | None = None,
        progress: TrainProgress | None = None,
    ) -> None:
        config, modules = config or PipelineConfig(), list(modules)
        if metrics and validation is None:
            raise ConfigError(f"metrics={sorted(metrics)} are measured on validation data; give validation= too")
        if not {"dp", "pp"} <= set(mesh.mesh_dim_names or ()):
            raise ConfigError(f'mesh has the dimensions {mesh.mesh_dim_names}; give one with "dp" and "pp"')
        ranks = mesh["pp"].size()
        if config.microbatches < ranks:
            raise ConfigError(
                f"microbatches={config.microbatches} for {ranks} ranks in a pipeline: some would always wait; give at "
                f"least {ranks}"
            )
        if config.schedule == "interleaved" and ranks == 1:
            raise ConfigError(
                'schedule="interleaved" on one rank: its stages have nobody to take turns with; use "1f1b"'
            )
        rounds = config.microbatches // ranks
        if config.schedule == "interleaved" and config.microbatches % rounds:
            raise ConfigError(
                f"microbatches={config.microbatches}: interleaved stages take them in {rounds} rounds of one size; "
                f"give a multiple of {ranks}"
            )
        stages = ranks * config.stages_per_rank
        sizes = [sum(parameter.numel() for parameter in module.parameters()) for module in modules]
        cuts = cut_evenly(sizes, stages) if config.cuts is None else check_cuts(config.cuts, len(modules), stages)
        device = choose_device("cpu" if mesh.device_type == "cpu" else None)
        stepper = PipelineStepper(
            modules,
            cuts,
            optimizer,
            loss,
            mesh,
            schedule=config.schedule,
            microbatches=config.microbatches,
            precision=config.precision,
            clip_norm=config.clip_norm,
            scheduler=scheduler,
            metrics=dict(metrics or {}),
            inputs=inputs,
            targets=targets,
            device=device,
            loaders=(train, validation),
        )
        self._loop = Loop(
            stepper,
            train,
            epochs=epochs,
            device=device,
            data_ranks=mesh["dp"].size(),
            shown_by=ranks - 1,
            validation=validation,
            checkpoint=CheckpointConfig(path=Path(checkpoint))
            if isinstance(checkpoint, str | os.PathLike)
            else checkpoint,
            progress=progress,
        )

    def fit(self) -> TrainReport:
        """Train up to `epochs` epochs, from the newest checkpoint or from the start.

        Returns:
            What was measured, the same on every rank.

        Raises:
            SourceError, ConfigError, LossError, RankFailedError, KeyboardInterrupt: as `DataParallelTrainer.fit` does.
        """
        return self._loop.fit()
