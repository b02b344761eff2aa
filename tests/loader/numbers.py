"""Shards of numbers, which cost nothing to decode, and what the ranks of a job read of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forebay import DataLoader, ShardDataset
from forebay.sharding import ShardWriter

__all__ = ["COLUMNS", "read_rank", "write_numbers"]

COLUMNS = ["x", "__index__", "__valid__", "__weight__"]


def write_numbers(path: Path, samples: int, *, shard_nbytes: int = 400) -> Path:
    """Shards with a column `x`, the sample's index."""
    with ShardWriter(path, {"x": "int64"}, shard_nbytes=shard_nbytes, batch_nbytes=100) as writer:
        for i in range(samples):
            writer.write({"x": i})
    return path


def read_rank(path: Path, state: dict[str, Any] | None = None, **settings: Any) -> list[dict[str, Any]]:
    """All batches of one rank's pass, which goes on from `state`."""
    with DataLoader(ShardDataset(path, columns=COLUMNS), num_workers=1, **settings) as loader:
        if state is not None:
            loader.load_state_dict(state)
        return list(loader)
