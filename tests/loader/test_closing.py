"""Whatever ends an iteration, nothing is left: no thread, no process, no lock, no temporary file, no hanging exit."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.cache import InPlaceStore
from forebay.errors import ClosedError, ConfigError, StallError
from forebay.sharding import ShardReader, StoredDataset

TRANSFORMS = {"image": [T.RandomResizedCrop(16)]}


def loader(path: Path, cache: Path | None = None, **settings: object) -> DataLoader:
    where = f"{cache}:10MB" if cache else None
    return DataLoader(ShardDataset(path, cache=where, transforms=TRANSFORMS), **{"batch_size": 4, **settings})  # type: ignore[arg-type]


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("forebay")]


def leftovers(cache: Path) -> list[str]:
    return [str(path) for path in cache.rglob("*") if path.name.endswith((".part", ".tmp"))]


def test_after_the_last_batch_nothing_runs(pictures: Path, tmp_path: Path) -> None:
    batches = loader(pictures, tmp_path / "cache")
    assert sum(1 for _ in batches) == 25
    assert our_threads() == []
    assert leftovers(tmp_path) == []


def test_after_a_break_nothing_runs(pictures: Path, tmp_path: Path) -> None:
    batches = loader(pictures, tmp_path / "cache")
    for _ in batches:
        assert our_threads() != []
        break
    assert our_threads() == []
    assert leftovers(tmp_path) == []


def test_after_an_exception_in_the_loop_nothing_runs(pictures: Path, tmp_path: Path) -> None:
    def train() -> None:
        for _ in loader(pictures, tmp_path / "cache"):
            raise RuntimeError("loss is NaN")

    with pytest.raises(RuntimeError):
        train()
    assert our_threads() == []
    assert leftovers(tmp_path) == []


def test_closing_stops_reading_and_may_be_repeated(pictures: Path) -> None:
    batches = loader(pictures)
    with batches:
        iterator = iter(batches)
        next(iterator)
    assert our_threads() == []
    with pytest.raises(ClosedError, match="closed after 1 of 25 batches"):
        next(iterator)
    batches.close()
    assert sum(1 for _ in batches) == 25


def test_two_hundred_abandoned_iterators_leave_nothing(pictures: Path) -> None:
    batches = loader(pictures, num_workers=2)
    for _ in range(200):
        next(iter(batches))
    assert our_threads() == []


def test_two_iterators_at_once_do_not_influence_each_other(pictures: Path) -> None:
    batches = loader(pictures, shuffle=True, seed=1)
    first, second = iter(batches), iter(batches)
    mixed = [(next(first), next(second)) for _ in range(25)]
    batches.set_epoch(0)
    for (one, two), alone in zip(mixed, batches, strict=True):
        assert one["name"] == alone["name"]
        assert one["name"] != two["name"]
    del first, second


def test_a_batch_that_does_not_come_in_time_is_an_error(pictures: Path) -> None:
    gate = threading.Event()

    def wait(image: object) -> object:
        gate.wait(20)
        return image

    steps: list[T.Transform] = [T.RandomResizedCrop(16), wait]
    data = ShardDataset(pictures, transforms={"image": steps})
    iterator = iter(DataLoader(data, batch_size=4, timeout=0.2))
    closing = threading.Timer(0.5, gate.set)
    closing.start()
    with pytest.raises(StallError, match=r"timeout=0\.2"):
        next(iterator)
    closing.join()


def test_an_iterator_in_a_cycle_may_be_collected_by_a_thread_of_its_own(pictures: Path) -> None:
    dropped = threading.Event()

    def collect(image: object) -> object:
        dropped.wait(20)
        gc.collect()
        return image

    steps: list[T.Transform] = [T.RandomResizedCrop(16), collect]
    data = ShardDataset(pictures, transforms={"image": steps})
    batches = DataLoader(data, batch_size=4, num_workers=2, workers="thread")
    cycle: list[object] = [iter(batches)]
    cycle.append(cycle)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("forebay")]
    assert threads
    gc.disable()
    try:
        del cycle
        dropped.set()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive(), f"{thread.name} never ended"
    finally:
        gc.enable()
    for thread in threading.enumerate():
        if thread.name == "closing forebay":
            thread.join(timeout=60)


SCRIPT = """
import sys, forebay
from forebay import transforms as T
data = forebay.ShardDataset(sys.argv[1], cache=sys.argv[2] + ":10MB", transforms={"image": [T.RandomResizedCrop(16)]})
loader = forebay.DataLoader(data, batch_size=2)
iterator = iter(loader)
next(iterator)
"""


def script(pictures: Path, cache: Path, more: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", SCRIPT + more, str(pictures), str(cache)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_script_that_ends_in_mid_epoch_exits_at_once_and_in_silence(pictures: Path, tmp_path: Path) -> None:
    process = script(pictures, tmp_path / "cache")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    assert leftovers(tmp_path) == []


def test_a_script_that_fails_in_mid_epoch_shows_its_own_error(pictures: Path, tmp_path: Path) -> None:
    process = script(pictures, tmp_path / "cache", "raise RuntimeError('mine')\n")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.count("Traceback") == 1
    assert "RuntimeError: mine" in err


def test_ctrl_c_ends_the_process_with_nothing_but_its_traceback(pictures: Path, tmp_path: Path) -> None:
    loop = "print('running', flush=True)\nwhile True:\n    for batch in loader:\n        pass\n"
    process = script(pictures, tmp_path / "cache", loop)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in err
    assert "Exception in thread" not in err
    assert leftovers(tmp_path) == []


def test_the_hook_that_runs_before_threads_are_joined_exists() -> None:
    assert callable(threading._register_atexit)  # type: ignore[attr-defined]


def test_closing_does_not_wait_for_a_shard_that_does_not_come(pictures: Path) -> None:
    """The reading thread hangs in the store, as in a fetch from a dead server, until the store is closed."""

    class DeadStore(InPlaceStore):
        def __init__(self, data: StoredDataset) -> None:
            super().__init__(data)
            self.asked, self.closed = threading.Event(), threading.Event()

        def open_shard(self, shard: int) -> ShardReader:
            self.asked.set()
            assert self.closed.wait(60), "the store was never closed"
            raise ClosedError("closed")

        def close(self) -> None:
            self.closed.set()
            super().close()

    data = ShardDataset(pictures, transforms=TRANSFORMS)
    store = DeadStore(data.data)
    data.open_store = lambda: store  # type: ignore[method-assign]
    batches = DataLoader(data, batch_size=4)
    iterator = iter(batches)
    assert store.asked.wait(60)
    assert batches.stats().samples == 0
    batches.close()
    assert our_threads() == []
    with pytest.raises(ClosedError):
        next(iterator)


def test_when_no_more_threads_can_be_had_those_that_started_end(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "forebay-decode-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ConfigError, match=r"can.t start new thread.*lower num_workers \(4\)"):
        iter(loader(pictures, num_workers=4))
    assert our_threads() == []


def test_closing_the_loader_closes_every_pass_that_is_open(pictures: Path) -> None:
    batches = loader(pictures)
    first, second = iter(batches), iter(batches)
    next(first), next(second)
    batches.close()
    assert our_threads() == []
    for iterator in (first, second):
        with pytest.raises(ClosedError):
            next(iterator)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_ends_programs_ends_the_loop_too_when_a_transform_raises_it(
    pictures: Path, kind: type[BaseException]
) -> None:
    def leave(image: object) -> object:
        raise kind

    steps: list[T.Transform] = [T.RandomResizedCrop(16), leave]
    with pytest.raises(kind):
        list(DataLoader(ShardDataset(pictures, transforms={"image": steps}), batch_size=4, timeout=60))
    assert our_threads() == []


FORKS = """
import multiprocessing
context = multiprocessing.get_context("fork")
for _ in range(25):
    for batch in loader:
        process = context.Process(target=int)
        process.start()
        process.join(60)
        assert process.exitcode == 0, f"the child did not end: {process.exitcode}"
        break
print("done")
"""


def test_a_child_forked_in_mid_epoch_ends_as_if_there_were_no_loader(pictures: Path, tmp_path: Path) -> None:
    process = script(pictures, tmp_path / "cache", FORKS)
    out, err = process.communicate(timeout=200)
    assert out == "done\n", err


INTERRUPTS = """
import os, random, signal, threading
rounds = 0
while rounds < 60:
    rounds += 1
    try:
        timer = threading.Timer(random.Random(rounds).uniform(0, 0.01), os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        for batch in loader:
            pass
        timer.join()
    except KeyboardInterrupt:
        pass
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("done")
"""


def test_ctrl_c_while_an_epoch_begins_leaves_nothing_that_keeps_the_process(pictures: Path, tmp_path: Path) -> None:
    process = script(pictures, tmp_path / "cache", INTERRUPTS)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (0, "done\n"), err
