"""Starts the programs that ranks run, and reads what each rank wrote to a file of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

JOBS = Path(__file__).with_name("jobs.py")


def command(ranks: int, *arguments: object) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    return [sys.executable, *launcher, *map(str, arguments)]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def launch(ranks: int, job: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a job of `jobs.py` alone, or under torchrun."""
    return subprocess.run(
        command(ranks, JOBS, job, *arguments),
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(),
        check=False,
    )


def write_result(path: str, value: Any) -> None:
    """In a rank: write its own file."""
    Path(f"{path}.{os.environ.get('RANK', '0')}").write_text(json.dumps(value))


def read_result(path: Path, rank: int = 0) -> Any:
    return json.loads(path.with_name(f"{path.name}.{rank}").read_text())
