"""Small data sets of shards, written once a session with the real writer."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from forebay.sharding import ShardWriter

SAMPLES = 97


def jpeg(seed: int) -> bytes:
    """A small picture that no other seed gives."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(33, 70, 2)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    out = io.BytesIO()
    coarse.resize((int(width), int(height)), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


def write_pictures(
    path: Path, samples: int = SAMPLES, *, broken: tuple[int, ...] = (), shard_nbytes: int = 12_000
) -> Path:
    """Shards of `samples` pictures; those in `broken` hold bytes that no decoder takes."""
    columns = {"image": "image", "label": "int64", "name": "str"}
    with ShardWriter(
        path, columns, classes={"label": ["a", "b", "c"]}, shard_nbytes=shard_nbytes, batch_nbytes=4_000
    ) as writer:
        for i in range(samples):
            image = b"not an image " * 40 if i in broken else jpeg(i)
            writer.write({"image": image, "label": i % 3, "name": f"picture {i}"})
    return path


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """97 small JPEGs in about a dozen shards."""
    return write_pictures(tmp_path_factory.mktemp("pictures") / "train")


@pytest.fixture(scope="session")
def make_pictures() -> Callable[..., Path]:
    """`write_pictures`, for tests that need their own."""
    return write_pictures
