"""Ctrl-C during training: all ranks agree to stop after the same step. It neither saves nor ends anything itself."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

__all__ = ["StopRequest"]


class StopRequest:
    """While open, Ctrl-C asks to stop after a step instead of breaking it off; pressed again, it does break off.

    Ranks hear of it from each other one step later, by a small all-reduce that runs beside the step.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._patience = 2 if "TORCHELASTIC_RUN_ID" in os.environ else 1  # torchrun passes on what ranks had already
        self._former: Any = None
        self._group: dist.ProcessGroup | None = None
        self._work: dist.Work | None = None
        self._flag = torch.zeros(1)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._ask)
        if dist.is_initialized() and dist.get_world_size() > 1:
            self._group = dist.new_group(backend="gloo")
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, trace: TracebackType | None) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)
        if self._group is not None:
            if kind is None:
                self._finish()
            dist.destroy_process_group(self._group)
            self._group = self._work = None

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked += 1
        if self._asked > self._patience:
            signal.default_int_handler(number, frame)

    def _finish(self) -> bool:
        if self._work is None:
            return False
        self._work.wait()
        self._work = None
        return bool(self._flag.item())

    def wanted(self) -> bool:
        """Whether to stop now. Call it after each step, on all ranks: the answer is the same on each."""
        if self._group is None:
            return self._asked > 0
        if self._finish():
            return True
        self._flag.fill_(self._asked)
        self._work = dist.all_reduce(self._flag, group=self._group, async_op=True)
        return False
