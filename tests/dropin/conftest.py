"""A check of the drop-in loader's tests: nothing is left in shared memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/", "dev", "shm")


@pytest.fixture(autouse=True)
def no_shared_memory_left() -> Iterator[None]:
    """Fail a test that leaves a name of torch's or of ours in /dev/shm."""
    yield
    names = [
        path.name for path in SHARED_MEMORY.iterdir() if path.name.startswith((f"torch_{os.getpid()}_", "forebay"))
    ]
    assert not names, f"shared memory left behind: {names}"
