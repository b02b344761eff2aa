"""Random data sets and arguments: our loader gives exactly torch's batches, and leaves the generators as torch does.

Values, dtypes, types, structure, memory layout, number of batches, and what workers drew for augmentation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from forebay import DataLoader
from tests.dropin.same import TorchLoader, assert_same, assert_same_outcome, read, seed_all
from tests.dropin.samples import Pair, as_is

Make = Callable[..., Any]

DTYPES = ["float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"]

shapes = st.one_of(
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.sampled_from([(5000,), (3, 40, 50), (70_000,)]),
)
leaves: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.sampled_from(["tensor", "array", "permuted"]), shapes, st.sampled_from(DTYPES)),
    st.tuples(
        st.sampled_from(["torch draw", "numpy draw", "python draw", "int", "str", "bytes", "scalar", "none at all"])
    ),
)
structures = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.tuples(inner, inner).map(lambda pair: ("pair", pair)),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
        st.tuples(inner, inner, inner).map(lambda three: ("tuple", three)),
    ),
    max_leaves=5,
)


def make_sample(structure: Any, i: int) -> Any:
    """A sample of the given structure, whose values depend on `i` and on the global generators."""
    match structure:
        case dict():
            return {key: make_sample(part, i) for key, part in structure.items()}
        case list():
            return [make_sample(part, i) for part in structure]
        case ("pair", (x, y)):
            return Pair(make_sample(x, i), make_sample(y, i))
        case ("tuple", parts):
            return tuple(make_sample(part, i) for part in parts)
        case (("tensor" | "array" | "permuted") as kind, shape, dtype):
            array = (np.arange(int(np.prod(shape))).reshape(shape) + i).astype(dtype)
            return array if kind == "array" else torch.from_numpy(array.T if kind == "permuted" else array)
        case ("torch draw",):
            return torch.rand(2)
        case ("numpy draw",):
            return np.random.rand(3)
        case ("python draw",):
            return random.random()
        case ("int",):
            return i
        case ("scalar",):
            return np.float32(i / 7)
        case ("bytes",):
            return b"\0" * i
        case _:
            return f"sample {i}"


class Made(Dataset[Any]):
    """Samples of a structure."""

    def __init__(self, count: int, structure: Any) -> None:
        self.count, self.structure = count, structure

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        return make_sample(self.structure, i)


class Batches(Made):
    """Samples that are fetched a batch at a time."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in indices]


class Stream(IterableDataset[Any]):
    """The same samples one after the other, each worker its share, shares of unequal size."""

    def __init__(self, count: int, structure: Any) -> None:
        self.count, self.structure = count, structure

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        part = range(self.count) if info is None else range(info.id * self.count // (info.num_workers + 1), self.count)
        return (make_sample(self.structure, i) for i in part)


@st.composite
def arguments(draw: st.DrawFn) -> tuple[Any, dict[str, Any], int, int]:
    """A data set, arguments, a number of epochs, and where the last one is left."""
    count = draw(st.integers(0, 17))
    kind = draw(st.sampled_from([Made, Made, Batches, Stream]))
    data = kind(count, draw(structures))
    order = (
        "given" if kind is Stream else draw(st.sampled_from(["given", "shuffle", "sampler", "batch_sampler", "own"]))
    )
    given: dict[str, Any] = {}
    if order == "batch_sampler":
        size = draw(st.integers(1, 6))
        given["batch_sampler"] = lambda: BatchSampler(RandomSampler(range(count)) if count else [], size, False)
    else:
        given["batch_size"] = draw(st.one_of(st.none(), st.integers(1, 7)))
        given["drop_last"] = given["batch_size"] is not None and draw(st.booleans())
    if order == "shuffle":
        given["shuffle"] = count > 0
    elif order == "sampler":
        given["sampler"] = lambda: WeightedRandomSampler([1.0] * count, 9) if count else []
    elif order == "own":
        own = draw(st.lists(st.integers(0, count - 1), max_size=12)) if count else []
        given["sampler"] = lambda: own
    if draw(st.booleans()):
        given["generator"] = lambda: torch.Generator().manual_seed(11)
    given["num_workers"] = draw(st.integers(0, 2))
    if given["num_workers"]:
        given["persistent_workers"] = draw(st.booleans())
        given["prefetch_factor"] = draw(st.sampled_from([None, 1, 3]))
    if draw(st.integers(0, 3)) == 0:
        given["collate_fn"] = as_is
    return data, given, draw(st.integers(1, 2)), draw(st.integers(0, 4))


@given(case=arguments(), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=50)
def test_random_data_sets_and_arguments_give_torch_s_batches(case: Any, seed: int) -> None:
    data, given, epochs, stop = case

    def use(make: Make) -> Any:
        made = {
            name: value() if name in ("sampler", "batch_sampler", "generator") else value
            for name, value in given.items()
        }
        loader = make(data, **made)
        batches = read(loader, epochs)
        left = [batch for batch, _ in zip(loader, range(stop), strict=False)]
        loader._iterator = None
        return batches, left

    assert_same_outcome(use, seed)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_import_everything_anew_give_torch_s_batches(method: str) -> None:
    structure = {"x": ("tensor", (5000,), "float32"), "y": [("numpy draw",), ("pair", (("python draw",), ("str",)))]}
    given: dict[str, Any] = {"num_workers": 1, "persistent_workers": True, "shuffle": True, "batch_size": 3}
    seed_all()
    forked = TorchLoader(Made(8, structure), **given)
    expected = read(forked, 2)
    seed_all()
    ours = DataLoader(Made(8, structure), multiprocessing_context=method, **given)
    assert_same(expected, read(ours, 2))
    forked._iterator = ours._iterator = None
