"""A data set that a model of a few numbers can learn, so that whole training runs take a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forebay.sharding import ShardWriter

FEATURES = 6
TRAIN, VALIDATION = 70, 21


def write_points(path: Path, rows: int, seed: int) -> Path:
    """Points around three centres, the label tells which; several shards."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(0, 2, (3, FEATURES))
    with ShardWriter(
        path, {"x": f"float32[{FEATURES}]", "label": "int64"}, shard_nbytes=600, batch_nbytes=200
    ) as writer:
        for row in range(rows):
            x = centres[row % 3] + rng.normal(0, 1, FEATURES)
            writer.write({"x": x.astype(np.float32), "label": row % 3})
    return path


@pytest.fixture(scope="session")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `train` (70 samples) and `validation` (21)."""
    folder = tmp_path_factory.mktemp("points")
    write_points(folder / "train", TRAIN, 1)
    write_points(folder / "validation", VALIDATION, 2)
    return folder
