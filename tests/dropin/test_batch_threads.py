"""`batch_threads=N`: the samples of one batch side by side, in torch's order, for data sets that wait on storage."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from forebay import DataLoader
from forebay.errors import ConfigError
from tests.dropin.same import TorchLoader, assert_same, outcome, read, seed_all
from tests.dropin.samples import Kinds, Listed, Numbers, Split, as_is


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}], ids=repr)
@pytest.mark.parametrize("kind", ["nested", "channels last", "str"])
@pytest.mark.parametrize("threads", [2, 16])
def test_batches_are_torch_s(settings: dict[str, Any], kind: str, threads: int) -> None:
    if kind == "channels last":
        kind = "transposed"  # the other draws, and threads share a generator
    seed_all()
    expected = read(TorchLoader(Kinds(kind, 11), 4, True), 2)
    seed_all()
    assert_same(expected, read(DataLoader(Kinds(kind, 11), 4, True, batch_threads=threads, **settings), 2))


class Meets(Numbers):
    """A sample is made when three more are being made."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.meeting: threading.Barrier | None = None

    def __getitem__(self, index: int) -> int:
        assert self.meeting is not None
        self.meeting.wait(60)
        return index


def arrange(worker: int) -> None:
    from torch.utils.data import get_worker_info

    info: Any = get_worker_info()
    info.dataset.meeting = threading.Barrier(4)


def test_the_samples_of_a_batch_are_fetched_side_by_side() -> None:
    here = Meets(8)
    here.meeting = threading.Barrier(4)
    for loader in (
        DataLoader(here, 4, batch_threads=4),
        DataLoader(Meets(8), 4, batch_threads=4, num_workers=1, worker_init_fn=arrange),
    ):
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_one_sample_is_the_batch_s_and_the_next_batch_comes(workers: int) -> None:
    class Raises(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raise LookupError("sample five")
            return index

    def use(_: Any) -> Any:
        got: list[Any] = []
        iterator = iter(DataLoader(Raises(12), 4, batch_threads=4, num_workers=workers))
        for _ in range(3):
            try:
                got.append(next(iterator).tolist())
            except LookupError as error:
                got.append("sample five" in str(error))
        iterator.close()
        return got

    assert outcome(use, DataLoader).value == [[0, 1, 2, 3], True, [8, 9, 10, 11]]


def test_each_sample_is_fetched_once() -> None:
    class Watched(Numbers):
        fetched: list[int]

        def __getitem__(self, index: int) -> int:
            self.fetched.append(index)
            return index

    data = Watched(30)
    data.fetched = []
    list(DataLoader(data, 7, batch_threads=3))
    assert sorted(data.fetched) == list(range(30))


def test_no_thread_is_left_after_a_pass_left_early() -> None:
    before = set(threading.enumerate())
    iterator = iter(DataLoader(Numbers(100), 4, batch_threads=4))
    next(iterator)
    del iterator
    assert set(threading.enumerate()) == before


def test_settings_that_cannot_work_are_refused() -> None:
    for threads in (0, -1, 10**6):
        with pytest.raises(ConfigError, match="batch_threads"):
            DataLoader(Numbers(4), batch_threads=threads)
    with pytest.raises(ConfigError, match="batch_threads"):
        DataLoader(Numbers(4), batch_threads=2.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="batch_threads"):
        DataLoader(Split(4), batch_threads=2)


def test_a_batch_that_the_data_set_fetches_at_once_gives_its_samples() -> None:
    """Asked to go side by side, the loader asks sample by sample."""
    (batch,) = DataLoader(Listed("abc", many=True), 3, batch_threads=2, collate_fn=as_is)
    assert list(batch) == ["a", "b", "c"]
