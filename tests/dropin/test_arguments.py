"""The constructor: order and defaults of torch's arguments, what they become, and what may be changed later.

What the loader then gives is tested elsewhere.
"""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, default_collate
from torch.utils.data._utils.collate import default_convert

from forebay import DataLoader
from tests.dropin.same import LOADERS, TorchLoader, assert_same, read
from tests.dropin.samples import Numbers, Split, as_is

OPTIONS = {
    "batch_size": 3,
    "shuffle": False,
    "num_workers": 1,
    "collate_fn": as_is,
    "pin_memory": False,
    "drop_last": True,
    "timeout": 20.0,
    "worker_init_fn": as_is,
    "multiprocessing_context": "spawn",
    "generator": torch.Generator(),
    "prefetch_factor": 3,
    "persistent_workers": True,
    "pin_memory_device": "cuda",
    "in_order": False,
}


def test_every_argument_of_torch_s_is_there_in_its_place_with_its_default() -> None:
    torch_s = inspect.signature(TorchLoader).parameters
    ours = inspect.signature(DataLoader).parameters
    positional = [name for name, p in torch_s.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [name for name, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD] == positional
    for name, parameter in torch_s.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name


def test_what_is_ours_alone_is_optional_and_by_name() -> None:
    ours = inspect.signature(DataLoader).parameters
    extra = [p for name, p in ours.items() if name not in inspect.signature(TorchLoader).parameters]
    assert extra
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in extra)


def test_every_argument_is_an_attribute_of_its_name() -> None:
    """Lightning makes a loader again from the attributes that have the names of the arguments."""
    names = set(inspect.signature(DataLoader).parameters) - {"shuffle"}
    loader = DataLoader(Numbers(9), **OPTIONS)  # type: ignore[arg-type]
    assert names - {"batch_sampler"} <= set(dir(loader))
    for name, value in OPTIONS.items():
        if name not in ("shuffle", "multiprocessing_context"):
            assert getattr(loader, name) == value, name
    assert loader.multiprocessing_context.get_start_method() == "spawn"


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_attributes_after_one_argument_are_torch_s(option: str) -> None:
    given: dict[str, Any] = {option: OPTIONS[option]}
    if option in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "worker_init_fn", "in_order"):
        given["num_workers"] = 1
    torch_s, ours = (loader(Numbers(9), **given) for loader in LOADERS)
    for name in vars(torch_s):
        a, b = getattr(torch_s, name), getattr(ours, name)
        if name == "dataset":
            assert type(a) is type(b)
        elif isinstance(a, (SequentialSampler, BatchSampler)):
            assert type(a) is type(b)
            assert list(a) == list(b)
        else:
            assert a == b, name


@pytest.mark.parametrize(
    ("given", "sampler", "batch_sampler"),
    [
        ({}, SequentialSampler, BatchSampler),
        ({"shuffle": True}, RandomSampler, BatchSampler),
        ({"batch_size": None}, SequentialSampler, type(None)),
        ({"batch_size": None, "shuffle": True}, RandomSampler, type(None)),
    ],
)
def test_default_samplers_are_torch_s_own(given: dict[str, Any], sampler: type, batch_sampler: type) -> None:
    loader = DataLoader(Numbers(9), **given)
    assert type(loader.sampler) is sampler
    assert type(loader.batch_sampler) is batch_sampler
    assert loader._index_sampler is (loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
    assert loader._auto_collation is (loader.batch_sampler is not None)


def test_default_collation_is_torch_s_own_function() -> None:
    assert DataLoader(Numbers(9)).collate_fn is default_collate
    assert DataLoader(Numbers(9), None).collate_fn is default_convert


def test_a_generator_is_passed_to_the_shuffle() -> None:
    generator = torch.Generator()
    loader = DataLoader(Numbers(9), shuffle=True, generator=generator)
    assert isinstance(loader.sampler, RandomSampler)
    assert loader.sampler.generator is generator


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_six_attributes_are_frozen(name: str) -> None:
    for make in LOADERS:
        loader = make(Numbers(9))
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
            setattr(loader, name, getattr(loader, name))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("worker_init_fn", as_is),
        ("collate_fn", as_is),
        ("num_workers", 1),
        ("prefetch_factor", 4),
        ("timeout", 9),
        ("pin_memory", False),
        ("generator", None),
        ("in_order", False),
        ("multiprocessing_context", "fork"),
        ("label", "the user's"),
    ],
)
def test_the_others_may_be_set_before_a_pass(name: str, value: Any) -> None:
    """Fabric sets `worker_init_fn`, accelerate `multiprocessing_context`."""
    got = []
    for make in LOADERS:
        loader = make(Numbers(5), 2, num_workers=1)
        setattr(loader, name, value)
        got.append(read(loader))
    assert_same(got[0], got[1])


