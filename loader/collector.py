"""Whether this thread is inside the garbage collector, and how to get out of it.

The collector runs finalizers wherever it happens to interrupt a thread: within `threading`, `queue` or our own code
too, while a lock is held. A finalizer that takes locks or joins threads must not do so there.
"""

from __future__ import annotations

import _thread
import gc
import threading
from collections.abc import Callable

__all__ = ["collecting_garbage", "in_another_thread"]

_collecting: set[int] = set()  # threads inside the collector; adding and discarding are atomic


def _watch(phase: str, _info: dict[str, int]) -> None:
    if phase == "start":
        _collecting.add(threading.get_ident())
    else:
        _collecting.discard(threading.get_ident())


gc.callbacks.append(_watch)


def collecting_garbage() -> bool:
    """Whether the collector called us; false when the last reference simply went away."""
    return threading.get_ident() in _collecting


def in_another_thread(work: Callable[[], None]) -> None:
    """Do `work` in a thread of its own, without touching a lock of `threading` here."""

    def start() -> None:
        # `daemon` is said, or Thread would ask for the current thread and register this one as a stranger for ever.
        threading.Thread(target=work, name="closing forebay", daemon=False).start()

    _thread.start_new_thread(start, ())
