"""A program that reads by way of accelerate: what `test_accelerate.py` looks at. Run by `launch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.utils.data
from accelerate import Accelerator, skip_first_batches
from accelerate.state import GradientState
from torch import nn

from forebay import DataLoader
from forebay.errors import ConfigError
from tests.frameworks.launch import in_turn
from tests.frameworks.samples import Rows, shard_loader, told


def any_data(_shards: Path, _folder: Path) -> Any:
    """Three epochs of a map-style data set, by torch's loader and by ours, prepared."""
    found = {}
    for name, kind in (("torch", torch.utils.data.DataLoader), ("forebay", DataLoader)):
        torch.manual_seed(7)
        prepared = Accelerator().prepare(kind(Rows(), 4, shuffle=True, num_workers=2, persistent_workers=True))
        found[name] = [[told(batch) for batch in prepared] for _ in range(3)]
    return found


def prepared_around(accelerator: Accelerator, **settings: Any) -> Any:
    """Accelerate's wrapper around our loader instead of torch's, as the README tells."""
    torch.manual_seed(7)
    prepared: Any = accelerator.prepare(DataLoader(Rows(), 4, shuffle=True))
    prepared.base_dataloader = DataLoader(prepared.dataset, batch_sampler=prepared.batch_sampler, **settings)
    prepared.use_stateful_dataloader = True
    return prepared


def any_data_kept(_shards: Path, folder: Path) -> Any:
    """Our engine inside accelerate's wrapper: its batches, its worker processes, and a checkpoint in epoch 1."""
    settings = {"num_workers": 2, "persistent_workers": True}
    accelerator = Accelerator()
    prepared = prepared_around(accelerator, **settings)
    epochs, workers, saved = [], [], folder / "any"
    for epoch in range(3):
        batches = []
        for batch in prepared:
            batches.append(told(batch))
            workers.append(set(batch["made_by"].tolist()))
            if epoch == 1 and len(batches) == 3:
                accelerator.save_state(str(saved))
        epochs.append(batches)
    prepared.base_dataloader.close()
    again = Accelerator()
    resumed = prepared_around(again, **settings)
    again.load_state(str(saved))
    rest = [[told(batch) for batch in resumed] for _ in range(2)]
    resumed.base_dataloader.close()
    return {
        "engine": type(prepared.base_dataloader).__module__,
        "epochs": epochs,
        "workers": len(set.union(*workers)),
        "rest": rest,
    }


def shard_epochs(shards: Path, _folder: Path) -> Any:
    """Two epochs of shards, prepared twice."""
    loader = shard_loader(shards)
    prepared = Accelerator().prepare(Accelerator().prepare(loader))
    return {
        "same object": prepared is loader,
        "epochs": [[told(batch) for batch in prepared] for _ in range(2)],
        "in use after": GradientState().in_dataloader,
    }


def shard_training(shards: Path, _folder: Path) -> Any:
    """After which batches of two epochs the gradients were flushed, with an evaluation amid them."""
    accelerator = Accelerator(gradient_accumulation_steps=3)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    held_out = shard_loader(shards, shuffle=False)
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, shard_loader(shards), held_out)
    flushed, evaluated = [], []
    for _ in range(2):
        flags = []
        for number, batch in enumerate(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(batch["x"]).mean())
                optimizer.step()
                optimizer.zero_grad()
            flags.append(accelerator.sync_gradients)
            if number == 1:
                evaluated.append([label for held in held_out for label in gathered(accelerator, held).tolist()])
                for _left_early in held_out:
                    break
        flushed.append(flags)
    return {"flushed": flushed, "evaluated": evaluated}


def gathered(accelerator: Accelerator, batch: Any) -> torch.Tensor:
    """The labels of a batch of all ranks, as accelerate puts them together."""
    labels: torch.Tensor = accelerator.gather_for_metrics(batch["label"])
    return labels


def shard_checkpoint(shards: Path, folder: Path) -> Any:
    """What came after a checkpoint in epoch 1, and what comes after loading it."""
    accelerator, saved = Accelerator(), folder / "shards"
    loader = accelerator.prepare(shard_loader(shards))
    after: list[list[list[int]]] = []
    for epoch in range(3):
        after.append([])
        for number, batch in enumerate(loader):
            if epoch > 1 or (epoch == 1 and number > 2):
                after[-1].append(told(batch))
            elif epoch == 1 and number == 2:
                accelerator.save_state(str(saved))
    again = Accelerator()
    resumed = again.prepare(shard_loader(shards, seed=None, shuffle=None))
    again.load_state(str(saved))
    return {"after": after[1:], "resumed": [[told(batch) for batch in resumed] for _ in range(2)]}


def uneven(shards: Path, _folder: Path) -> Any:
    """The samples of the last batch, as accelerate wants it and then as `join_uneven_inputs` does (on GPUs alone)."""
    loader: Any = Accelerator().prepare(shard_loader(shards, shuffle=False))
    last = [[told(batch) for batch in loader][-1]]
    loader.batch_sampler.even_batches = False
    return [*last, [told(batch) for batch in loader][-1]]


def skipping(shards: Path, _folder: Path) -> Any:
    """What becomes of accelerate's own way to skip batches."""
    loader = Accelerator().prepare(shard_loader(shards))
    try:
        list(skip_first_batches(loader, 2))
    except ConfigError as error:
        return str(error)
    return None


if __name__ == "__main__":
    in_turn(any_data, any_data_kept, shard_epochs, shard_training, shard_checkpoint, uneven, skipping)
