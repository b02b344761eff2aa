"""Arguments that cannot work are refused as torch refuses them: at once, by the same class, in the same words.

Users and their tests match these texts.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import BatchSampler, Dataset, SequentialSampler

from forebay import DataLoader
from tests.dropin.same import TorchLoader
from tests.dropin.samples import Numbers, Split

MAP, STREAM = Numbers(6), Split(6)
BATCHES = BatchSampler(SequentialSampler(MAP), 2, False)


@pytest.mark.parametrize(
    ("data", "given"),
    [
        (MAP, {"num_workers": -1}),
        (MAP, {"timeout": -1}),
        (MAP, {"timeout": -0.5, "num_workers": 1}),
        (MAP, {"prefetch_factor": 2}),
        (MAP, {"prefetch_factor": 0}),
        (MAP, {"prefetch_factor": -1, "num_workers": 1}),
        (MAP, {"persistent_workers": True}),
        (MAP, {"sampler": [1, 2], "shuffle": True}),
        (MAP, {"batch_sampler": BATCHES, "batch_size": 2}),
        (MAP, {"batch_sampler": BATCHES, "batch_size": None}),
        (MAP, {"batch_sampler": BATCHES, "shuffle": True}),
        (MAP, {"batch_sampler": BATCHES, "sampler": [1, 2]}),
        (MAP, {"batch_sampler": BATCHES, "drop_last": True}),
        (MAP, {"batch_size": None, "drop_last": True}),
        (MAP, {"batch_size": 0}),
        (MAP, {"batch_size": -3}),
        (MAP, {"batch_size": 2.5}),
        (MAP, {"batch_size": True}),
        (MAP, {"drop_last": "no"}),
        (Numbers(0), {"shuffle": True}),
        (STREAM, {"shuffle": True}),
        (STREAM, {"sampler": SequentialSampler(MAP)}),
        (STREAM, {"batch_sampler": BATCHES}),
        (STREAM, {"batch_size": None, "drop_last": True}),
        (MAP, {"multiprocessing_context": "spawn"}),
        (MAP, {"multiprocessing_context": "thread", "num_workers": 1}),
        (MAP, {"multiprocessing_context": object(), "num_workers": 1}),
        (MAP, {"multiprocessing_context": 3, "num_workers": 1}),
        (MAP, {"colour": "red"}),
    ],
    ids=repr,
)
def test_a_combination_that_cannot_work_is_refused_as_by_torch(data: Any, given: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)) as expected:
        TorchLoader(data, **given)
    with pytest.raises(type(expected.value)) as ours:
        DataLoader(data, **given)
    assert type(ours.value) is type(expected.value)
    assert str(ours.value) == str(expected.value)


@pytest.mark.parametrize(
    "given",
    [
        {"shuffle": False, "batch_size": 1, "sampler": None, "batch_sampler": BATCHES, "drop_last": False},
        {"shuffle": False, "sampler": [1, 2]},
        {"prefetch_factor": 0, "num_workers": 1},
        {"timeout": 0.0},
        {"pin_memory_device": "cuda"},
        {"in_order": False},
        {"shuffle": 1},
        {"batch_size": None, "drop_last": False},
    ],
    ids=repr,
)
def test_what_torch_accepts_is_accepted(given: dict[str, Any]) -> None:
    TorchLoader(MAP, **given)
    DataLoader(MAP, **given)


def test_a_timeout_without_workers_is_refused_where_torch_refuses_it() -> None:
    for make in (TorchLoader, DataLoader):
        loader = make(MAP, timeout=1)
        with pytest.raises(AssertionError):
            iter(loader)


@pytest.mark.parametrize("name", ["persistent_workers", "num_workers", "prefetch_factor"])
def test_a_map_style_set_without_length_is_refused_when_its_order_is_asked_for(name: str) -> None:
    class Endless(Dataset[int]):
        def __getitem__(self, index: int) -> int:
            return index

    given: dict[str, Any] = {"num_workers": 1, name: {"num_workers": 1, "prefetch_factor": 2}.get(name, True)}
    for make in (TorchLoader, DataLoader):
        with pytest.raises(TypeError, match=r"has no len\(\)"):
            len(make(Endless(), **given))
