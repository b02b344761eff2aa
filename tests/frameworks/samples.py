"""The data that every framework's program reads, as shards and as a data set of torch's kind; and how it is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

from forebay import DataLoader, ShardDataset

__all__ = ["ROWS", "Rows", "expected", "shard_loader", "told"]

ROWS = 53  # odd: two ranks cannot share it evenly, and no batch size that the programs use divides it


class Rows(Dataset[Any]):
    """The same samples as the shards, with the process that made each."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        made_by = 0 if get_worker_info() is None else os.getpid()
        return {"x": torch.tensor([1.0, index]), "label": index, "made_by": made_by}


def shard_loader(path: Path, **settings: Any) -> DataLoader:
    """A shuffled loader of the shards, four samples a batch and rank."""
    return DataLoader(
        ShardDataset(path), **({"batch_size": 4, "shuffle": True, "seed": 3, "num_workers": 1} | settings)
    )


def told(batch: Any) -> list[int]:
    """The labels of a batch."""
    labels: list[int] = batch["label"].tolist()
    return labels


def expected(
    path: Path, epochs: int, *, rank: int, world_size: int, shuffle: bool = True, even: bool = False
) -> list[list[list[int]]]:
    """By epoch and batch, the labels that a rank gets from the loader alone, without any framework."""
    with shard_loader(path, rank=rank, world_size=world_size, shuffle=shuffle) as loader:
        if even:
            loader.batch_sampler.even_batches = True  # type: ignore[union-attr]
        return [[told(batch) for batch in loader] for _ in range(epochs)]
