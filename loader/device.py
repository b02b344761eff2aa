"""The last step of a batch: from pinned memory to the device, on a stream of its own, ahead of the training step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from forebay.errors import ConfigError

__all__ = ["DeviceCopy", "resolve_device"]


def resolve_device(device: torch.device | str | None) -> torch.device | None:
    """The device that batches go to; None leaves them where they are made.

    Raises:
        ConfigError: a CUDA device where there is none.
    """
    if device is None:
        return None
    wanted = torch.device(device)
    if wanted.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device={str(wanted)!r}, but torch sees no CUDA device; leave device out, or use 'cpu'")
        if ":" not in str(wanted):
            wanted = torch.device("cuda", torch.cuda.current_device())
    return wanted if wanted.type != "cpu" else None


class DeviceCopy:
    """Copies batches to one CUDA device. `start` is called by the collating thread, `finish` by the training loop."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, batch: dict[str, Any]) -> tuple[dict[str, Any], torch.cuda.Event]:
        """Queue the copies on our stream and return at once.

        Pinned sources come from torch's host allocator, which does not reuse a block before its copy is done.
        """
        with torch.cuda.stream(self._stream):
            moved = {
                name: value.to(self._device, non_blocking=True) if isinstance(value, Tensor) else value
                for name, value in batch.items()
            }
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return moved, event

    def finish(self, batch: dict[str, Any], event: torch.cuda.Event) -> None:
        """Make the training loop's stream wait for the copies, and tell the allocator that it uses their memory."""
        current = torch.cuda.current_stream(self._device)
        event.wait(current)
        for value in batch.values():
            if isinstance(value, Tensor) and value.is_cuda:
                value.record_stream(current)
