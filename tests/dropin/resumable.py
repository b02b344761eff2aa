"""Loaders that are stopped and resumed: streams and a sampler that know their place, and one that does not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, Sampler, get_worker_info

from forebay import DataLoader
from tests.dropin.samples import Numbers

__all__ = ["COUNT", "KINDS", "Plain", "StatefulSampler", "as_json", "make", "stop_after"]

COUNT = 71


class Counted(IterableDataset[Any]):
    """A stream that knows its place itself: `state_dict` of the data set, `__iter__` goes on from there."""

    def __init__(self, count: int) -> None:
        self.count, self.next = count, 0
        self.resumed = False

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        if not self.resumed:
            self.next = first
        self.resumed = False
        while self.next < self.count:
            self.next += step
            yield torch.full((2,), self.next - step)

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.resumed = state["next"], True


class Places:
    """An iterator that knows its place."""

    def __init__(self, numbers: range) -> None:
        self.numbers, self.place = numbers, 0

    def __iter__(self) -> Places:
        return self

    def __next__(self) -> Any:
        if self.place == len(self.numbers):
            raise StopIteration
        self.place += 1
        return torch.full((2,), self.numbers[self.place - 1])

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Placed(IterableDataset[Any]):
    """A stream whose iterator knows its place."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        info = get_worker_info()
        return Places(range(self.count) if info is None else range(info.id, self.count, info.num_workers))


class Plain(IterableDataset[Any]):
    """A stream that knows nothing."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        info = get_worker_info()
        part = range(self.count) if info is None else range(info.id, self.count, info.num_workers)
        return (torch.full((2,), number) for number in part)


class StatefulSampler(Sampler[int]):
    """A sampler that knows its place, and must be asked for it: its order cannot be drawn a second time."""

    def __init__(self, count: int) -> None:
        self.count, self.place, self.drawn = count, 0, 0

    def __iter__(self) -> Iterator[int]:
        while self.place < self.count:
            self.place += 1
            self.drawn += 1
            yield self.count - self.place
        self.place = 0

    def __len__(self) -> int:
        return self.count

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


KINDS = {"map": Numbers, "counted stream": Counted, "placed stream": Placed, "plain stream": Plain}


def make(kind: str, workers: int = 0, batch_size: int | None = 7, seed: int = 3, **more: Any) -> DataLoader:
    """A loader whose order, when it is map-style, is shuffled by a generator of its own."""
    if kind == "map":
        more |= {"shuffle": True, "generator": torch.Generator().manual_seed(seed)}
    return DataLoader(KINDS[kind](COUNT), batch_size, num_workers=workers, **more)


def as_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def stop_after(loader: DataLoader, batches: int) -> tuple[list[Any], Any]:
    """Some batches, and the state behind them by way of JSON."""
    iterator = iter(loader)
    seen = list(itertools.islice(iterator, batches))
    state = as_json(loader.state_dict())
    loader.close()
    return seen, state
