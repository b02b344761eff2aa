"""Which decoder a loader takes: what was asked for, or the best that is there, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from forebay.errors import ConfigError
from forebay.loader.dali_graph import DaliMode
from forebay.loader.dali_probe import dali_version, pick_decoder, probe, why_no_dali
from forebay.loader.head_work import Decoder
from forebay.loader.kernel import native_version, require_kernel, why_not

__all__ = ["DecoderChoice", "choose_decoder"]

_CAREFUL = "simplejpeg; Pillow for what it does not take"
_HOW = {"region": "windows", "whole": "whole pictures", "cpu_decode": "decoded on the CPU, resized on the GPU"}


@dataclass(frozen=True, slots=True)
class DecoderChoice:
    """What decodes, and what `stats().decoder` says of it."""

    decoder: Decoder
    told: str
    mode: DaliMode = "region"
    """How DALI decodes on a GPU."""


def choose_decoder(decode: Literal["auto", "dali", "native", "library"], device: torch.device | None) -> DecoderChoice:
    """Choose for a loader whose batches go to `device`; None is the CPU.

    "auto" takes DALI where batches go to a GPU on which it works, else the native kernel, else the libraries. To find
    out what works on a GPU takes some seconds, once for each process.

    Raises:
        ConfigError: what was asked for is not there; says what to install.
    """
    if decode == "auto":
        return _choose_best(device)
    if decode == "dali":
        if (reason := why_no_dali(device or torch.device("cpu"))) is not None:
            raise ConfigError(f'decode="dali": {reason}; or take decode="auto"')
        return _dali(device, "region" if device is None else probe(device))
    if decode == "native":
        require_kernel()
    return _on_cpu(decode)


def _choose_best(device: torch.device | None) -> DecoderChoice:
    mode, reason = None, None
    if device is not None and (reason := why_no_dali(device)) is None:
        try:
            mode = probe(device)
        except ConfigError as error:
            reason = str(error)
    decoder, why = pick_decoder(on_gpu=device is not None, mode=mode, no_dali=reason, no_kernel=why_not())
    return _dali(device, mode, why) if decoder == "dali" and mode is not None else _on_cpu(decoder, why)


def _on_cpu(decoder: Decoder, why: str = "as decode= says") -> DecoderChoice:
    kernel = f"native kernel, {native_version()}; " if decoder == "native" else ""
    return DecoderChoice(decoder, f"{kernel}{_CAREFUL} ({why})")


def _dali(device: torch.device | None, mode: DaliMode, why: str = "as decode= says") -> DecoderChoice:
    where = "the CPU" if device is None else f"{device}, {_HOW[mode]}"
    return DecoderChoice("dali", f"DALI {dali_version()} on {where}; {_CAREFUL} ({why})", mode)
