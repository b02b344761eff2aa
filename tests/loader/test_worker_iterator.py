"""Worker processes: torch's batches exactly, and every way to end: errors, kills, hangs, a loader dropped."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import resource
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from forebay import DataLoader
from forebay.errors import ConfigError
from tests.dropin.same import assert_same

TorchLoader = torch.utils.data.DataLoader


class Numbers:
    """Samples that tell their index, in several shapes of batch, with draws of all three generators."""

    def __init__(self, count: int, kind: str = "dict", nbytes: int = 40) -> None:
        self.count, self.kind, self.nbytes = count, kind, nbytes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        size = self.nbytes // 4
        draws = torch.rand(2), np.random.rand(2), random.random()
        match self.kind:
            case "tensor":
                return torch.full((size,), index, dtype=torch.float32)
            case "array":
                return np.full((size, 2), index, dtype=np.int32)
            case "tuple":
                return np.full(size, index), index, str(index), draws
            case _:
                return {"x": torch.full((3, size), index), "y": [index, float(index)], "draws": draws}


class Stream(IterableDataset[Any]):
    """A part of the numbers in each worker."""

    def __init__(self, count: int, nbytes: int = 40) -> None:
        self.count, self.nbytes = count, nbytes

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.count, step):
            yield torch.full((self.nbytes // 4,), index), torch.rand(2)


def read(loader: Any, epochs: int = 2) -> list[Any]:
    torch.manual_seed(5)
    return [list(loader) for _ in range(epochs)]


@given(
    count=st.integers(0, 23),
    batch_size=st.one_of(st.none(), st.integers(1, 9)),
    workers=st.integers(0, 2),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    persistent=st.booleans(),
    prefetch=st.integers(1, 3),
    kind=st.sampled_from(["dict", "tensor", "array", "tuple", "stream"]),
    nbytes=st.sampled_from([40, 30_000]),
)
@settings(deadline=None, max_examples=50)
def test_batches_are_torch_s(
    count: int,
    batch_size: int | None,
    workers: int,
    shuffle: bool,
    drop_last: bool,
    persistent: bool,
    prefetch: int,
    kind: str,
    nbytes: int,
) -> None:
    data: Any = Stream(count, nbytes) if kind == "stream" else Numbers(count, kind, nbytes)
    kwargs: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers}
    kwargs["drop_last"] = drop_last and batch_size is not None
    if kind != "stream":
        kwargs["shuffle"] = shuffle and count > 0
    if workers:
        kwargs |= {"persistent_workers": persistent, "prefetch_factor": prefetch}
    random.seed(0)
    np.random.seed(0)
    expected = read(TorchLoader(data, **kwargs))
    random.seed(0)
    np.random.seed(0)
    with DataLoader(data, **kwargs) as loader:
        assert_same(expected, read(loader))
    if workers and kind in ("dict", "stream"):
        assert torch.initial_seed() == 5


def as_is(batch: list[Any]) -> list[Any]:
    return batch


START_METHODS = """
import sys
import torch
import torch.utils.data
from forebay import DataLoader

class Squares:
    def __len__(self):
        return 7

    def __getitem__(self, index):
        return {"square": torch.full((3,), index * index), "name": f"number {index}"}

def as_is(batch):
    return batch

def read(kind, method):
    given = {"batch_size": 3, "num_workers": 1, "multiprocessing_context": method}
    return [str(list(kind(Squares(), collate_fn=collate, **given))) for collate in (as_is, None)]

if __name__ == "__main__":
    assert read(DataLoader, sys.argv[1]) == read(torch.utils.data.DataLoader, "fork")
    print("the same")
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods_give_the_same(method: str, tmp_path: Path) -> None:
    """In a script of its own: children that do not fork import the main module again."""
    script = tmp_path / "script.py"
    script.write_text(START_METHODS)
    command = [sys.executable, str(script), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (0, "the same\n"), done.stderr


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch 2.13 says so too
def test_something_that_does_not_pickle_is_named_under_spawn() -> None:
    loader = DataLoader(Numbers(7), num_workers=1, multiprocessing_context="spawn", collate_fn=lambda b: b)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"lambda.*workers="):
        iter(loader)


