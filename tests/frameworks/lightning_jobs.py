"""A program that trains with Lightning: what `test_lightning.py` looks at. Run by `launch`."""

from __future__ import annotations

import inspect
import logging
import multiprocessing
import os
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.utils.data
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from forebay import DataLoader
from tests.frameworks.launch import in_turn
from tests.frameworks.samples import Rows, shard_loader, told

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
CHECKPOINT_EVERY = 5  # steps, which divide no epoch


class Model(lightning.LightningModule):
    """Notes what it is trained, tested and asked for, and makes its loader in a hook where it is given one."""

    def __init__(self, make: Any = None) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.epochs: dict[int, list[list[int]]] = {}
        self.validated: list[list[int]] = []
        self.workers: set[int] = set()
        if make is not None:
            self.train_dataloader = make  # type: ignore[method-assign]

    def training_step(self, batch: Any, _number: int) -> Tensor:
        self.epochs.setdefault(self.current_epoch, []).append(told(batch))
        if "made_by" in batch:
            self.workers |= set(batch["made_by"].tolist())
        loss: Tensor = self.linear(batch["x"]).mean()
        return loss

    def validation_step(self, batch: Any, _number: int) -> None:
        self.validated.append(told(batch))

    def predict_step(self, batch: Any, _number: int) -> Tensor:
        labels: Tensor = batch["label"]
        return labels

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-5)


def make_trainer(epochs: int = 2, **settings: Any) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp" if RANKS > 1 else "auto",
        max_epochs=epochs,
        **(
            {
                "logger": False,
                "enable_checkpointing": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "num_sanity_val_steps": 0,
            }
            | settings
        ),
    )


def any_loader(kind: Any = DataLoader, **settings: Any) -> Any:
    torch.manual_seed(7)
    return kind(Rows(), 4, **({"shuffle": True, "num_workers": 2, "persistent_workers": True} | settings))


def any_data(_shards: Path, _folder: Path) -> Any:
    """Two epochs of a map-style data set, by torch's loader and by ours."""
    found: dict[str, Any] = {}
    for name, kind in (("torch", torch.utils.data.DataLoader), ("forebay", DataLoader)):
        model, loader = Model(), any_loader(kind)
        make_trainer().fit(model, loader)
        found[name] = model.epochs
        found[f"{name}'s workers"] = len(model.workers)
    return found | {"children": len(multiprocessing.active_children())}


def any_predicted(_shards: Path, _folder: Path) -> Any:
    """What comes of predictions, by torch's loader and by ours."""
    found = {}
    for name, kind in (("torch", torch.utils.data.DataLoader), ("forebay", DataLoader)):
        batches: Any = make_trainer().predict(Model(), any_loader(kind, shuffle=False))
        found[name] = [batch.tolist() for batch in batches]
    return found


def settings_kept(_shards: Path, _folder: Path) -> Any:
    """The constructor's arguments that the loader in use has, which was made outside or inside of a hook."""
    own: dict[str, Any] = {
        "num_workers": 1,
        "workers": "thread",
        "batch_threads": 2,
        "on_error": "skip",
        "max_bad": 20,
        "timeout": 50,
        "prefetch_factor": 3,
        "persistent_workers": False,
        "drop_last": True,
    }
    found = {}
    for where in ("outside", "hook"):
        trainer, loader = make_trainer(1), any_loader(**own)
        model = Model() if where == "outside" else Model(lambda: any_loader(**own))
        trainer.fit(model, loader if where == "outside" else None)
        used: Any = trainer.train_dataloader
        names = [*inspect.signature(DataLoader.__init__).parameters][2:]
        names = [name for name in names if name not in ("shuffle", "sampler", "batch_sampler", "collate_fn")]
        found[where] = {
            "type": type(used).__module__,
            "given": [[name, str(getattr(loader, name))] for name in names],
            "used": [[name, str(getattr(used, name))] for name in names],
            "sampler": type(used.sampler).__name__,
        }
    return found


def run_and_resume(folder: Path, make: Any, **when: Any) -> Any:
    """By step of the checkpoint: what a run of three epochs read, and what one that goes on from there read."""
    saver = ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, **when)
    model = Model()
    make_trainer(3, enable_checkpointing=True, callbacks=[saver]).fit(model, make())
    found: dict[str, Any] = {"whole": model.epochs, "resumed": {}}
    for path in sorted(folder.glob("step=*.ckpt")):
        again = Model()
        make_trainer(3).fit(again, make(), ckpt_path=str(path), weights_only=False)
        found["resumed"][path.stem.removeprefix("step=")] = again.epochs
    return found


def any_checkpoints(_shards: Path, folder: Path) -> Any:
    return run_and_resume(folder / "any", any_loader, every_n_train_steps=CHECKPOINT_EVERY)


def any_checkpoints_without_workers(_shards: Path, folder: Path) -> Any:
    def make() -> Any:
        return any_loader(num_workers=0, persistent_workers=False)

    return run_and_resume(folder / "alone", make, every_n_train_steps=CHECKPOINT_EVERY)


def shard_checkpoints(shards: Path, folder: Path) -> Any:
    return run_and_resume(folder / "shards", lambda: shard_loader(shards), every_n_train_steps=CHECKPOINT_EVERY)


def shard_checkpoints_after_epochs(shards: Path, folder: Path) -> Any:
    return run_and_resume(folder / "epochs", lambda: shard_loader(shards), every_n_epochs=1)


def shards_in_training(shards: Path, _folder: Path) -> Any:
    """Two epochs, gradients of three batches together, with a validation after each."""
    model, trainer, loader = Model(), make_trainer(accumulate_grad_batches=3), shard_loader(shards)
    trainer.fit(model, loader, shard_loader(shards, shuffle=False))
    return {
        "same object": trainer.train_dataloader is loader,
        "epochs": model.epochs,
        "steps": trainer.global_step,
        "validated": model.validated,
    }


def shards_from_a_hook(shards: Path, _folder: Path) -> Any:
    """Two epochs of a loader that is made anew for each."""
    model = Model(lambda: shard_loader(shards))
    make_trainer(reload_dataloaders_every_n_epochs=1).fit(model)
    return model.epochs


def shards_overfitted(shards: Path, _folder: Path) -> Any:
    """Two epochs of the same two batches."""
    model = Model()
    make_trainer(overfit_batches=2).fit(model, shard_loader(shards))
    return model.epochs


def shards_predicted(shards: Path, _folder: Path) -> Any:
    """What comes of predictions, by a loader that would leave out the last batch in training."""
    loader = shard_loader(shards, shuffle=False, drop_last=True)
    batches: Any = make_trainer().predict(Model(), loader)
    return [batch.tolist() for batch in batches]


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    in_turn(
        any_data,
        any_predicted,
        settings_kept,
        any_checkpoints,
        any_checkpoints_without_workers,
        shards_in_training,
        shards_from_a_hook,
        shards_overfitted,
        shards_predicted,
        shard_checkpoints,
        shard_checkpoints_after_epochs,
    )