def test_a_context_given_by_name_becomes_a_context() -> None:
    for given in ("spawn", multiprocessing.get_context("spawn")):
        context = DataLoader(Numbers(3), num_workers=1, multiprocessing_context=given).multiprocessing_context
        assert context.get_start_method() == "spawn"
    assert DataLoader(Numbers(3), num_workers=1).multiprocessing_context is None


@pytest.mark.parametrize("duplicate", [copy.copy, lambda loader: pickle.loads(pickle.dumps(loader))])  # noqa: S301
def test_a_loader_that_has_not_begun_can_be_copied_and_pickled(duplicate: Callable[[Any], Any]) -> None:
    loader = DataLoader(Numbers(5), 2, num_workers=1, drop_last=True)
    other = duplicate(loader)
    assert (other.batch_size, other.num_workers, other.drop_last) == (2, 1, True)
    assert_same(read(loader), read(other))
    with pytest.raises(ValueError, match="should not be set"):
        other.batch_size = 3


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_is_not_pickled(workers: int) -> None:
    iterator = iter(DataLoader(Numbers(5), num_workers=workers))
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        pickle.dumps(iterator)
    list(iterator)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_is_its_own_iterator_has_a_length_and_stays_at_its_end(workers: int) -> None:
    iterator = iter(DataLoader(Numbers(5), 2, num_workers=workers))
    assert iter(iterator) is iterator
    assert len(iterator) == 3
    assert len(list(iterator)) == 3
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


@pytest.mark.parametrize("workers", [0, 1])
def test_several_iterators_live_side_by_side(workers: int) -> None:
    loader = DataLoader(Numbers(5), 2, num_workers=workers)
    pairs = list(zip(loader, loader, strict=True))
    assert len(pairs) == 3
    for a, b in pairs:
        assert torch.equal(a, b)


def test_persistent_workers_have_one_iterator_and_setting_it_to_none_ends_them() -> None:
    """Lightning lets go of workers by `loader._iterator = None`."""
    loader = DataLoader(Numbers(5), 2, num_workers=1, persistent_workers=True)
    assert loader._iterator is None
    first = iter(loader)
    assert len(list(first)) == 3
    assert iter(loader) is first is loader._iterator
    pids = [child.pid for child in multiprocessing.active_children()]
    assert len(pids) == 1
    del first
    loader._iterator = None
    assert not multiprocessing.active_children()
    assert len(list(loader)) == 3
    loader._iterator = None


def test_a_subclass_may_override_what_torch_s_subclasses_do() -> None:
    class Counting(DataLoader):
        begun = 0

        def _get_iterator(self) -> Any:
            self.begun += 1
            return super()._get_iterator()

    loader = Counting(Numbers(5), num_workers=1)
    assert isinstance(loader, torch.utils.data.DataLoader)
    read(loader, 2)
    assert loader.begun == 2


def test_private_names_that_libraries_read_are_there() -> None:
    for data, kind in ((Numbers(3), 0), (Split(3), 1)):
        loader = DataLoader(data)
        assert loader._dataset_kind == kind
        assert loader._IterableDataset_len_called is None
        assert callable(loader.check_worker_number_rationality)


def test_annotations_may_name_what_batches_are() -> None:
    """`DataLoader[Tensor]` is a type to annotate with, and a base to derive from, as torch's is."""

    class Mine(DataLoader[torch.Tensor]):
        pass

    loader: DataLoader[torch.Tensor] = Mine(Numbers(4), 2)
    assert [int(batch.sum()) for batch in loader] == [1, 5]
    assert [int(batch.sum()) for batch in DataLoader[torch.Tensor](Numbers(4), 2)] == [1, 5]