@pytest.mark.parametrize("in_order", [True, False])
def test_completion_order_loses_nothing(in_order: bool) -> None:
    loader = DataLoader(Numbers(40, "tensor"), 3, num_workers=2, in_order=in_order)  # type: ignore[arg-type]
    assert sorted(int(x) for batch in loader for x in batch[:, 0]) == list(range(40))


class Trouble:
    """A data set in which sample 13 does what `how` says."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        if index == 13:
            match self.how:
                case "exit":
                    os._exit(3)
                case "leave":
                    os._exit(0)
                case "raise":
                    raise Awkward("one", two="by name")
                case "key":
                    raise KeyError("the key")
                case "hang":
                    time.sleep(1000)
                case "lambda":
                    return lambda: 0
                case _:
                    os.kill(os.getpid(), getattr(signal, self.how))
        return index


class Awkward(Exception):
    def __init__(self, one: str, *, two: str) -> None:
        super().__init__(one, two)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("SIGKILL", r"worker 0 \(pid \d+\) was killed by SIGKILL .* batch 4 in hand, the samples \[12, 13, 14\]"),
        ("SIGSEGV", "worker 0 .* was killed by SIGSEGV"),
        ("SIGBUS", "worker 0 .* was killed by SIGBUS"),
        ("exit", "worker 0 .* exited with code 3 .* batch 4 in hand"),
        ("leave", "worker 0 .* exited with code 0 while it had batch 4 in hand"),
    ],
)
@pytest.mark.parametrize("main_thread", [True, False], ids=["main thread", "another thread"])
def test_a_worker_that_dies_is_named_with_what_it_had(how: str, words: str, main_thread: bool) -> None:
    loader = DataLoader(Trouble(how), 3, num_workers=2)  # type: ignore[arg-type]
    errors: list[BaseException] = []

    def consume() -> None:
        try:
            list(loader)
        except RuntimeError as error:
            errors.append(error)

    if main_thread:
        consume()
    else:
        thread = threading.Thread(target=consume)
        thread.start()
        thread.join()
    loader.close()
    assert not multiprocessing.active_children()
    with pytest.raises(RuntimeError, match=f"(?s)^DataLoader worker.*{words}"):
        raise errors[0]


def test_an_error_in_a_worker_names_the_sample_and_keeps_its_type() -> None:
    words = r"(?s)in DataLoader worker process 0.*in __getitem__.*fetched sample 13"
    with DataLoader(Trouble("key"), 3, num_workers=2) as loader, pytest.raises(KeyError, match=words):  # type: ignore[arg-type]
        list(loader)
    with DataLoader(Trouble("raise"), 3, num_workers=2) as loader, pytest.raises(RuntimeError, match=words):  # type: ignore[arg-type]
        list(loader)


def test_an_error_is_one_batch_and_the_next_one_follows() -> None:
    loader = DataLoader(Trouble("key"), 3, num_workers=2)  # type: ignore[arg-type]
    iterator = iter(loader)
    got: list[list[int]] = []
    for _ in range(7):
        try:
            got.append(next(iterator).tolist())
        except KeyError:
            got.append([])
    loader.close()
    assert got == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [], [15, 16, 17], [18, 19]]


def test_a_batch_that_does_not_pickle_is_an_error_not_a_hang() -> None:
    loader = DataLoader(Trouble("lambda"), 3, num_workers=2, collate_fn=as_is)  # type: ignore[arg-type]
    with loader, pytest.raises((AttributeError, RuntimeError), match="worker process 0, sending the batch"):
        list(loader)


def test_a_sample_that_hangs_runs_into_the_timeout() -> None:
    loader = DataLoader(Trouble("hang"), 3, num_workers=2, timeout=1)  # type: ignore[arg-type]
    with loader, pytest.raises(RuntimeError, match="DataLoader timed out after 1 seconds"):
        list(loader)


def test_a_worker_of_a_stream_that_ends_early_is_no_timeout() -> None:
    loader = DataLoader(Stream(9), 2, num_workers=2, timeout=60)
    assert sorted(int(x) for batch, _ in loader for x in batch[:, 0]) == list(range(9))


def test_leaving_early_and_starting_again_leaves_no_worker() -> None:
    loader = DataLoader(Numbers(100, "tensor", 40_000), 4, num_workers=2)  # type: ignore[arg-type]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        assert next(iter(loader))[0, 0] == 0
        assert not multiprocessing.active_children()
    assert len(os.listdir("/proc/self/fd")) <= before
    kept = iter(loader)
    next(kept)
    loader.close()
    loader.close()
    assert not multiprocessing.active_children()
    persistent = DataLoader(Numbers(100), 4, num_workers=2, persistent_workers=True)  # type: ignore[arg-type]
    list(persistent)
    persistent._iterator = None
    assert not multiprocessing.active_children()


def test_indices_by_the_million_and_a_thousand_batches_ahead_do_not_deadlock() -> None:
    class Lengths:
        def __len__(self) -> int:
            return 10**7

        def __getitems__(self, indices: list[int]) -> list[Any]:
            return ["word " * 10_000, len(indices)]

        def __getitem__(self, index: int) -> Any:
            raise AssertionError

    many = [range(10**6), list(range(10**6)), list(range(300_000))]
    loader = DataLoader(Lengths(), batch_sampler=many, num_workers=2, collate_fn=as_is)  # type: ignore[arg-type]
    assert [batch[1] for batch in loader] == [10**6, 10**6, 300_000]
    ahead = DataLoader(Numbers(6000, "tensor", 8000), 2, num_workers=2, prefetch_factor=1000)  # type: ignore[arg-type]
    assert [int(batch[0, 0]) for batch in itertools.islice(ahead, 50)] == list(range(0, 100, 2))
    words = DataLoader(Lengths(), batch_sampler=[[1]] * 300, num_workers=1, collate_fn=as_is, prefetch_factor=200)  # type: ignore[arg-type]
    assert len(list(words)) == 300


def test_kept_batches_need_no_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        loader = DataLoader(Numbers(2000, "tensor", 40_000), 1, num_workers=2)  # type: ignore[arg-type]
        kept = list(loader)
        assert all((batch == i).all() for i, batch in enumerate(kept))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def run_script(body: str, *, kill_after: str | None = None) -> subprocess.CompletedProcess[str]:
    script = textwrap.dedent(
        """
        import os, signal, sys, time, threading
        import torch
        from forebay import DataLoader
        class Data:
            def __len__(self): return 1000
            def __getitem__(self, i): return torch.full((20000,), i)
        """
    ) + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "settings", ["", ", persistent_workers=True", ", workers='thread'", ", workers='thread', persistent_workers=True"]
)
def test_a_script_that_takes_one_batch_ends_silently(settings: str) -> None:
    done = run_script(f"loader = DataLoader(Data(), 4, num_workers=2{settings})\nit = iter(loader)\nnext(it)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def has_ended(pid: int, within_s: float = 10) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(process, select.POLLIN)
    ended = bool(poll.poll(within_s * 1000))
    os.close(process)
    return ended


def test_the_workers_end_when_their_parent_is_killed() -> None:
    done = run_script(
        """
        loader = DataLoader(Data(), 4, num_workers=2)
        it = iter(loader)
        next(it)
        print(*[w.pid for w in it._workers], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert done.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert [pid for pid in pids if not has_ended(pid)] == []


def test_an_interrupt_ends_everything() -> None:
    done = run_script(
        """
        loader = DataLoader(Data(), num_workers=2, batch_sampler=iter(lambda: [1, 2], None))
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            for _ in loader: pass
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_where_memory_without_a_name_is_refused_torch_s_way_is_taken() -> None:
    done = run_script(
        """
        import warnings
        def refuse(*args): raise OSError(1, "Operation not permitted")
        os.memfd_create = refuse
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                assert [int(b[0, 0]) for b in DataLoader(Data(), 250, num_workers=2)] == [0, 250, 500, 750]
        told = [str(w.message) for w in caught if w.category is not DeprecationWarning]
        print(len(told), "seccomp" in told[0])
        """
    )
    assert (done.stdout, done.stderr) == ("1 True\n", "")
