"""`workers="thread"`: torch's order and batches from threads of this process; nothing pickled, no process started.

What draws from the global generators is not torch's, as documented, and not compared here.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from forebay import DataLoader
from forebay.errors import ClosedError, ConfigError
from tests.dropin.programs import run
from tests.dropin.same import TorchLoader, assert_same, outcome, read, seed_all
from tests.dropin.samples import Kinds, Listed, Numbers, Split, as_is


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"shuffle": True, "batch_size": 3, "drop_last": True},
        {"batch_size": None, "shuffle": True},
        {"sampler": [4, 4, 1, 0], "batch_size": 3},
        {"batch_sampler": [[1, 2], [], [0]], "collate_fn": as_is},
        {"batch_size": 2, "prefetch_factor": 1},
        {"batch_size": 2, "in_order": True, "prefetch_factor": 5, "timeout": 60},
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["nested", "tensor"])
def test_batches_and_the_order_are_torch_s(workers: int, given: dict[str, Any], kind: str) -> None:
    plain = {name: value for name, value in given.items() if name not in ("prefetch_factor", "timeout")}
    seed_all()
    expected = read(TorchLoader(Kinds(kind), **plain), 3), torch.rand(())
    seed_all()
    ours = read(DataLoader(Kinds(kind), num_workers=workers, workers="thread", **given), 3), torch.rand(())
    assert_same(expected, ours)


def test_persistent_threads_go_on_with_the_next_epoch() -> None:
    loader = DataLoader(Numbers(7), 2, num_workers=2, workers="thread", persistent_workers=True)
    first, second = read(loader, 2)
    assert_same(first, second)
    assert_same(first, list(TorchLoader(Numbers(7), 2)))
    loader.close()


def test_a_stream_is_read_by_one_thread_and_once() -> None:
    seed_all()
    expected = [[index for index, *_ in TorchLoader(Split(9), None)]] * 2
    loader = DataLoader(Split(9), None, num_workers=2, workers="thread")
    assert [[index for index, *_ in loader] for _ in range(2)] == expected


def test_completion_order_gives_every_batch_once() -> None:
    loader = DataLoader(Numbers(50), 4, num_workers=2, in_order=False, workers="thread")
    for _ in range(2):
        assert sorted(int(x) for batch in loader for x in batch) == list(range(50))


def test_samples_come_from_threads_of_this_process_which_end_with_the_pass() -> None:
    class Where(Numbers):
        def __getitem__(self, index: int) -> Any:
            return os.getpid(), threading.current_thread() is threading.main_thread()

    before = set(threading.enumerate())
    assert set(DataLoader(Where(20), None, num_workers=2, workers="thread", collate_fn=as_is)) == {(os.getpid(), False)}
    assert not multiprocessing.active_children()
    assert set(threading.enumerate()) == before


def test_several_samples_are_made_at_a_time() -> None:
    """Each sample waits until another is in the making too."""
    meeting = threading.Barrier(2, timeout=60)

    class Meets(Numbers):
        def __getitem__(self, index: int) -> int:
            meeting.wait()
            return index

    assert list(DataLoader(Meets(8), None, num_workers=2, workers="thread")) == list(range(8))


def test_what_cannot_be_pickled_is_no_matter() -> None:
    samples = [lambda i=i: i for i in range(6)]
    loader = DataLoader(Listed(samples), 2, num_workers=2, workers="thread", collate_fn=lambda batch: batch)
    assert [sample() for batch in loader for sample in batch] == list(range(6))


def test_the_data_set_is_the_user_s_own_object() -> None:
    class Counts(Numbers):
        fetched = 0

        def __getitem__(self, index: int) -> Any:
            self.fetched += 1
            return super().__getitem__(index)

    data = Counts(10)
    list(DataLoader(data, 3, num_workers=1, workers="thread"))
    assert data.fetched == 10


def test_an_error_is_raised_in_its_place_with_type_and_traceback_and_the_pass_goes_on() -> None:
    class Raises(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raise KeyError("sample five")
            return index

    iterator = iter(DataLoader(Raises(12), 2, num_workers=2, workers="thread"))
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(KeyError, match="sample five") as raised:
        next(iterator)
    assert any("Raises" in str(entry.frame) or entry.name == "__getitem__" for entry in raised.traceback)
    assert [batch.tolist() for batch in iterator] == [[6, 7], [8, 9], [10, 11]]


def test_a_sample_that_hangs_runs_into_the_timeout() -> None:
    gate = threading.Event()

    class Hangs(Numbers):
        def __getitem__(self, index: int) -> Any:
            assert gate.wait(60)
            return index

    def use(_: Any) -> Any:
        return list(DataLoader(Hangs(4), 2, num_workers=1, workers="thread", timeout=1))

    error = outcome(use, DataLoader).error
    gate.set()
    assert isinstance(error, RuntimeError)
    assert str(error) == "DataLoader timed out after 1 seconds"


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_leaving_early_ends_the_threads(taken: int) -> None:
    before = set(threading.enumerate())
    loader = DataLoader(Numbers(1000), 2, num_workers=2, workers="thread")
    for _ in range(10):
        list(itertools.islice(loader, taken))
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(ClosedError):
        list(iterator)


def test_a_script_without_a_main_guard_works_and_ends_in_silence(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        multiprocessing.set_start_method("spawn")
        loader = DataLoader(Numbers(1000), 4, num_workers=2, workers="thread")
        for i, batch in enumerate(loader):
            if i == 3:
                break
        iterator = iter(loader)
        print(next(iterator).flatten().tolist())
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 2, 3]\n", "")


def test_settings_that_threads_cannot_keep_are_refused() -> None:
    with pytest.raises(ConfigError, match="worker_init_fn"):
        DataLoader(Numbers(4), num_workers=1, workers="thread", worker_init_fn=as_is)
    with pytest.raises(ConfigError, match="workers='fibre'"):
        DataLoader(Numbers(4), num_workers=1, workers="fibre")  # type: ignore[arg-type]


def test_an_endless_stream_in_a_thread_is_left_at_once() -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return itertools.count()

    loader = DataLoader(Endless(), 3, num_workers=1, workers="thread")
    assert [batch.tolist() for batch in itertools.islice(loader, 2)] == [[0, 1, 2], [3, 4, 5]]
    loader.close()
