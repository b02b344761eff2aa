"""What every test gets: the data folder, and a check that nothing is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
ROOT = str(Path(__file__).resolve().parents[1])

if ROOT not in sys.path:
    sys.path.append(ROOT)  # a spawned worker takes over `sys.path`, and must import what it unpickles from the tests


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real photographs and awkward files, beside the checkout; the tests that need them say so by this fixture."""
    if not DATA.is_dir():
        pytest.skip(f"the test data is not at {DATA}")
    return DATA


def open_files() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return {
        fd: path
        for fd, path in found.items()
        if path.startswith("/") and not path.startswith(("/dev", "/proc", "/sys"))
    }


def left_behind(
    threads_before: set[threading.Thread], files_before: set[str]
) -> tuple[list[threading.Thread], list[str]]:
    threads = [thread for thread in threading.enumerate() if thread not in threads_before and thread.is_alive()]
    files = [p for p in open_files().values() if p not in files_before and not p.endswith((".so", ".py", ".pyc"))]
    return threads, files


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread, a child process or an open file, and show where the threads stand."""
    threads_before = set(threading.enumerate())
    files_before = set(open_files().values())
    yield
    threads, files = left_behind(threads_before, files_before)
    if threads or files:
        gc.collect()  # what only a reference cycle holds is not left behind; collecting after every test takes minutes
        for thread in threads:
            thread.join(timeout=5)  # nor is a thread that is about to end, such as those of torch's queues
        threads, files = left_behind(threads_before, files_before)
    if threads:
        frames = sys._current_frames()
        stacks = [
            f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
            for thread in threads
            if thread.ident in frames
        ]
        pytest.fail(f"threads left behind: {[thread.name for thread in threads]}\n" + "\n".join(stacks))
    if multiprocessing.active_children():
        gc.collect()  # as above: since Python 3.13 an error's frames keep more alive
    children = multiprocessing.active_children()
    assert not children, f"child processes left behind: {children}"
    assert not files, f"files left open: {files}"
