"""What code in a worker process finds: its number, seed and copy of the data set, one thread; and `worker_init_fn`.

Errors and deaths of workers are tested elsewhere.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from forebay import DataLoader
from tests.dropin.same import assert_same_outcome, outcome, read
from tests.dropin.samples import Listed, Numbers, Split, Worker, as_is

Make = Callable[..., Any]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_worker_info_is_torch_s(workers: int, batch_size: int | None) -> None:
    def use(make: Make) -> Any:
        return read(make(Worker(), batch_size, num_workers=workers, collate_fn=as_is))

    ((first, *_),) = assert_same_outcome(use)
    info = first[1] if batch_size is None else first[0][1]
    if workers:
        assert info[:2] == (0, workers)
        assert info[3:] == (Worker, True), "get_worker_info().dataset is the very object that is asked for samples"
    else:
        assert info is None
    assert get_worker_info() is None


class Told(Numbers):
    """Sample i tells what `init` wrote into this worker's copy of the data set, and every field of its info."""

    note: Any = None

    def __getitem__(self, index: int) -> Any:
        info: Any = get_worker_info()
        return self.note, sorted(dir(info)), sorted(vars(type(info)))


def leave_note(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.note = worker, info.id, info.seed, torch.get_num_threads(), torch.rand(())


def test_worker_init_fn_is_called_with_the_number_after_seeding_and_reaches_the_data_set() -> None:
    def use(make: Make) -> Any:
        return read(make(Told(4), None, num_workers=2, worker_init_fn=leave_note, collate_fn=as_is))

    (epoch,) = assert_same_outcome(use)
    assert [sample[0][0] for sample in epoch] == [0, 1, 0, 1]
    assert [sample[0][3] for sample in epoch] == [1, 1, 1, 1]


def test_worker_info_cannot_be_changed() -> None:
    def assign(worker: int) -> None:
        info: Any = get_worker_info()
        with pytest.raises((AttributeError, RuntimeError)):  # which one differs between torch 2.9 and later ones
            info.id = 7
        with pytest.raises((AttributeError, RuntimeError, TypeError)):
            info.something = worker

    assert len(list(DataLoader(Numbers(2), num_workers=1, worker_init_fn=assign))) == 2


class Parts(IterableDataset[Any]):
    """A range of numbers of which `take_part` leaves each worker its own."""

    first, last = 0, 9

    def __iter__(self) -> Any:
        return iter(range(self.first, self.last))


def take_part(worker: int) -> None:
    info: Any = get_worker_info()
    each = -(-info.dataset.last // info.num_workers)
    info.dataset.first, info.dataset.last = each * worker, min(each * (worker + 1), info.dataset.last)


def test_worker_init_fn_may_divide_a_stream() -> None:
    def use(make: Make) -> Any:
        return read(make(Parts(), 2, num_workers=2, worker_init_fn=take_part), 2)

    epochs = assert_same_outcome(use)
    assert [batch.tolist() for batch in epochs[1]] == [[0, 1], [5, 6], [2, 3], [7, 8], [4]]


def refuse(worker: int) -> None:
    raise LookupError(f"worker {worker} cannot begin")


@pytest.mark.parametrize("data", [Numbers(4), Split(4)])
def test_an_error_in_worker_init_fn_is_raised_with_its_type(data: Any) -> None:
    def use(make: Make) -> None:
        list(make(data, num_workers=2, worker_init_fn=refuse))

    assert_same_outcome(use)
    error = outcome(use, DataLoader).error
    assert isinstance(error, LookupError)
    assert re.search("(?s)in DataLoader worker process 0.*Traceback.*worker 0 cannot begin", str(error))


def test_a_worker_works_on_a_copy_and_the_parent_s_data_set_stays_as_it_was() -> None:
    def use(make: Make) -> Any:
        told = Told(2)
        list(make(told, None, num_workers=1, worker_init_fn=leave_note, collate_fn=as_is))
        return told.note

    assert assert_same_outcome(use) is None


class Pid(Numbers):
    """Sample i is the process that made it."""

    def __getitem__(self, index: int) -> int:
        return os.getpid()


@pytest.mark.parametrize("persistent", [False, True])
def test_persistent_workers_are_the_same_processes_and_others_are_not(persistent: bool) -> None:
    loader = DataLoader(Pid(4), None, num_workers=2, persistent_workers=persistent)
    first, second = read(loader, 2)
    assert os.getpid() not in first
    assert first == [first[0], first[1]] * 2
    assert (first == second) is persistent
    assert len(multiprocessing.active_children()) == (2 if persistent else 0)
    loader._iterator = None


def test_workers_are_daemons_whose_own_children_are_refused_as_by_torch() -> None:
    class Child(Numbers):
        def __getitem__(self, index: int) -> bool:
            return multiprocessing.current_process().daemon

    assert list(DataLoader(Child(1), None, num_workers=1)) == [True]


def test_environment_and_working_folder_are_the_parent_s(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Surroundings(Numbers):
        def __getitem__(self, index: int) -> Any:
            return os.getcwd(), os.environ["COLOUR"]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLOUR", "red")
    assert list(DataLoader(Surroundings(1), None, num_workers=1, collate_fn=as_is)) == [(str(tmp_path), "red")]


def test_a_data_set_that_grows_between_epochs_is_seen_by_new_workers() -> None:
    samples = [1, 2]
    loader = DataLoader(Listed(samples), None, num_workers=1)
    assert list(loader) == [1, 2]
    samples.append(3)
    assert list(loader) == [1, 2, 3]
