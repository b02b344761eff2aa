"""A program that trains with Hugging Face's Trainer: what `test_trainer.py` looks at. Run by `launch`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate
from transformers import Trainer, TrainerCallback, TrainingArguments

from forebay import DataLoader, ShardDataset
from tests.frameworks.launch import in_turn
from tests.frameworks.samples import Rows, told

RANK = int(os.environ.get("RANK", "0"))


class Model(nn.Module):
    """Notes what it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.batches: list[list[int]] = []
        self.workers: set[int] = set()

    def forward(self, x: Tensor, label: Tensor, made_by: Tensor | None = None) -> dict[str, Tensor]:
        if self.training:
            self.batches.append(told({"label": label}))
            self.workers |= set() if made_by is None else set(made_by.tolist())
        scores = self.linear(x)
        return {"loss": scores.mean(), "logits": scores.detach() * 0 + label[:, None]}


class KeepsLoader(TrainerCallback):
    """Saves where the loader stands beside each checkpoint, and goes on from there: the recipe of the README."""

    def path(self, args: Any, state: Any) -> Path:
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / f"loader-{args.process_index}.json"

    def on_save(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        self.path(args, state).write_text(json.dumps(train_dataloader.state_dict()))

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        if state.global_step:
            train_dataloader.load_state_dict(json.loads(self.path(args, state).read_text()))


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    given: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 3,
        "learning_rate": 1e-5,
        "label_names": ["label"],
        "remove_unused_columns": False,
        "save_strategy": "no",
        "disable_tqdm": True,
        "report_to": "none",
        "use_cpu": True,
        "ddp_backend": "gloo" if "RANK" in os.environ else None,
        "seed": 5,
        "ignore_data_skip": True,
    }
    return TrainingArguments(output_dir=str(folder), **(given | settings))


class ShardTrainer(Trainer):
    """Trains on shards: the recipe of the README."""

    train_dataset: Any
    eval_dataset: Any

    def get_train_dataloader(self) -> Any:
        return self.accelerator.prepare(DataLoader(self.train_dataset, 4, shuffle=True, seed=3, num_workers=1))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return self.accelerator.prepare(DataLoader(self.eval_dataset, 4, num_workers=1))


class OurTrainer(Trainer):
    """Trains on any data with our engine inside of what accelerate prepares: the recipe of the README."""

    def get_train_dataloader(self) -> Any:
        prepared: Any = super().get_train_dataloader()
        prepared.base_dataloader = DataLoader(
            prepared.dataset,
            batch_sampler=prepared.batch_sampler,
            collate_fn=prepared.collate_fn,
            num_workers=self.args.dataloader_num_workers,
            persistent_workers=True,
        )
        return prepared


def make_shard_trainer(shards: Path, folder: Path, **settings: Any) -> ShardTrainer:
    metrics = labels_seen if "eval_strategy" in settings else None
    return ShardTrainer(
        Model(),
        arguments(folder, **settings),
        train_dataset=ShardDataset(shards),
        eval_dataset=ShardDataset(shards),
        compute_metrics=metrics,
        callbacks=[KeepsLoader()],
    )


def labels_seen(prediction: Any) -> dict[str, Any]:
    """A metric that is right if each sample was seen once; the model gives its labels as scores."""
    seen = np.asarray(prediction.label_ids)
    return {"seen": sorted(seen.tolist()), "given": sorted(np.asarray(prediction.predictions).ravel().tolist())}


def any_data(_shards: Path, folder: Path) -> Any:
    """Three epochs of a map-style data set, by torch's loader and by ours."""
    found: dict[str, Any] = {}
    for name, kind in (("torch", Trainer), ("forebay", OurTrainer)):
        settings = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}
        trainer = kind(Model(), arguments(folder / name, **settings), default_collate, Rows())
        model = trained(trainer)
        found[name] = model.batches
        found[f"{name}'s workers"] = len(model.workers)
    return found


def trained(trainer: Trainer, **how: Any) -> Model:
    """The model after training, with what it noted."""
    trainer.train(**how)
    model: Any = trainer.model
    assert isinstance(model, Model)
    return model


def resumed(make: Any, folder: Path) -> dict[str, Any]:
    """By step: what a run that goes on from the checkpoint reads. The whole run wrote them to `folder`."""
    found = {}
    for path in sorted(folder.glob("checkpoint-*")):
        model = trained(make(save_strategy="no"), resume_from_checkpoint=str(path))
        found[path.name.removeprefix("checkpoint-")] = model.batches
    return found


def any_checkpoints(_shards: Path, folder: Path) -> Any:
    def make(**settings: Any) -> Trainer:
        given = {"dataloader_num_workers": 2, "save_strategy": "steps", "save_steps": 5} | settings
        return OurTrainer(
            Model(), arguments(folder / "any", **given), default_collate, Rows(), callbacks=[KeepsLoader()]
        )

    return {"whole": trained(make()).batches, "resumed": resumed(make, folder / "any")}


def shard_checkpoints(shards: Path, folder: Path) -> Any:
    def make(**settings: Any) -> Trainer:
        return make_shard_trainer(shards, folder / "shards", **({"save_strategy": "steps", "save_steps": 4} | settings))

    return {"whole": trained(make()).batches, "resumed": resumed(make, folder / "shards")}


def shard_checkpoints_between_epochs(shards: Path, folder: Path) -> Any:
    def make(**settings: Any) -> Trainer:
        return make_shard_trainer(shards, folder / "epochs", **({"save_strategy": "epoch"} | settings))

    return {"whole": trained(make()).batches, "resumed": resumed(make, folder / "epochs")}


def shards_with_evaluation(shards: Path, folder: Path) -> Any:
    """Two epochs, gradients of three batches together, and an evaluation after each."""
    trainer = make_shard_trainer(
        shards, folder / "evaluated", eval_strategy="epoch", gradient_accumulation_steps=3, num_train_epochs=2
    )
    model = trained(trainer)
    logs = [entry for entry in trainer.state.log_history if "eval_seen" in entry]
    return {
        "batches": model.batches,
        "steps": trainer.state.global_step,
        "seen": [entry["eval_seen"] for entry in logs],
        "given": [entry["eval_given"] for entry in logs],
    }


def skipping(shards: Path, folder: Path) -> Any:
    """What becomes of a resume in the Trainer's own way, which reads and throws away."""
    trainer = make_shard_trainer(shards, folder / "shards", ignore_data_skip=False)
    try:
        trainer.train(resume_from_checkpoint=str(folder / "shards" / "checkpoint-4"))
    except ValueError as error:
        return str(error)
    return None


if __name__ == "__main__":
    torch.set_num_threads(1)
    in_turn(
        any_data,
        any_checkpoints,
        shard_checkpoints,
        shard_checkpoints_between_epochs,
        shards_with_evaluation,
        skipping,
    )
