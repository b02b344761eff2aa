"""Starting a framework's program, alone or under torchrun, and reading what each rank told.

A program takes the shards, a folder of its own and the file to tell in; it knows its rank by the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Reports", "in_turn", "launch"]

Reports = list[dict[str, Any]]

HERE = Path(__file__).resolve().parent
HANGS_AFTER_S = 240


def launch(program: str, ranks: int, shards: Path, folder: Path) -> Reports:
    """Run a program of this folder; what each of its ranks told."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, str(HERE / program), str(shards), str(folder)]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE.parents[1]),
        "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANGS_AFTER_S, env=environment, cwd=folder, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return [json.loads((folder / f"told.{rank}").read_text()) for rank in range(ranks)]


def in_turn(*jobs: Callable[[Path, Path], Any]) -> None:
    """The main function of a program: do all jobs, and tell what each returned by its name."""
    shards, folder = Path(sys.argv[1]), Path(sys.argv[2])
    report = {job.__name__: job(shards, folder) for job in jobs}
    (folder / f"told.{os.environ.get('RANK', '0')}").write_text(json.dumps(report))
