"""What a number was measured on: cores, processor, and the versions of whatever decodes and resizes."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

__all__ = ["describe_machine"]

_PACKAGES = {"simplejpeg": "simplejpeg", "pillow": "pillow", "opencv": "opencv-python-headless"}


def describe_machine() -> dict[str, Any]:
    """Cores that this process may use, the processor's name, and versions, as plain JSON values."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: _version(package) for name, package in _PACKAGES.items()},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
