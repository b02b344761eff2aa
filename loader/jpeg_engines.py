"""The JPEG engines of a GPU: hardware that decodes beside the cores that compute, which only some GPUs have.

Only nvJPEG knows for sure, and it is asked in a process of its own: `python -m forebay.loader.jpeg_engines DEVICE`.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forebay.errors import ConfigError
from forebay.loader.bounded_child import ChildResult, run_child

__all__ = ["SHARE_VARIABLE", "JpegEngines", "find_engines", "hardware_share", "main"]

SHARE_VARIABLE = "FOREBAY_JPEG_ENGINE_SHARE"
"""Environment variable with the share of images for the engines, 0 to 1; read when a pipeline is built."""

_CHILD = ("-m", "forebay.loader.jpeg_engines")
_TIMEOUT_S = 60.0
_DOCUMENTED = ("A100", "A30", "H100")
"""GPUs that nvJPEG's manual names as having engines: https://docs.nvidia.com/cuda/nvjpeg, "Hardware acceleration"."""
_HIDDEN = (
    'though its manual names this GPU as having some: a container sees them with the driver\'s capability "video" '
    "(docker: --gpus '\"capabilities=compute,utility,video\"')"
)
_HARDWARE, _ARCH_MISMATCH = 3, 7
"""`NVJPEG_BACKEND_HARDWARE`, and the status of a GPU that has none, from nvjpeg.h."""


@dataclass(frozen=True, slots=True)
class JpegEngines:
    """What is known of one GPU's engines."""

    count: int | None
    """0 where there are none, None where it is not known."""
    told_by: str
    """Who says so, or why it is not known."""


def hardware_share() -> float | None:
    """The share of images that the environment gives to the engines; None leaves it to DALI, which takes 0.65.

    Raises:
        ConfigError: it is no number from 0 to 1.
    """
    given = os.environ.get(SHARE_VARIABLE)
    if not given:
        return None
    try:
        share = float(given)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"{SHARE_VARIABLE}={given!r}; give a number from 0 to 1, or unset it")
    return share


def find_engines(device_id: int, name: str, ask: Callable[[int], ChildResult] | None = None) -> JpegEngines:
    """Ask nvJPEG, and where it cannot tell, its manual; blocks for some seconds, a minute at most.

    Args:
        device_id: the GPU's number.
        name: its name, as torch has it.
        ask: in place of a process that asks nvJPEG.
    """
    result = (ask or _ask)(device_id)
    told = re.fullmatch(r"engines (\d+)", result.output.strip())
    documented = any(re.search(rf"\b{known}\b", name) for known in _DOCUMENTED)
    if told and result.failure is None:
        count = int(told[1])
        return JpegEngines(count, f"nvJPEG, {_HIDDEN}" if documented and not count else "nvJPEG")
    if documented:
        return JpegEngines(None, "nvJPEG's manual names this GPU as having some")
    return JpegEngines(None, result.failure or result.output.strip())


def _ask(device_id: int) -> ChildResult:
    return run_child([*_CHILD, str(device_id)], timeout_s=_TIMEOUT_S)


def main(arguments: Sequence[str]) -> None:
    """Print "engines N", or why nvJPEG cannot tell."""
    (device,) = arguments
    print(_ask_library(int(device)))  # noqa: T201 - how the answer gets to the process that asked


def _ask_library(device_id: int) -> str:
    path = _library()
    if path is None:
        return "nvJPEG is not installed; DALI brings it"
    import torch

    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    torch.zeros(1, device=f"cuda:{device_id}")  # makes this GPU the current one of the thread, for nvJPEG too
    return _count(ctypes.CDLL(path))


def _library() -> str | None:
    """Where nvJPEG is: in the package that DALI depends on."""
    for package in importlib.metadata.distributions():
        if str(package.metadata["Name"]).startswith("nvidia-nvjpeg"):
            for file in package.files or ():
                if re.fullmatch(r"libnvjpeg\.so(\.\d+)?", file.name):
                    return str(file.locate())
    return None


def _count(library: ctypes.CDLL) -> str:
    handle, engines, cores = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
    status = library.nvjpegCreateEx(_HARDWARE, None, None, 0, ctypes.byref(handle))
    if status == _ARCH_MISMATCH:
        return "engines 0"
    if status:
        return f"nvJPEG could not be started (status {status})"
    status = library.nvjpegGetHardwareDecoderInfo(handle, ctypes.byref(engines), ctypes.byref(cores))
    return f"nvJPEG does not say (status {status})" if status else f"engines {engines.value}"


if __name__ == "__main__":
    main(sys.argv[1:])
