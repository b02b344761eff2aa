"""A small data set of every kind of column, and ways to damage it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.sharding import ShardWriter

Sample = dict[str, Any]

COLUMNS = {
    "image": "image",
    "label": "int64",
    "good": "bool",
    "weight": "float16",
    "box": "float32[2,2]",
    "sound": "uint8[*,3]",
    "name": "str",
    "info": "json",
    "raw": "bytes",
}
CLASSES = {"label": ["cat", "dog"]}
ROWS = 40


def make_samples(rows: int) -> list[Sample]:
    rng = np.random.default_rng(5)
    return [
        {
            "image": rng.bytes(int(rng.integers(1, 60))),
            "label": row % 2,
            "good": row % 3 == 0,
            "weight": row / 8,
            "box": rng.random((2, 2), dtype=np.float32),
            "sound": rng.integers(0, 256, (row % 4, 3), dtype=np.uint8),
            "name": f"größe {row}",
            "info": {"row": [row, None, "é"]},
            "raw": b"" if row % 5 == 0 else rng.bytes(9),
        }
        for row in range(rows)
    ]


def write_small(path: Path, samples: Sequence[Mapping[str, Any]]) -> Path:
    """Three shards of several record batches each."""
    with ShardWriter(path, COLUMNS, classes=CLASSES, shard_nbytes=5_500, batch_nbytes=1_600) as writer:
        for sample in samples:
            writer.write(sample)
    return path


@pytest.fixture(scope="session")
def samples() -> list[Sample]:
    return make_samples(ROWS)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]) -> Path:
    """Never to be changed."""
    return write_small(tmp_path_factory.mktemp("store") / "small", samples)


@pytest.fixture
def stored(pristine: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(pristine, tmp_path / "damaged"))


@pytest.fixture
def same_value() -> Callable[[Any, Any], bool]:
    def same(left: Any, right: Any) -> bool:
        if isinstance(right, np.ndarray):
            return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())
        return bool(left == right)

    return same
