"""Data-parallel training on a folder of photographs by class: `torchrun --nproc-per-node 2 -m ... PHOTOGRAPHS RUN`.

It writes the shards itself, once; a larger data set is better written by `forebay shard`.
"""

from __future__ import annotations

import argparse
import os
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forebay.loader import DataLoader, ShardDataset
from forebay.loader import transforms as T
from forebay.sharding import ShardWriter
from forebay.trainers import DataParallelConfig, DataParallelTrainer, TrainReport, accuracy, warm_up
from forebay.trainers.ranks import gather, joined_ranks, rank

__all__ = ["main", "make_model", "train", "write_shards"]

PIXELS = 64


def write_shards(photographs: Path, shards: Path) -> None:
    """Write each file of each class folder as a sample."""
    classes = sorted(path.name for path in photographs.iterdir() if path.is_dir())
    with ShardWriter(shards, columns={"image": "image", "label": "int64"}, classes={"label": classes}) as writer:
        for label, name in enumerate(classes):
            for path in sorted((photographs / name).iterdir()):
                writer.write({"image": path.read_bytes(), "label": label})


def make_model(classes: int) -> nn.Sequential:
    """Images (B, 3, 64, 64) to scores (B, classes): four convolutions, each with half the side of the one before."""
    widths = [3, 16, 32, 64, 128]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def loss(scores: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Cross entropy."""
    return F.cross_entropy(scores, batch["label"])


def train(photographs: Path, run: Path, *, epochs: int = 6, batch_size: int = 32) -> TrainReport:
    """Train on `photographs/train`, measure on `photographs/validation`; shards and checkpoints lie in `run`."""
    with joined_ranks(torch.device("cpu")):
        for part in ("train", "validation"):
            if rank() == 0 and not (run / part).exists():
                write_shards(photographs / part, run / part)
        gather(None)  # the other ranks wait for the shards
        crop = [T.RandomResizedCrop(PIXELS, scale=(0.5, 1)), T.RandomHorizontalFlip(), T.Normalize()]
        middle = [T.Resize(shorter=PIXELS * 8 // 7), T.CenterCrop(PIXELS), T.Normalize()]
        data = ShardDataset(run / "train", transforms={"image": crop})
        held_out = ShardDataset(run / "validation", transforms={"image": middle})
        torch.manual_seed(0)
        model = make_model(len(data.schema["label"].classes or ()))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
        return DataParallelTrainer(
            model,
            optimizer,
            loss,
            DataLoader(data, batch_size, shuffle=True, seed=0, drop_last=True),
            epochs=epochs,
            config=DataParallelConfig(clip_norm=1.0),
            validation=DataLoader(held_out, batch_size),
            metrics={"accuracy": accuracy},
            scheduler=warm_up(optimizer, 20),
            device="cpu",
            checkpoint=run / "checkpoints",
        ).fit()


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description="Classify photographs, data-parallel.")
    parser.add_argument("photographs", type=Path, help="with folders train and validation, each of class folders")
    parser.add_argument("run", type=Path, help="where shards and checkpoints go")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32, help="of a rank")
    options = parser.parse_args()
    report = train(options.photographs, options.run, epochs=options.epochs, batch_size=options.batch_size)
    if os.environ.get("RANK", "0") == "0":
        print(report)  # noqa: T201


if __name__ == "__main__":
    main()
