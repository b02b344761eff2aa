"""The state of a loader of any data set: exact at every place, for every kind of sampler and number of workers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, RandomSampler, Sampler, WeightedRandomSampler, get_worker_info

from forebay import DataLoader
from forebay.errors import ConfigError, StateError

COUNT = 23
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")


class Squares:
    def __init__(self, count: int = COUNT) -> None:
        self.count = count
        self.calls = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        return index * index


class Plain(IterableDataset[int]):
    """Without a state of its own."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, COUNT, step))


class Telling(IterableDataset[int]):
    """With a state, by torchdata's convention; counts what it reads."""

    def __init__(self) -> None:
        self.at = 0
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        at, self.at = self.at, 0
        for value in range(first + at * step, COUNT, step):
            at += 1
            self.at = at
            self.read += 1
            yield value
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class TellingIterator:
    def __init__(self, values: range) -> None:
        self.values, self.at = values, 0

    def __iter__(self) -> TellingIterator:
        return self

    def __next__(self) -> int:
        if self.at >= len(self.values):
            raise StopIteration
        self.at += 1
        return self.values[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class WithTellingIterator(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return TellingIterator(range(first, COUNT, step))


class OwnSampler(Sampler[int]):
    """Draws its order from torch's global generator, at once."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(COUNT).tolist())

    def __len__(self) -> int:
        return COUNT


class TellingSampler(Sampler[int]):
    def __init__(self) -> None:
        self.at, self.pass_number, self.fresh = 0, -1, True

    def __iter__(self) -> Iterator[int]:
        if self.fresh:
            self.pass_number, self.at = self.pass_number + 1, 0
        self.fresh = True
        while self.at < COUNT:
            self.at += 1
            yield (self.at * 7 + self.pass_number) % COUNT

    def __len__(self) -> int:
        return COUNT

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "pass": self.pass_number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.pass_number, self.fresh = state["at"], state["pass"], False


def make(kind: str, workers: int, batch_size: int | None, *, threads: bool = False) -> Any:
    """A new loader, its generators at their start."""
    torch.manual_seed(11)
    generator = torch.Generator().manual_seed(3)
    kwargs: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers}
    if threads and workers:
        kwargs["workers"] = "thread"
    match kind:
        case "order":
            return DataLoader(Squares(), **kwargs)  # type: ignore[arg-type]
        case "shuffle":
            return DataLoader(Squares(), shuffle=True, **kwargs)  # type: ignore[arg-type]
        case "generator":
            return DataLoader(Squares(), shuffle=True, generator=generator, **kwargs)  # type: ignore[arg-type]
        case "random sampler":
            sampler: Any = RandomSampler(range(COUNT), replacement=True, generator=generator)
            return DataLoader(Squares(), sampler=sampler, **kwargs)  # type: ignore[arg-type]
        case "weighted":
            return DataLoader(Squares(), sampler=WeightedRandomSampler([1.0] * COUNT, 31), **kwargs)  # type: ignore[arg-type]
        case "own sampler":
            return DataLoader(Squares(), sampler=OwnSampler(), **kwargs)  # type: ignore[arg-type]
        case "telling sampler":
            return DataLoader(Squares(), sampler=TellingSampler(), **kwargs)  # type: ignore[arg-type]
        case "stream":
            return DataLoader(Plain(), **kwargs)
        case "telling stream":
            return DataLoader(Telling(), **kwargs)
        case _:
            return DataLoader(WithTellingIterator(), **kwargs)


MAPS = ["order", "shuffle", "generator", "random sampler", "weighted", "own sampler", "telling sampler"]
STREAMS = ["stream", "telling stream", "telling iterator"]


def values(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


@given(
    kind=st.sampled_from(MAPS + STREAMS),
    workers=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    batch_size=st.sampled_from([None, 1, 4, 7]),
    epoch=st.integers(0, 2),
    steps=st.integers(0, 24),
    again=st.integers(0, 3),
    threads=st.booleans(),
)
@settings(deadline=None, max_examples=20)
def test_a_new_loader_goes_on_with_the_very_next_batch(
    kind: str,
    workers: tuple[int, int],
    batch_size: int | None,
    epoch: int,
    steps: int,
    again: int,
    threads: bool,
) -> None:
    first, second = workers if kind in MAPS else (workers[0], workers[0])
    go_on_in_threads = threads and kind in STREAMS
    with make(kind, first, batch_size, threads=threads) as loader:
        passes = [values(loader) for _ in range(4)]
    steps = min(steps, len(passes[epoch]))
    with make(kind, first, batch_size, threads=threads) as loader:
        for _ in range(epoch):
            assert len(values(loader)) >= 0
        iterator = iter(loader)
        assert values(itertools.islice(iterator, steps)) == passes[epoch][:steps]
        state = json.loads(json.dumps(loader.state_dict()))
    rest = passes[epoch][steps:]
    again = min(again, len(rest))
    with make(kind, second, batch_size, threads=go_on_in_threads) as loader:
        torch.manual_seed(99)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        iterator = iter(loader)
        assert values(itertools.islice(iterator, again)) == rest[:again]
        state = json.loads(json.dumps(loader.state_dict()))
        del iterator
    with make(kind, second, batch_size, threads=go_on_in_threads) as loader:
        loader.load_state_dict(state)
        assert values(loader) == rest[again:]
        # With worker processes torch asks a sampler twice, so one that draws at once draws another order next.
        asked_alike = kind != "own sampler" or (bool(first) and not threads) == bool(second)
        if kind != "telling sampler" and asked_alike:
            assert values(loader) == passes[epoch + 1]


@pytest.mark.parametrize("kind", ["shuffle", "generator", "own sampler", "stream"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_end_of_an_epoch_has_two_sides(kind: str, workers: int) -> None:
    with make(kind, workers, 4) as loader:
        passes = [values(loader) for _ in range(3)]
    with make(kind, workers, 4) as loader:
        iterator = iter(loader)
        values(itertools.islice(iterator, len(passes[0])))
        before = loader.state_dict()
        assert next(iterator, None) is None
        after = loader.state_dict()
    for state, expected in ((before, [[], passes[1]]), (after, [passes[1], passes[2]])):
        with make(kind, workers, 4) as loader:
            loader.load_state_dict(state)
            assert [values(loader), values(loader)] == expected


def test_a_state_before_the_first_pass_keeps_the_order_that_would_have_come() -> None:
    loader = make("generator", 0, 4)
    state = loader.state_dict()
    expected = values(loader)
    other = DataLoader(Squares(), 4, shuffle=True, generator=torch.Generator().manual_seed(77))  # type: ignore[arg-type]
    other.load_state_dict(state)
    assert values(other) == expected


def test_no_skipped_sample_is_read() -> None:
    loader = make("shuffle", 0, 4)
    iterator = iter(loader)
    values(itertools.islice(iterator, 4))
    state = loader.state_dict()
    other = make("shuffle", 0, 4)
    other.load_state_dict(state)
    rest = values(other)
    assert other.dataset.calls == sum(len(batch) for batch in rest) == COUNT - 16
    telling = make("telling stream", 0, 4)
    iterator = iter(telling)
    values(itertools.islice(iterator, 4))
    other = make("telling stream", 0, 4)
    other.load_state_dict(telling.state_dict())
    values(other)
    assert other.dataset.read == COUNT - 16


@pytest.mark.parametrize("workers", ["process", "thread"])
def test_completion_order_loses_and_repeats_nothing_over_a_resume(workers: Any) -> None:
    kwargs: dict[str, Any] = {"num_workers": 2, "in_order": False, "workers": workers}
    with DataLoader(Squares(200), 3, shuffle=True, **kwargs) as loader:  # type: ignore[arg-type]
        got = [x for batch in itertools.islice(iter(loader), 20) for x in batch.tolist()]
        state = json.loads(json.dumps(loader.state_dict()))
    with DataLoader(Squares(200), 3, shuffle=True, **kwargs) as loader:  # type: ignore[arg-type]
        loader.load_state_dict(state)
        got += [x for batch in loader for x in batch.tolist()]
    assert sorted(got) == [i * i for i in range(200)]


def test_persistent_workers_go_on_from_a_state_too() -> None:
    with DataLoader(Squares(), 4, num_workers=2, persistent_workers=True) as loader:  # type: ignore[arg-type]
        values(loader)
        iterator = iter(loader)
        values(itertools.islice(iterator, 2))
        state = loader.state_dict()
        rest = values(iterator)
        values(loader)
        loader.load_state_dict(state)
        assert values(loader) == rest


def test_two_loaders_do_not_influence_each_other() -> None:
    expected = [values(make("generator", 0, 4)), values(make("generator", 0, 5))]
    a, b = make("generator", 0, 4), make("generator", 0, 5)
    mixed = list(itertools.zip_longest(iter(a), iter(b)))
    assert [values(x for x in side if x is not None) for side in zip(*mixed, strict=True)] == expected


def test_a_state_is_small() -> None:
    loader = DataLoader(Squares(10**6), 4, shuffle=True)  # type: ignore[arg-type]
    iterator = iter(loader)
    next(iterator)
    assert len(json.dumps(loader.state_dict())) < 10_000
    assert loader.state_dict()["generators"] == loader.state_dict()["generators"]


def test_states_that_do_not_belong_here_are_refused() -> None:
    loader = make("stream", 2, 4)
    with loader:
        next(iter(loader))
        state = loader.state_dict()
    with pytest.raises(StateError, match="num_workers=2"):
        make("stream", 3, 4).load_state_dict(state)
    with pytest.raises(StateError, match="map-style"):
        make("order", 0, 4).load_state_dict(state)
    with pytest.raises(StateError, match="version"):
        make("stream", 2, 4).load_state_dict({**state, "version": 99})
    with pytest.raises(StateError, match="not a loader state"):
        make("stream", 2, 4).load_state_dict([])
    with pytest.raises(StateError, match="batches=-1"):
        make("stream", 2, 4).load_state_dict({**state, "batches": -1})
    other = make("shuffle", 0, 4)
    other.load_state_dict(make("generator", 0, 4).state_dict())
    with pytest.raises(StateError, match="generator"):
        iter(other)
    with pytest.raises(ConfigError, match="leave it out"):
        other.state_dict(batches=3)
