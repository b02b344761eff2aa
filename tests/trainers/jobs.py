"""What ranks run: `python jobs.py JOB ARGUMENTS`, alone or under torchrun. Each rank writes its result to a file."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from forebay import DataLoader, ShardDataset
from forebay.errors import ConfigError
from forebay.trainers import (
    CheckpointConfig,
    DataParallelConfig,
    DataParallelTrainer,
    NoProgress,
    PipelineConfig,
    PipelineTrainer,
    accuracy,
    pipeline_mesh,
)
from forebay.trainers.batch import Loss
from tests.trainers.launch import write_result

EPOCHS = 4
BATCH = 8
SCHEDULES: dict[str, dict[str, Any]] = {
    "gpipe": {"schedule": "gpipe"},
    "1f1b": {"schedule": "1f1b"},
    "interleaved": {"schedule": "interleaved", "stages_per_rank": 2},
}


def make_model() -> nn.Sequential:
    """It does the same on any number of ranks: no dropout, no batch statistics."""
    torch.manual_seed(3)
    within = [layer for _ in range(2) for layer in (nn.Linear(16, 16), nn.Tanh())]
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), *within, nn.Linear(16, 3))


def loss_of(scores: Tensor, batch: dict[str, Any]) -> Tensor:
    return F.cross_entropy(scores, batch["label"])


def make_loader(points: str, mesh: DeviceMesh | None = None, part: str = "train", size: int = BATCH) -> DataLoader:
    place: dict[str, Any] = {} if mesh is None else {"mesh": mesh, "data_dims": ("dp",)}
    return DataLoader(
        ShardDataset(Path(points) / part, columns=["x", "label", "__index__"]),
        shuffle=part == "train",
        global_batch_size=size,
        num_workers=1,
        seed=5,
        **place,
    )


def make_trainer(
    points: str, *, checkpoint: str | None = None, loss: Loss = loss_of, **config: Any
) -> DataParallelTrainer:
    model = make_model()
    return DataParallelTrainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.02),
        loss,
        make_loader(points),
        epochs=EPOCHS,
        config=DataParallelConfig(**config),
        validation=make_loader(points, part="validation", size=10),
        metrics={"accuracy": accuracy},
        inputs="x",
        device="cpu",
        checkpoint=None if checkpoint is None else CheckpointConfig(path=Path(checkpoint), every_steps=3),
        progress=NoProgress(),
    )


def make_pipeline(
    points: str, mesh: DeviceMesh, *, checkpoint: str | None = None, loss: Loss = loss_of, **config: Any
) -> tuple[PipelineTrainer, DataLoader]:
    model, loader = make_model(), make_loader(points, mesh)
    trainer = PipelineTrainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.02),
        loss,
        loader,
        mesh=mesh,
        epochs=EPOCHS,
        config=PipelineConfig(**({"microbatches": 4} | config)),
        validation=make_loader(points, mesh, part="validation", size=10),
        metrics={"accuracy": accuracy},
        inputs="x",
        checkpoint=None if checkpoint is None else CheckpointConfig(path=Path(checkpoint), every_steps=3),
        progress=NoProgress(),
    )
    return trainer, loader


class Faulty:
    """The loss, until one rank comes to a step and something happens there."""

    def __init__(self, what: str, rank: int, step: int, folder: Path) -> None:
        self.what, self.rank, self.step, self.folder = what, rank, step, folder
        self.steps = 0

    def __call__(self, scores: Tensor, batch: dict[str, Any]) -> Tensor:
        loss = loss_of(scores, batch)
        if not loss.requires_grad:
            return loss
        self.steps += 1
        if self.steps - 1 != self.step or int(os.environ.get("RANK", "0")) != self.rank:
            return loss
        if self.what == "raise":
            raise ValueError("the dog ate it")
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "wait":
            signalled, told_by = os.pipe()
            os.set_blocking(told_by, False)
            former = signal.set_wakeup_fd(told_by)
            (self.folder / "here").write_text("now")
            os.read(signalled, 1)
            signal.set_wakeup_fd(former)
        return loss * math.nan if self.what == "nan" else loss


def told(report: Any) -> dict[str, Any]:
    values: dict[str, Any] = report.to_dict()
    return {
        "losses": values["losses"],
        "first_step": values["first_step"],
        "validation": [epoch["validation"] for epoch in values["epochs"]],
        "samples": [epoch["samples"] for epoch in values["epochs"]],
    }


def run_equal(points: str, result: str, stage_ranks: str) -> None:
    """Data-parallel by each strategy, pipelined by each schedule."""
    everything = {
        "ddp": told(make_trainer(points, clip_norm=0.5).fit()),
        "fsdp2": told(make_trainer(points, strategy="fsdp2", clip_norm=0.5).fit()),
    }
    with pipeline_mesh(int(stage_ranks), "cpu") as mesh:
        for name, config in SCHEDULES.items():
            if name == "interleaved" and int(stage_ranks) == 1:
                continue
            trainer, loader = make_pipeline(points, mesh, clip_norm=0.5, **config)
            everything[name] = told(trainer.fit())
            everything[name]["unread_nbytes"] = loader.stats().unread_nbytes
            everything[name]["outputs"] = [key for key in next(iter(loader)) if not key.startswith("__")]
            loader.close()
    write_result(result, everything)


def run_faulty(points: str, folder: str, what: str, rank: str, step: str) -> None:
    """A run in which a rank meets with something, told by the error that ends it."""
    loss = Faulty(what, int(rank), int(step), Path(folder))
    ended: dict[str, Any] = {"pid": os.getpid()}
    try:
        ended |= told(make_trainer(points, checkpoint=f"{folder}/run", loss=loss).fit())
    except BaseException as error:
        ended |= {"error": f"{type(error).__name__}: {error}", "samples": getattr(error, "samples", None)}
        raise
    finally:
        write_result(f"{folder}/{what}", ended)


def run_few(points: str, result: str) -> None:
    """Data of one sample, and of fewer than ranks, in one shard: by each strategy, then pipelined."""
    everything = {}
    for part in ("one", "two"):
        data = f"{points}/{part}"
        for strategy in ("ddp", "fsdp2"):
            everything[f"{part} {strategy}"] = told(make_trainer(data, strategy=strategy).fit())
        with pipeline_mesh(1, "cpu") as mesh:
            trainer, _ = make_pipeline(data, mesh, schedule="gpipe", microbatches=2)
            everything[f"{part} gpipe"] = told(trainer.fit())
    write_result(result, everything)


def run_hooks(points: str, result: str) -> None:
    """Gradients sent in half: one that gloo can, one that it cannot."""
    losses = told(make_trainer(points, comm_hook="fp16").fit())["losses"]
    try:
        make_trainer(points, comm_hook="bf16").fit()
    except ConfigError as error:
        write_result(result, {"losses": losses, "error": str(error)})


def run_resumed(points: str, folder: str, stage_ranks: str) -> None:
    """The rest of a run that ended early, on these ranks."""
    if int(stage_ranks) == 0:
        trainer: Any = make_trainer(points, checkpoint=f"{folder}/run")
        write_result(f"{folder}/resumed", told(trainer.fit()))
        return
    with pipeline_mesh(int(stage_ranks), "cpu") as mesh:
        trainer, _ = make_pipeline(points, mesh, checkpoint=f"{folder}/run")
        write_result(f"{folder}/resumed", told(trainer.fit()))


def run_killed(points: str, folder: str, kind: str, result: str, kill_at: str = "-1") -> None:
    """A run by a strategy, or by a schedule on two stages, whose last rank is killed at a call of the loss."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    loss = Faulty("kill", world - 1, int(kill_at), Path(folder))
    if kind not in SCHEDULES:
        trainer: Any = make_trainer(points, checkpoint=f"{folder}/run", loss=loss, strategy=kind)
        write_result(result, told(trainer.fit()))
        return
    with pipeline_mesh(2, "cpu") as mesh:
        trainer, _ = make_pipeline(points, mesh, checkpoint=f"{folder}/run", loss=loss, **SCHEDULES[kind])
        write_result(result, told(trainer.fit()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    jobs: dict[str, Callable[..., None]] = {"equal": run_equal, "faulty": run_faulty, "few": run_few}
    jobs |= {"hooks": run_hooks, "resumed": run_resumed, "killed": run_killed}
    jobs[sys.argv[1]](*sys.argv[2:])
