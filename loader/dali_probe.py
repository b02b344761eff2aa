"""What of DALI can be used here: whether it is there, and which way of decoding its codecs do right on this device.

Some versions of nvImageCodec crash or err on some GPUs, and a crash cannot be caught, so each way is tried in a process
of its own before it is used. DALI itself is never imported here.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import torch

from forebay.errors import ConfigError
from forebay.loader.bounded_child import run_child
from forebay.loader.dali_graph import DaliMode

__all__ = [
    "MODE_VARIABLE",
    "attempt",
    "choose_mode",
    "dali_version",
    "find_fault",
    "install_line",
    "nvimagecodec_version",
    "pick_decoder",
    "probe",
    "why_no_dali",
]

MODE_VARIABLE = "FOREBAY_DALI_MODE"
"""Environment variable that names a `DaliMode`, to choose by hand; it is read when a probe is due, nothing is tried."""
CHILD = ("-m", "forebay.loader.dali_probe_child")
"""Arguments of the Python that tries one mode; mode and device follow."""
TIMEOUT_S = 120.0
"""For one mode. Starting Python, torch, CUDA and DALI takes 5 to 20 seconds, more where the libraries come from a
network file system."""
OLDEST = (2, 4)
"""The oldest DALI that this was tested with."""

_logger = logging.getLogger("forebay")
_lock = threading.Lock()
_chosen: dict[tuple[object, ...], DaliMode] = {}


# -- what is installed -----------------------------------------------------------------------------------------------


def dali_version() -> str | None:
    """The version of DALI that is installed; None when there is none."""
    return _version_of("nvidia-dali-cuda")


def nvimagecodec_version() -> str | None:
    """The version of nvImageCodec, DALI's decoders; None when there is none."""
    return _version_of("nvidia-nvimgcodec-cu")


def _version_of(prefix: str) -> str | None:
    """The version of the package with this name and a CUDA version behind it; the newest CUDA's where there are two."""
    found = {
        name: package.version
        for package in importlib.metadata.distributions()
        if (name := str(package.metadata["Name"]).lower()).startswith(prefix)
    }
    return found[max(found)] if found else None


def install_line(cuda: str | None) -> str:
    """How to install DALI for torch's CUDA version, such as "12.8"; for the newest one where torch has none."""
    package = "nvidia-dali-cuda120" if _is_cuda_12(cuda) else "nvidia-dali-cuda130"
    return f"pip install --upgrade '{package}>={OLDEST[0]}.{OLDEST[1]}'"


def _is_cuda_12(cuda: str | None) -> bool:
    return cuda is not None and cuda.split(".")[0] == "12"


def why_no_dali(device: torch.device) -> str | None:
    """Why DALI cannot be used for batches on this device, and what to do; None when it can be tried.

    Args:
        device: a CUDA device, or the CPU, on which DALI runs too.
    """
    seen = _num_cuda_devices() if device.type == "cuda" else None
    return find_fault(dali_version(), cuda=torch.version.cuda, num_devices=seen)


def find_fault(dali: str | None, *, cuda: str | None, num_devices: int | None) -> str | None:
    """What keeps a version of DALI from being tried, and what to do; None when nothing does.

    Args:
        dali: its version; None when it is not installed.
        cuda: the version of CUDA that torch was built for; None for a torch without.
        num_devices: how many CUDA devices torch sees; None where none is asked for.
    """
    if dali is None:
        return f"DALI is not installed: {install_line(cuda)}"
    if tuple(int(part) for part in re.findall(r"\d+", dali)[:2]) < OLDEST:
        return f"DALI {dali} is too old: {install_line(cuda)}"
    if num_devices == 0:
        return f"torch {torch.__version__} sees no CUDA device: see https://pytorch.org/get-started, or leave DALI out"
    return None


def _num_cuda_devices() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an old driver is complained of; here it is no device
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


# -- which way of decoding works -------------------------------------------------------------------------------------


