"""Shards that a model of two numbers can be trained on, and the programs that do so, each run once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forebay.sharding import ShardWriter
from tests.frameworks.launch import Reports, launch
from tests.frameworks.samples import ROWS


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of two numbers, the second is the index; several shards."""
    path = tmp_path_factory.mktemp("frameworks") / "shards"
    with ShardWriter(path, {"x": "float32[2]", "label": "int64"}, shard_nbytes=300, batch_nbytes=100) as writer:
        for row in range(ROWS):
            writer.write({"x": np.array([1, row], np.float32), "label": row})
    return path


@pytest.fixture(scope="session", params=[1, 2], ids=["one process", "two ranks"])
def accelerated(request: pytest.FixtureRequest, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What `accelerate_jobs.py` tells, by rank."""
    return launch("accelerate_jobs.py", request.param, shards, tmp_path_factory.mktemp("accelerate"))


@pytest.fixture(scope="session", params=[1, 2], ids=["one process", "two ranks"])
def lightened(request: pytest.FixtureRequest, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What `lightning_jobs.py` tells, by rank."""
    return launch("lightning_jobs.py", request.param, shards, tmp_path_factory.mktemp("lightning"))


@pytest.fixture(scope="session", params=[1, 2], ids=["one process", "two ranks"])
def hugged(request: pytest.FixtureRequest, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What `trainer_jobs.py` tells, by rank."""
    return launch("trainer_jobs.py", request.param, shards, tmp_path_factory.mktemp("trainer"))
