"""What the benchmarks are tried on."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.benchmarks import CLASSES, draw_photograph


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small photographs a class, and a file that is none."""
    folder = tmp_path_factory.mktemp("photographs")
    for name in CLASSES:
        (folder / name).mkdir()
        for number in range(2):
            (folder / name / f"{number}.jpg").write_bytes(draw_photograph(name, number, longest=(50, 80)))
    (folder / "wood" / "broken.jpg").write_bytes(b"\xff\xd8 no photograph")
    return folder
