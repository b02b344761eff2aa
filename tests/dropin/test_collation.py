"""Batches by the type of the samples: default collation's result, unbatched conversion, and functions of the user's.

The way from a worker must change none of it: types, dtypes, memory layout, and what a user can do with a tensor.
"""

from __future__ import annotations

import collections
import gc
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from forebay import DataLoader
from tests.dropin.same import LOADERS, assert_same, assert_same_outcome, outcome, read, seed_all
from tests.dropin.samples import Kinds, Listed, Pair, Row, as_is, collate_rows

Make = Callable[..., Any]

KINDS = [
    "bool", "int", "float", "str", "bytes", "tensor", "bfloat16", "complex", "scalar tensor", "empty tensor",
    "transposed", "expanded", "channels last", "array", "big endian", "numpy scalar", "numpy bool",
    "0-d array", "fortran array", "tuple", "list", "named tuple", "ordered dict", "default dict",
    "frozen mapping", "nested", "range", "empty dict",
]  # fmt: skip
LARGE = {
    "tensor", "bfloat16", "transposed", "expanded", "channels last", "array", "fortran array", "tuple", "nested",
    "frozen mapping",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "size"), [*((kind, 3) for kind in KINDS), *((kind, 20_000) for kind in KINDS if kind in LARGE)]
)
def test_every_kind_of_sample_makes_torch_s_batch(kind: str, size: int) -> None:
    """Three ways at a time: batches in this process, batches from workers, and samples without a batch."""

    def use(make: Make, batch_size: int | None, workers: int) -> Any:
        return read(make(Kinds(kind, 5, size), batch_size, num_workers=workers))

    for batch_size, workers in ((2, 0), (2, 1), (None, 1)):
        assert_same_outcome(lambda make, b=batch_size, w=workers: use(make, b, w))  # type: ignore[misc]


@pytest.mark.parametrize(
    "kind", ["tensor", "tuple", "frozen mapping", "named tuple", "transposed", "row turned", "expanded"]
)
def test_uncollated_lists_of_samples_arrive_as_they_were(kind: str) -> None:
    def use(make: Make) -> Any:
        return read(make(Kinds(kind, 5, 5000), 2, num_workers=1, collate_fn=as_is))

    assert_same_outcome(use)


def test_a_tuple_of_columns_is_a_list_and_named_ones_keep_their_type() -> None:
    batch = next(iter(DataLoader(Kinds("tuple"), 2, num_workers=1)))
    assert type(batch) is list
    assert type(next(iter(DataLoader(Kinds("named tuple"), 2, num_workers=1)))) is Pair
    assert type(next(iter(DataLoader(Kinds("default dict"), 2, num_workers=1)))) is collections.defaultdict


@pytest.mark.parametrize("workers", [0, 1])
def test_dataclasses_go_through_a_function_of_the_user_s(workers: int) -> None:
    rows = [Row(torch.rand(3), f"row {i}") for i in range(5)]

    def use(make: Make) -> Any:
        return read(make(Listed(rows), 2, num_workers=workers, collate_fn=collate_rows))

    (epoch,) = assert_same_outcome(use)
    assert epoch[2].name == "row 4"


SAMPLES: dict[str, list[Any]] = {
    "of unequal shape": [torch.zeros(3), torch.zeros(4)],
    "of unequal shape, arrays": [np.zeros((3, 2)), np.zeros((3, 4))],
    "of unequal length": [[1, 2], [1]],
    "of unequal keys": [{"a": 1}, {"b": 1}],
    "an object": [object(), object()],
    "None": [None, None],
    "a set": [{1}, {2}],
    "text arrays": [np.array(["a"]), np.array(["b"])],
    "sparse": [torch.eye(2).to_sparse(), torch.eye(2).to_sparse()],
    "mixed dtypes": [torch.zeros(2), torch.zeros(2, dtype=torch.int64)],
    "mixed numbers": [1, 2.5],
    "with gradient": [torch.zeros(2, requires_grad=True), torch.zeros(2)],
    "parameters": [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(2))],
    "quite empty": [torch.empty(0), torch.empty(0)],
    "zero rows": [np.empty((0, 3)), np.empty((0, 3))],
    "masked": [np.ma.masked_array([1, 2], [True, False])] * 2,
    "unsigned 16": [np.array([65535], np.uint16)] * 2,
    "dates": [np.array(["2020-01-01"], "datetime64[D]")] * 2,
    "big numbers": [2**62, 2**62 + 1],
    "too big numbers": [2**63, 2**64],
    "memory views": [memoryview(b"ab"), memoryview(b"cd")],
    "surrogates": ["\ud800", "\udfff"],
    "zeros in text": ["a\0b", "\0"],
}


