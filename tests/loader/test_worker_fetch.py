"""How samples are fetched: side by side, with bad ones replaced, by threads, and called as torch calls them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import IterableDataset, SequentialSampler, Subset, get_worker_info

from forebay import DataLoader, ShardDataset
from forebay.errors import BadSampleBudgetError, ConfigError

KINDS: list[dict[str, Any]] = [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}]
NAMES = ["in process", "processes", "threads"]


class Numbers:
    def __init__(self, count: int = 40, bad: tuple[int, ...] = (), error: type[Exception] = ValueError) -> None:
        self.count, self.bad, self.error = count, bad, error

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise self.error(f"sample {index} is broken")
        return index


def read(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_bad_samples_of_every_batch_and_epoch_are_counted(kind: dict[str, Any]) -> None:
    bad = (1, 2, 9, 17, 18, 33)
    loader = DataLoader(Numbers(bad=bad), 4, on_error="skip", max_bad=1000, **kind)  # type: ignore[arg-type]
    with loader:
        for epoch in range(1, 3):
            list(loader)
            assert loader.stats().bad_count >= len(bad) * epoch  # more where one that was drawn in its place is bad too
            assert [sample.row for sample in loader.stats().bad] == list(bad)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_more_bad_samples_than_the_budget_end_the_pass_wherever_they_are(kind: dict[str, Any]) -> None:
    loader = DataLoader(Numbers(bad=tuple(range(0, 40, 4))), 4, on_error="skip", max_bad=5, **kind)  # type: ignore[arg-type]
    with loader, pytest.raises(BadSampleBudgetError, match="max_bad=5"):
        list(loader)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_a_bad_sample_moves_nothing_but_its_own_place(kind: dict[str, Any]) -> None:
    torch.manual_seed(1)
    expected = read(DataLoader(Numbers(), 4, shuffle=True))  # type: ignore[arg-type]
    seen = set()
    for batch_size, settings in ((4, kind), (5, {})):
        torch.manual_seed(1)
        with DataLoader(Numbers(bad=(7, 30)), batch_size, shuffle=True, on_error="skip", **settings) as loader:  # type: ignore[arg-type]
            got = [x for batch in read(loader) for x in batch]
            assert next((bad.row, bad.reason) for bad in loader.stats().bad) == (7, "ValueError: sample 7 is broken")
            assert loader.stats().bad_count >= 2
        flat = [x for batch in expected for x in batch]
        moved = {a: b for a, b in zip(flat, got, strict=True) if a != b}
        assert set(moved) == {7, 30}
        seen.add(tuple(sorted(moved.items())))
    assert len(seen) == 1, "the replacement depends on base seed, epoch and index alone"


def test_every_epoch_draws_other_replacements() -> None:
    with DataLoader(Numbers(1000, bad=(7,)), 1000, num_workers=1, persistent_workers=True, on_error="skip") as loader:  # type: ignore[arg-type]
        assert len({read(loader)[0][7] for _ in range(4)}) > 1


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_too_many_bad_samples_are_raised(kind: dict[str, Any]) -> None:
    loader = DataLoader(Numbers(bad=tuple(range(20))), 4, on_error="skip", max_bad=5, **kind)  # type: ignore[arg-type]
    with loader, pytest.raises(BadSampleBudgetError, match="max_bad=5"):
        read(loader)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@pytest.mark.parametrize("error", [MemoryError, ConnectionResetError], ids=["memory", "network"])
def test_errors_that_are_no_sample_s_fault_are_never_skipped(kind: dict[str, Any], error: type[Exception]) -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 9:
                raise MemoryError if error is MemoryError else ConnectionResetError(104, "reset by peer")
            return index

    with DataLoader(Broken(), 4, on_error="skip", **kind) as loader, pytest.raises(error):  # type: ignore[arg-type]
        read(loader)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_an_error_names_the_index(kind: dict[str, Any]) -> None:
    for threads in (1, 3):
        with DataLoader(Numbers(bad=(9,)), 4, batch_threads=threads, **kind) as loader:  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="sample 9 is broken") as caught:
                read(loader)
            assert "fetched sample 9" in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
            del caught


class Together:
    """A data set that gives no sample before several are asked for at once."""

    def __init__(self, parties: int) -> None:
        self.parties = parties
        self.barrier: threading.Barrier | None = None
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        with self.lock:
            self.barrier = self.barrier or threading.Barrier(self.parties)
        self.barrier.wait(timeout=20)
        return index

    def __getstate__(self) -> dict[str, Any]:
        return {"parties": self.parties, "barrier": None}


@pytest.mark.parametrize("kind", KINDS[:2], ids=NAMES[:2])
def test_samples_of_one_batch_are_fetched_side_by_side_in_order(kind: dict[str, Any]) -> None:
    with DataLoader(Together(4), 8, batch_threads=4, **kind) as loader:  # type: ignore[arg-type]
        assert read(loader) == [list(range(k, k + 8)) for k in (0, 8, 16)]


def test_batches_are_made_side_by_side_by_threads() -> None:
    with DataLoader(Together(2), 1, num_workers=2, workers="thread") as loader:  # type: ignore[arg-type]
        assert read(loader) == [[i] for i in range(24)]


class Counting:
    """Counts how it is called."""

    def __init__(self, *, many: bool) -> None:
        self.calls: list[Any] = []
        if many:
            self.__getitems__ = self._many

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.calls.append(index)
        return index

    def _many(self, indices: list[int]) -> list[int]:
        self.calls.append(indices)
        return indices


@pytest.mark.parametrize("many", [False, True], ids=["one by one", "__getitems__"])
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2]], ids=["in process", "threads"])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_the_data_set_is_called_as_torch_calls_it(kind: dict[str, Any], many: bool, batch_size: int | None) -> None:
    theirs, ours = Counting(many=many), Counting(many=many)
    expected = [b for b in torch.utils.data.DataLoader(theirs, batch_size)]  # type: ignore[arg-type]  # noqa: C416
    with DataLoader(ours, batch_size, **kind) as loader:  # type: ignore[arg-type]
        assert [str(b) for b in loader] == [str(b) for b in expected]
    assert sorted(map(str, ours.calls)) == sorted(map(str, theirs.calls))


class Asking(Numbers):
    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return (
            -1
            if info is None
            else (type(info.dataset).__name__, info.id, info.num_workers, id(info.dataset) == id(self))
        )


def test_worker_info_speaks_of_the_user_s_data_set() -> None:
    with DataLoader(Asking(2), 1, num_workers=2, collate_fn=list) as loader:  # type: ignore[arg-type]
        assert list(loader) == [[("Asking", 0, 2, True)], [("Asking", 1, 2, True)]]
    with DataLoader(Asking(2), 1, num_workers=2, workers="thread", collate_fn=list) as loader:  # type: ignore[arg-type]
        assert list(loader) == [[-1], [-1]]


class Stream(IterableDataset[int]):
    def __init__(self) -> None:
        self.iters = 0

    def __iter__(self) -> Iterator[int]:
        self.iters += 1
        return iter(range(10))


def test_threads_read_a_stream_once_and_in_order() -> None:
    data = Stream()
    with DataLoader(data, 3, num_workers=2, workers="thread", persistent_workers=True) as loader:
        for epoch in range(3):
            assert read(loader) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
            assert data.iters == epoch + 1


def test_threads_make_no_more_ahead_than_asked() -> None:
    made, gate = [], threading.Semaphore(0)

    class Counted(Numbers):
        def __getitem__(self, index: int) -> int:
            made.append(index)
            gate.release()
            return index

    with DataLoader(Counted(), 2, num_workers=2, prefetch_factor=2, workers="thread") as loader:  # type: ignore[arg-type]
        iterator = iter(loader)
        for delivered in range(3):
            while len(made) < 2 * (4 + delivered):
                assert gate.acquire(timeout=20)
            assert len(made) == 2 * (4 + delivered)
            next(iterator)


def test_closing_does_not_wait_for_the_batch_in_hand() -> None:
    started, go_on = threading.Event(), threading.Event()
    fetched = []

    class Slow(Numbers):
        def __getitem__(self, index: int) -> int:
            started.set()
            assert go_on.wait(timeout=20)
            fetched.append(index)
            return index

    loader = DataLoader(Slow(1000), 1000, num_workers=1, workers="thread")  # type: ignore[arg-type]
    iterator = iter(loader)
    assert started.wait(timeout=20)
    iterator._work.stopped = True
    go_on.set()
    loader.close()
    assert fetched == [0]


def test_a_thread_that_hangs_runs_into_the_timeout() -> None:
    release = threading.Event()

    class Hanging(Numbers):
        def __getitem__(self, index: int) -> int:
            release.wait()
            return index

    loader = DataLoader(Hanging(), 4, num_workers=1, workers="thread", timeout=0.2)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0.2 seconds"):
        read(loader)
    release.set()
    loader.close()


@pytest.mark.parametrize(
    ("data", "settings", "word"),
    [
        (Numbers(), {"workers": "fiber"}, "fiber"),
        (Numbers(), {"workers": "thread", "num_workers": 1, "worker_init_fn": print}, "worker_init_fn"),
        (Numbers(), {"batch_threads": 0}, "batch_threads=0"),
        (Numbers(), {"batch_threads": 1.5}, "batch_threads=1.5"),
        (Stream(), {"batch_threads": 2}, "indices"),
        (Numbers(), {"on_error": "ignore"}, "ignore"),
        (Stream(), {"on_error": "skip"}, "indices"),
        (Numbers(), {"on_error": "skip", "batch_sampler": [[1]]}, "batch_sampler"),
        (Numbers(), {"max_bad": 3}, "max_bad"),
        (Numbers(), {"on_error": "skip", "max_bad": -1}, "max_bad"),
        (Numbers(), {"seed": 1}, "seed"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(data: Any, settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        DataLoader(data, **settings)


def test_set_epoch_reaches_whoever_wants_it_once() -> None:
    told: list[tuple[str, int]] = []

    class Sampler(SequentialSampler):
        def set_epoch(self, epoch: int) -> None:
            told.append(("sampler", epoch))

    class Data(Numbers):
        def set_epoch(self, epoch: int) -> None:
            told.append(("data", epoch))

    data = Data()
    DataLoader(data, 4, sampler=Sampler(data)).set_epoch(3)  # type: ignore[arg-type]
    assert told == [("sampler", 3), ("data", 3)]
    DataLoader(Numbers(), 4).set_epoch(1)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_stats_tell_what_was_delivered_and_waited_for(kind: dict[str, Any]) -> None:
    with DataLoader(Numbers(), 6, **kind) as loader:  # type: ignore[arg-type]
        read(loader)
        stats = loader.stats()
        assert (stats.samples, stats.batches) == (40, 7)
        assert stats.stages["fetch"].samples == 40
        assert 0 < stats.stall_s <= stats.seconds
        assert "40 samples" in str(stats)
        assert json.loads(json.dumps(stats.to_dict()))["batches"] == 7
        loader.reset_stats()
        assert loader.stats().batches == 0


def test_a_subset_of_shards_is_read_and_says_what_is_lost(pictures: Path) -> None:
    data = ShardDataset(pictures, columns=["label"])
    with pytest.warns(UserWarning, match="Subset of a ShardDataset"):
        loader = DataLoader(Subset(data, [5, 3, 1]), 2)
    assert [batch["label"].tolist() for batch in loader] == [[2, 0], [1]]
    data.close()


def test_many_starts_beside_our_own_threads_do_not_hang(pictures: Path) -> None:
    with DataLoader(ShardDataset(pictures, columns=["label"]), 4, num_workers=2) as shards:
        running = iter(shards)
        next(running)
        for _ in range(10):
            with DataLoader(Numbers(), 4, num_workers=1) as loader:  # type: ignore[arg-type]
                assert len(read(loader)) == 10
        assert len(list(running)) > 0
