"""A small transformer on text, byte by byte, pipelined: `torchrun --nproc-per-node 2 -m ... TEXTS RUN`.

The first stage reads only the bytes, the last only those that follow, each from a column of its own.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forebay.loader import DataLoader, ShardDataset
from forebay.sharding import ShardWriter
from forebay.trainers import CheckpointConfig, PipelineConfig, PipelineTrainer, TrainReport, pipeline_mesh, warm_up
from forebay.trainers.ranks import gather, rank

__all__ = ["main", "make_modules", "train", "write_shards"]

BLOCK = 128
"""Bytes that the model sees together."""
_HELD_OUT = 20
"""One block in so many is for validation."""


def write_shards(texts: Path, run: Path) -> None:
    """Cut every text file under `texts` into blocks: bytes (128,), and those one place on."""
    columns = {"bytes": f"uint8[{BLOCK}]", "following": f"uint8[{BLOCK}]"}
    with (
        ShardWriter(run / "train", columns=columns, shard_nbytes=1 << 18) as writer,
        ShardWriter(run / "validation", columns=columns) as held_out,
    ):
        count = 0
        for path in sorted(texts.rglob("*.txt")):
            text = np.frombuffer(path.read_bytes(), dtype=np.uint8)
            for first in range(0, len(text) - BLOCK, BLOCK):
                count += 1
                target = held_out if count % _HELD_OUT == 0 else writer
                block = text[first : first + BLOCK + 1]
                target.write({"bytes": block[:-1], "following": block[1:]})


class Embedding(nn.Module):
    """Bytes (B, 128) to vectors (B, 128, width), with their places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, width)
        self.place = nn.Embedding(BLOCK, width)

    def forward(self, x: Tensor) -> Tensor:
        """Add the vectors of bytes and places."""
        embedded: Tensor = self.byte(x.long()) + self.place.weight
        return embedded


class Block(nn.Module):
    """Attention to what came before, and a small network for each place (Vaswani et al. 2017; norms first)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Pass (B, 128, width) through both, each beside a shortcut."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y: Tensor = x + self.network(self.norm2(x))
        return y


def make_modules(*, width: int = 64, blocks: int = 2) -> list[nn.Module]:
    """The model as modules that run one after another: bytes (B, 128) to scores (B, 128, 256)."""
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))
    return [Embedding(width), *(Block(width, heads=4) for _ in range(blocks)), head]


def loss(scores: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Cross entropy of each following byte, in nats."""
    return F.cross_entropy(scores.flatten(0, 1), batch["following"].long().flatten())


def right_bytes(scores: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """The share of bytes guessed right, of each sample."""
    return (scores.argmax(-1) == batch["following"]).float().mean(1)


def train(
    texts: Path, run: Path, *, stage_ranks: int = 2, epochs: int = 1, batch_size: int = 64, microbatches: int = 4
) -> TrainReport:
    """Train on the text files under `texts`; shards and checkpoints lie in `run`."""
    with pipeline_mesh(stage_ranks, "cpu") as mesh:
        if rank() == 0 and not (run / "train").exists():
            write_shards(texts, run)
        gather(None)  # the other ranks wait for the shards
        torch.manual_seed(0)
        modules = make_modules()
        optimizer = torch.optim.AdamW([p for module in modules for p in module.parameters()], lr=3e-3)
        return PipelineTrainer(
            modules,
            optimizer,
            loss,
            DataLoader(
                ShardDataset(run / "train"), batch_size, shuffle=True, seed=0, tail="drop", mesh=mesh, data_dims=("dp",)
            ),
            mesh=mesh,
            epochs=epochs,
            config=PipelineConfig(microbatches=microbatches, clip_norm=1.0),
            validation=DataLoader(ShardDataset(run / "validation"), batch_size, mesh=mesh, data_dims=("dp",)),
            metrics={"right": right_bytes},
            scheduler=warm_up(optimizer, 20),
            inputs="bytes",
            checkpoint=CheckpointConfig(path=run / "checkpoints", every_steps=100),
        ).fit()


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description="Train a byte-level transformer, pipelined.")
    parser.add_argument("texts", type=Path, help="a folder with .txt files, at any depth")
    parser.add_argument("run", type=Path, help="where shards and checkpoints go")
    parser.add_argument("--stage-ranks", type=int, default=2, help="ranks in a pipeline")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64, help="of a pipeline")
    options = parser.parse_args()
    report = train(
        options.texts,
        options.run,
        stage_ranks=options.stage_ranks,
        epochs=options.epochs,
        batch_size=options.batch_size,
    )
    if os.environ.get("RANK", "0") == "0":
        print(report)  # noqa: T201


if __name__ == "__main__":
    main()