@pytest.mark.parametrize("name", sorted(SAMPLES))
@pytest.mark.parametrize("workers", [0, 1])
def test_awkward_samples_do_as_with_torch(name: str, workers: int) -> None:
    """The same batch, or an error of the same type that says the same."""

    def use(make: Make) -> Any:
        return read(make(Listed(SAMPLES[name]), 2, num_workers=workers))

    expected, ours = (outcome(use, make) for make in LOADERS)
    assert type(expected.error) is type(ours.error), f"{expected.error!r} and {ours.error!r}"
    assert_same(expected.value, ours.value)
    if expected.error is not None:
        said = str(expected.error).rstrip().rsplit("\n", 1)[-1]
        assert said in str(ours.error)


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_unequal_shape_say_which_shapes(workers: int) -> None:
    def use(make: Make) -> Any:
        return read(make(Listed([torch.zeros(3), torch.zeros(3), torch.zeros(4)]), 3, num_workers=workers))

    error = outcome(use, DataLoader).error
    assert isinstance(error, RuntimeError)
    assert "equal size" in str(error)
    assert "[3]" in str(error)
    assert "[4]" in str(error)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "samples", [[torch.eye(2).to_sparse()] * 2, [np.array(["a", "b"])] * 2, [None, {1, 2}], [np.array([None, "x"])] * 2]
)
def test_what_default_collation_refuses_goes_through_uncollated(samples: list[Any], workers: int) -> None:
    def use(make: Make) -> Any:
        return read(make(Listed(samples), 2, num_workers=workers, collate_fn=as_is))

    outcome(use, DataLoader)  # torch warns once a process of sparse tensors
    assert_same_outcome(use)


class Custom:
    """A type of the user's that default collation is taught."""

    def __init__(self, x: float) -> None:
        self.x = x


@pytest.mark.parametrize("workers", [0, 1])
def test_a_type_that_the_user_registers_is_collated_by_his_function(workers: int, monkeypatch: Any) -> None:
    monkeypatch.setitem(default_collate_fn_map, Custom, lambda batch, **_: torch.tensor([c.x for c in batch]))

    def use(make: Make) -> Any:
        return read(make(Listed([Custom(1.5), Custom(2.5)]), 2, num_workers=workers))

    assert_same_outcome(use)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_registered_function_for_tensors_is_used_for_tensors(workers: int, monkeypatch: Any) -> None:
    monkeypatch.setitem(default_collate_fn_map, Tensor, lambda batch, **_: sum(batch))

    def use(make: Make) -> Any:
        return read(make(Kinds("tuple", 4, 3000), 2, num_workers=workers))

    (epoch,) = assert_same_outcome(use)
    assert epoch[0][0].tolist()[:2] == [1, 3]


def shared_twice(batch: list[Tensor]) -> Any:
    whole = default_collate(batch)
    return {"whole": whole, "again": whole, "part": whole[1:], "column": whole[:, :2], "array": whole.numpy()}


def test_views_of_one_tensor_in_one_batch_stay_views_of_one_tensor() -> None:
    """What the user's collate function shares within a batch is shared after the journey too, as with torch."""
    for make in LOADERS:
        batch = next(iter(make(Kinds("tensor", 6, 5000), 3, num_workers=1, collate_fn=shared_twice)))
        batch["whole"].zero_()
        assert batch["again"].abs().sum() == 0
        assert batch["part"].abs().sum() == 0
        assert batch["column"].abs().sum() == 0


@pytest.mark.parametrize("size", [3, 20_000])
def test_tensors_belong_to_the_user(size: int) -> None:
    """Written, resized, put into a gradient's graph, pickled, shared, and used after the loader has gone."""
    loader = DataLoader(Kinds("tensor", 6, size), 3, num_workers=1)
    iterator = iter(loader)
    first = next(iterator)
    second = next(iterator)
    del loader, iterator
    gc.collect()
    expected = first.clone()
    first += 1
    assert torch.equal(first, expected + 1)
    again = pickle.loads(pickle.dumps(first))  # noqa: S301 - our own bytes
    assert torch.equal(again, first)
    second.requires_grad_()
    (second * 2).sum().backward()
    assert second.grad is not None
    assert torch.equal(second.grad, torch.full_like(second, 2))
    array = first.numpy()
    array[0] = 9
    assert (first[0] == 9).all()
    assert first.share_memory_().is_shared()
    resized = first.clone()
    resized.resize_(4, size)
    thread = threading.Thread(target=first.mul_, args=(0,))
    thread.start()
    thread.join()
    assert first.sum() == 0


def test_strings_and_bytes_of_a_batch_are_as_they_were_in_every_length() -> None:
    samples = ["", "ä" * 1000, "x" * 100_000, "\N{SNOWMAN}"]

    def use(make: Make) -> Any:
        text = read(make(Listed(samples), 4, num_workers=1))
        return text, read(make(Listed([s.encode() for s in samples]), 4, num_workers=1))

    assert_same_outcome(use)


def test_batches_of_changing_shape_and_size_come_through() -> None:
    sizes = [1, 100_000, 0, 7, 1_000_000, 3, 50_000]
    seed_all()
    samples = [torch.rand(size) for size in sizes]

    def use(make: Make) -> Any:
        return read(make(Listed(samples), 1, num_workers=2), 2)

    assert_same_outcome(use)
