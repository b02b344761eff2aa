"""`forebay cache warm --decoded`, and the training that finds what it stored."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.cli.app import app
from forebay.errors import ConfigError, ForebayError
from forebay.sharding import ShardWriter


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["cache", *map(str, arguments)])
    if isinstance(result.exception, ForebayError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty pictures, one of which is none."""
    path = tmp_path_factory.mktemp("warm") / "data"
    with ShardWriter(path, {"image": "image", "label": "int64"}, shard_nbytes=8_000) as writer:
        for i in range(20):
            file = io.BytesIO()
            pixels = np.random.default_rng(i).integers(0, 256, (30 + i, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(file, "JPEG")
            writer.write({"image": b"no picture" if i == 3 else file.getvalue(), "label": i})
    return path


def test_training_finds_what_was_decoded_before(data: Path, tmp_path: Path) -> None:
    cache = f"{tmp_path / 'cache'}:1GB"
    told: dict[str, Any] = json.loads(run("warm", data, cache, "--decoded", "--shorter", 24, "--json"))
    assert told["decoded"] == {"stored": 19, "present": 0, "without_room": 1}
    chain = [T.Resize(shorter=24), T.RandomResizedCrop(16)]
    dataset = ShardDataset(data, cache=cache, decoded=True, transforms={"image": chain})
    with DataLoader(dataset, 5, on_error="skip", max_bad=3) as loader:
        list(loader)
    assert loader.stats().decoded["hits"] == 19
    assert "19 were there" in run("warm", data, cache, "--decoded", "--shorter", 24)
    assert "20 of" not in run("ls", tmp_path / "cache")


def test_what_is_kept_is_said_only_with_decoded(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="add --decoded"):
        run("warm", data, f"{tmp_path / 'cache'}:1GB", "--shorter", 24)
    with pytest.raises(ConfigError, match="give image columns"):
        run("warm", data, f"{tmp_path / 'cache'}:1GB", "--decoded", "--column", "label")
