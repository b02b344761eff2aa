"""Damaged pictures never crash or hang: the tests of `damage_cases.py`, in processes that may die of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forebay.loader.kernel import why_not

CASES = Path(__file__).with_name("damage_cases.py")
LIMIT_S = 280
"""Of one process, which needs a tenth of that."""


@pytest.mark.skipif(why_not() is not None, reason="forebay was installed without its native parts")
@pytest.mark.parametrize("which", ["the_loader", "not the_loader"])
def test_damage_is_survived_by_the_loader_and_by_the_kernel_alone(which: str, data_dir: Path) -> None:
    assert data_dir.is_dir()
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", str(CASES), "-k", which]
    process = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    told = f"{process.stdout[-6000:]}{process.stderr[-3000:]}"
    assert process.returncode == 0, f"it ended with {process.returncode}\n{told}"
    assert "skipped" not in process.stdout
