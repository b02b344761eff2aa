"""What `forebay doctor` finds of GPUs: driver, devices, their JPEG engines, and whether DALI decodes on them.

It looks and judges nothing. Without a GPU it starts no process.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import torch

from forebay.errors import ConfigError
from forebay.loader import (
    dali_version,
    find_engines,
    install_line,
    nvimagecodec_version,
    pick_decoder,
    probe,
    why_no_dali,
    why_not,
)

__all__ = ["cuda_facts", "dali_facts", "find_driver"]

_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_SMI = ("--query-gpu=driver_version", "--format=csv,noheader")
_SMI_TIMEOUT_S = 20.0


def cuda_facts() -> dict[str, Any]:
    """The driver, GPUs as torch sees them, and what it complains of."""
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
    return {
        "version": torch.version.cuda,
        "driver": find_driver(),
        "gpus": [_gpu(number, gpu.name, gpu.total_memory) for number, gpu in enumerate(gpus)],
        "complaint": str(complaints[0].message) if complaints else None,
    }


def _gpu(number: int, name: str, memory_nbytes: int) -> dict[str, Any]:
    engines = find_engines(number, name)
    return {
        "name": name,
        "memory_nbytes": memory_nbytes,
        "jpeg_engines": engines.count,
        "jpeg_engines_told_by": engines.told_by,
    }


def find_driver(file: Path = _DRIVER_FILE) -> str | None:
    """The version of the NVIDIA driver, "unknown" where there is one that does not tell; None without one.

    Args:
        file: the driver's own; where it is not, `nvidia-smi` is asked.
    """
    try:
        told = file.read_text(errors="replace").partition("\n")[0]
    except OSError:  # there is none, or the container does not show it
        told = _ask_smi()
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", told)
    if found:
        return found[0]
    return "unknown" if file.exists() else None


def _ask_smi() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - the driver's own tool, and arguments of ours
            [program, *_SMI], capture_output=True, text=True, check=False, timeout=_SMI_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def dali_facts(device: torch.device | None) -> dict[str, Any]:
    """DALI's versions, how it decodes on a device, which is tried and takes a while, and what `decode="auto"` takes.

    Args:
        device: the first GPU; None where torch sees none, and nothing is tried.
    """
    mode, fault = None, why_no_dali(torch.device("cpu") if device is None else device)
    if device is not None and fault is None:
        try:
            mode = probe(device)
        except ConfigError as error:
            fault = str(error)
    auto, reason = pick_decoder(on_gpu=device is not None, mode=mode, no_dali=fault, no_kernel=why_not())
    return {
        "version": dali_version(),
        "nvimagecodec": nvimagecodec_version(),
        "mode": mode,
        "why_not": fault,
        "install": install_line(torch.version.cuda),
        "auto": auto,
        "auto_reason": reason,
    }
