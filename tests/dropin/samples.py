"""Data sets, samplers and functions that worker processes import: whatever is started by spawn must live in a module.

Each is as small as its purpose allows.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

__all__ = [
    "Augmented",
    "Frozen",
    "Kinds",
    "Listed",
    "Numbers",
    "Pair",
    "Row",
    "Split",
    "Worker",
    "as_is",
    "collate_rows",
]


class Numbers(Dataset[Any]):
    """Sample i is a tensor of `size` times i."""

    def __init__(self, count: int, size: int = 1) -> None:
        self.count, self.size = count, size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.size,), index)


class Augmented(Numbers):
    """Sample i with draws of all three global generators, as an augmentation would draw."""

    def __getitem__(self, index: int) -> Any:
        return {
            "index": index,
            "torch": torch.rand(self.size),
            "numpy": np.random.rand(self.size),
            "python": random.random(),
        }


class Split(IterableDataset[Any]):
    """A stream of which each worker gives every n-th sample, its own augmentation beside it."""

    def __init__(self, count: int, length: int | None = None) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("this stream does not know its length")
        return self.length

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.count, step):
            yield index, torch.rand(2), random.random()


class Listed(Dataset[Any]):
    """Samples taken from a list, one by one or, where `many` says so, a batch at once."""

    def __init__(self, samples: Sequence[Any], many: bool = False) -> None:
        self.samples = samples
        if many:
            self.__getitems__ = self.take

    def take(self, indices: Sequence[int]) -> list[Any]:
        return [(self.samples[index], len(indices)) for index in indices]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Pair(NamedTuple):
    """A named tuple, which keeps its type in a batch."""

    x: Any
    y: Any


class Frozen(Mapping[str, Any]):
    """A mapping that cannot be changed, made from a dict."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass
class Row:
    """What only a collate function of the user's can put together."""

    x: Tensor
    name: str


class Kinds(Dataset[Any]):
    """Samples of every type that default collation knows, by name."""

    def __init__(self, kind: str, count: int = 7, size: int = 3) -> None:
        self.kind, self.count, self.size = kind, count, size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        x = torch.arange(self.size) + i
        match self.kind:
            case "bool":
                return i % 2 == 0
            case "int":
                return i
            case "float":
                return i / 3
            case "str":
                return f"sample {i}"
            case "bytes":
                return bytes([i, i + 1])
            case "tensor":
                return x.to(torch.float32) / 7
            case "bfloat16":
                return x.to(torch.bfloat16)
            case "complex":
                return torch.complex(x.double(), -x.double())
            case "scalar tensor":
                return torch.tensor(i)
            case "empty tensor":
                return torch.empty(0, self.size)
            case "transposed":
                return (torch.arange(2 * self.size).reshape(2, self.size) + i).T
            case "row turned":
                return (torch.arange(self.size)[None] + i).T
            case "expanded":
                return torch.tensor(i).expand(self.size, 4)
            case "channels last":
                return torch.rand(3, 4, self.size).permute(2, 0, 1)
            case "array":
                return x.numpy().astype(np.int16)
            case "big endian":
                return x.numpy().astype(">i4")
            case "numpy scalar":
                return np.float32(i / 3)
            case "numpy bool":
                return np.bool_(i % 2)
            case "0-d array":
                return np.array(i)
            case "fortran array":
                return np.asfortranarray(np.arange(2 * self.size).reshape(2, self.size) + i)
            case "tuple":
                return x, i, f"{i}"
            case "list":
                return [x, float(i)]
            case "named tuple":
                return Pair(x, {"name": f"{i}", "value": i})
            case "ordered dict":
                return collections.OrderedDict(b=i, a=x)
            case "default dict":
                return collections.defaultdict(int, a=i, b=x)
            case "frozen mapping":
                return Frozen({"x": x, "y": i})
            case "nested":
                return {"a": [(x, i), Pair(x * 2, [f"{i}"])], "b": {"c": {"d": np.float64(i)}}}
            case "range":
                return range(i, i + 3)
            case "empty dict":
                return {}
            case _:
                raise AssertionError(self.kind)


def as_is(batch: Any) -> Any:
    """Collate nothing."""
    return batch


def collate_rows(batch: Sequence[Row]) -> Row:
    """Put rows together, as a user does whose samples are dataclasses."""
    return Row(default_collate([row.x for row in batch]), " ".join(row.name for row in batch))


class Worker(Dataset[Any]):
    """Samples that tell which worker made them, and what that worker knows."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if info is None:
            return index, None
        return (
            index,
            (info.id, info.num_workers, info.seed, type(info.dataset), info.dataset is self),
            (torch.initial_seed(), torch.get_num_threads(), random.getstate()[1][:3]),
        )