def probe(device: torch.device, *, program: Sequence[str] = CHILD, timeout_s: float = TIMEOUT_S) -> DaliMode:
    """Choose how DALI decodes on a device; blocks for some seconds the first time, and is remembered for its name.

    Each mode is tried in a process of its own, which decodes windows of a few small images and compares them with
    Pillow's; the first that ends well and agrees is taken. What was chosen and why is one line of the log.
    `FOREBAY_DALI_MODE=region|whole|cpu_decode` chooses by hand instead, and nothing is tried. Thread-safe.

    Args:
        device: a CUDA device, the current one where it has no number; or the CPU, where every mode runs too.
        program: see `attempt`.
        timeout_s: likewise, for each mode.

    Raises:
        ConfigError: no mode works on this device, or the environment names none; says what was seen.
    """
    if (by_hand := _mode_by_hand()) is not None:
        _logger.info("DALI decodes in mode %r on %s, as %s says", by_hand, device, MODE_VARIABLE)
        return by_hand
    number, name = _describe(device)
    where = f"{name}, DALI {dali_version()}, nvImageCodec {nvimagecodec_version()}"
    with _lock:  # held while the children run: whoever comes second needs the same answer
        key = (where, *program)
        if key not in _chosen:
            mode, failures = choose_mode(lambda mode: attempt(mode, number, program=program, timeout_s=timeout_s))
            _chosen[key] = _accept(mode, failures, where)
        return _chosen[key]


def _describe(device: torch.device) -> tuple[str, str]:
    """What the child is told of a device, and what people are."""
    if device.type == "cpu":
        return "cpu", "the CPU"
    number = torch.cuda.current_device() if device.index is None else device.index
    return str(number), torch.cuda.get_device_name(number)


def _mode_by_hand() -> DaliMode | None:
    given = os.environ.get(MODE_VARIABLE)
    modes: tuple[DaliMode, ...] = get_args(DaliMode)
    if given and given not in modes:
        raise ConfigError(f"{MODE_VARIABLE}={given!r}; give one of {', '.join(modes)}, or unset it")
    return next((mode for mode in modes if mode == given), None)


def _accept(mode: DaliMode | None, failures: Mapping[DaliMode, str], where: str) -> DaliMode:
    """Log the choice, or raise where there is none."""
    told = "; ".join(f"{failed!r} failed, {reason}" for failed, reason in failures.items())
    if mode is None:
        raise ConfigError(
            f'DALI decodes nothing on {where}: {told}; take decode="native" or "library", or, where these trials are '
            f"at fault, name a mode in {MODE_VARIABLE}"
        )
    level = logging.WARNING if failures else logging.INFO
    _logger.log(level, "DALI decodes in mode %r on %s: %s", mode, where, told or "its windows agree with Pillow's")
    return mode


def choose_mode(try_mode: Callable[[DaliMode], str | None]) -> tuple[DaliMode | None, Mapping[DaliMode, str]]:
    """The first mode, fastest first, that does not fail; None when all do. And why those before it failed.

    Args:
        try_mode: tells why a mode fails; None when it works.
    """
    failures: dict[DaliMode, str] = {}
    for mode in get_args(DaliMode):
        reason = try_mode(mode)
        if reason is None:
            return mode, failures
        failures[mode] = reason
    return None, failures


def attempt(mode: DaliMode, device: str, *, program: Sequence[str] = CHILD, timeout_s: float = TIMEOUT_S) -> str | None:
    """Try one mode in a process of its own: why it fails, or None.

    Args:
        mode: to try.
        device: the number of a GPU, or "cpu".
        program: arguments of Python; mode and device are added. It prints "good" as its last word, or why not.
        timeout_s: after which the process is killed, and the mode counts as failed.
    """
    result = run_child([*program, mode, device], timeout_s=timeout_s)
    if result.failure is not None:
        return result.failure
    last = (result.output.strip().splitlines() or ["it said nothing"])[-1]
    return None if last == "good" else last


# -- what decode="auto" takes ----------------------------------------------------------------------------------------


def pick_decoder(
    *, on_gpu: bool, mode: DaliMode | None, no_dali: str | None, no_kernel: str | None
) -> tuple[Literal["dali", "native", "library"], str]:
    """What `decode="auto"` takes, and why: DALI where batches go to a GPU, else the native kernel, else the library.

    Args:
        on_gpu: whether batches go to a CUDA device.
        mode: what `probe` chose for it; None where nothing works or was tried.
        no_dali: what `why_no_dali` or the probe says against DALI; None where nothing is.
        no_kernel: what `why_not` says of the native kernel.
    """
    if on_gpu and mode is not None:
        return "dali", f"batches go to the GPU, where DALI works in mode {mode!r}"
    reason = f"not DALI: {no_dali}" if on_gpu else "batches stay on the CPU"
    return ("native", reason) if no_kernel is None else ("library", f"{reason}; {no_kernel}")
