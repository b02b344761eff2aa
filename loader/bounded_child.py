"""A module run in a Python of its own, for a limited time: whatever it does to itself, this process goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ChildResult", "run_child"]

_REAP_S = 10.0
"""For a killed child to go. One that hangs in the driver may not; it is left behind then."""
_TOLD = 300
"""Characters of what a failed child wrote that are passed on: the end of it."""


@dataclass(frozen=True, slots=True)
class ChildResult:
    """What became of a child."""

    output: str
    """Its standard output."""
    failure: str | None
    """Why it counts as failed: a signal, an exit code, the limit of time; None when it ended well."""


def run_child(arguments: Sequence[str], *, timeout_s: float) -> ChildResult:
    """Run `python *arguments` with this process's module path, and wait for it, `timeout_s` and a few seconds at most.

    Nothing is forked that goes on in Python, so threads and CUDA contexts of this process are of no consequence.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        child = subprocess.Popen(  # noqa: S603 - this Python, and arguments of ours
            [sys.executable, "-P", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
        )
    except OSError as error:
        return ChildResult("", f"no process could be started ({error})")
    try:
        output, complaints = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill(child)
        return ChildResult("", f"it had not ended after {timeout_s:g} s")
    except BaseException:
        _kill(child)
        raise
    return ChildResult(output, _failure(child.returncode, complaints))


def _kill(child: subprocess.Popen[str]) -> None:
    child.kill()
    try:
        child.communicate(timeout=_REAP_S)
    except subprocess.TimeoutExpired:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def _failure(code: int, complaints: str) -> str | None:
    if not code:
        return None
    told = " ".join(complaints.split())[-_TOLD:]
    return f"{_end(code)}{f': {told}' if told else ''}"


def _end(code: int) -> str:
    if code > 0:
        return f"it ended with exit code {code}"
    try:
        return f"it died of {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"it died of signal {-code}"
