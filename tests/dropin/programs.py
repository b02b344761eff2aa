"""Programs that a test runs as a user would: scripts of their own, whose exit and last words are looked at.

A limit of time guards against hanging; no test measures by it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["HANGS_AFTER_S", "program", "run"]

HANGS_AFTER_S = 60

HEAD = """
from __future__ import annotations
import gc, multiprocessing, os, random, resource, signal, sys, threading, time, warnings
from typing import Any, NamedTuple
import numpy as np
import torch
import torch.utils.data
from forebay import DataLoader
TorchLoader = torch.utils.data.DataLoader

class Numbers:
    def __init__(self, count, size=1):
        self.count, self.size = count, size
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.full((self.size,), index)

class Stream(torch.utils.data.IterableDataset):
    def __init__(self, count, size=1):
        self.count, self.size = count, size
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for index in range(info.id if info else 0, self.count, info.num_workers if info else 1):
            yield torch.full((self.size,), index)
"""


def program(body: str) -> str:
    """A script with the imports and data sets that all of them use, then `body`."""
    return HEAD + textwrap.dedent(body)


def run(
    folder: Path, body: str, *arguments: str, around: Sequence[str] = (), options: Sequence[str] = ("-W", "error")
) -> subprocess.CompletedProcess[str]:
    """Run a script, in a session of its own, until it and all that hold its output have ended.

    Args:
        folder: where the script is written.
        body: after the imports.
        arguments: of the script.
        around: a command that runs the interpreter, such as one that gives it other mounts.
        options: of the interpreter.
    """
    script = folder / "script.py"
    script.write_text(program(body))
    command = [*around, sys.executable, *options, str(script), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=HANGS_AFTER_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what is left of a script that hangs
    return subprocess.CompletedProcess(command, process.returncode, out, err)
