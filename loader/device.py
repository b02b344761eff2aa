"""The last step of a batch: from pinned memory to the device, on a stream of its own, ahead of the training step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from forebay.errors import ConfigError

__all__ = ["DeviceCopy", "on_stream", "resolve_device"]


def resolve_device(device: torch.device | str | None) -> torch.device | None:
    """The device that batches go to; None leaves them where they are made.

    Raises:
        ConfigError: a CUDA device where there is none, or what torch knows no device by.
    """
    if device is None:
        return None
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={device!r:.200} is no device that torch knows; give one such as 'cuda:0'") from error
    if wanted.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device={str(wanted)!r}, but torch sees no CUDA device; leave device out, or use 'cpu'")
        if ":" not in str(wanted):
            wanted = torch.device("cuda", torch.cuda.current_device())
    return wanted if wanted.type != "cpu" else None


def on_stream(stream: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[Any]:
    """Do the body's work on a stream of CUDA; None is the CPU, which has none."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


class DeviceCopy:
    """Copies batches to one CUDA device. `start` is called by the collating thread, `finish` by the training loop.

    Args:
        device: of CUDA.
        stream: that it all happens on; a new one when None.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None) -> None:
        self._device = device
        self.stream: torch.cuda.Stream = stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        """That all of it happens on."""

    def start(
        self, batch: dict[str, Any], then: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> tuple[dict[str, Any], torch.cuda.Event]:
        """Queue the copies on our stream, and whatever `then` does to them there, and return at once.

        Pinned sources come from torch's host allocator, which does not reuse a block before its copy is done.
        """
        with torch.cuda.stream(self.stream):
            moved = then(self._moved(batch))
            moved = self._moved(moved)  # what a batch transform made on the CPU
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self.stream)
        return moved, event

    def _moved(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value.to(self._device, non_blocking=True) if isinstance(value, Tensor) else value
            for name, value in batch.items()
        }

    def finish(self, batch: dict[str, Any], event: torch.cuda.Event) -> None:
        """Make the training loop's stream wait for the copies, and tell the allocator that it uses their memory."""
        current = torch.cuda.current_stream(self._device)
        event.wait(current)
        for value in batch.values():
            if isinstance(value, Tensor) and value.is_cuda:
                value.record_stream(current)
