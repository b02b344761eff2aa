"""`on_error="skip"` for map-style sets: a bad sample's place is filled by another, the same one however it is read.

And a budget ends it, an error that is no sample's fault is raised, and what cannot work is refused.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest
import torch

from forebay import DataLoader
from forebay.errors import BadSampleBudgetError, ConfigError
from tests.dropin.same import assert_same, outcome, read
from tests.dropin.samples import Numbers, Split

BAD = frozenset({3, 40, 41, 66})


class Damaged(Numbers):
    """Some samples do not decode."""

    def __init__(self, count: int, bad: frozenset[int] = BAD, error: Exception | None = None) -> None:
        super().__init__(count)
        self.bad, self.error = bad, ValueError("does not decode") if error is None else error

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise self.error
        return super().__getitem__(index)


def order(loader: Any) -> list[int]:
    torch.manual_seed(4)
    return [int(x) for epoch in read(loader, 2) for batch in epoch for x in batch]


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_workers": 1}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}, {"batch_threads": 4}],
    ids=repr,
)
@pytest.mark.parametrize("batch_size", [3, 8])
def test_only_bad_places_differ_and_the_same_sample_fills_them_however_it_is_read(
    settings: dict[str, Any], batch_size: int
) -> None:
    whole = order(DataLoader(Numbers(80), 8, True))
    found = order(DataLoader(Damaged(80), batch_size, True, on_error="skip", **settings))
    assert len(found) == 160
    places = [i for i, (a, b) in enumerate(zip(whole, found, strict=True)) if a != b]
    assert [whole[i] for i in places if i < 80] == [index for index in whole[:80] if index in BAD]
    assert {whole[i] for i in places} == BAD
    assert not BAD & set(found)
    assert found == order(DataLoader(Damaged(80), 8, True, on_error="skip"))


def test_stats_name_every_bad_sample_with_its_reason() -> None:
    loader = DataLoader(Damaged(80), 8, num_workers=1, on_error="skip")
    list(loader)
    stats = loader.stats()
    assert stats.bad_count >= len(BAD)
    assert {bad.row for bad in stats.bad} == set(BAD)
    assert all("ValueError: does not decode" in bad.reason for bad in stats.bad)


@pytest.mark.parametrize("workers", [0, 1])
def test_more_bad_samples_than_the_budget_end_it(workers: int) -> None:
    def use(_: Any) -> Any:
        loader = DataLoader(Damaged(80), 8, num_workers=workers, on_error="skip", max_bad=2)
        try:
            return list(loader)
        finally:
            loader.close()

    error = outcome(use, DataLoader).error
    assert isinstance(error, BadSampleBudgetError)
    assert error.bad == 3
    assert "max_bad=2" in str(error)
    assert "41" in str(error)


def test_a_sample_with_nothing_good_to_replace_it_raises_its_own_error() -> None:
    def use(_: Any) -> Any:
        return list(DataLoader(Damaged(6, frozenset(range(6))), 2, num_workers=1, on_error="skip", max_bad=1000))

    error = outcome(use, DataLoader).error
    assert isinstance(error, ValueError)
    assert "does not decode" in str(error)


@pytest.mark.parametrize("error", [MemoryError("none left"), OSError(errno.EIO, "the disk")])
def test_errors_that_are_no_sample_s_fault_are_raised(error: Exception) -> None:
    def use(_: Any) -> Any:
        return list(DataLoader(Damaged(80, error=error), 8, on_error="skip"))

    assert type(outcome(use, DataLoader).error) is type(error)


def test_a_resumed_pass_fills_places_with_the_same_samples() -> None:
    def loader() -> DataLoader:
        generator = torch.Generator().manual_seed(2)
        return DataLoader(Damaged(80), 8, True, on_error="skip", generator=generator)

    whole = list(loader())
    started = loader()
    iterator = iter(started)
    seen = [next(iterator) for _ in range(3)]
    resumed = loader()
    resumed.load_state_dict(started.state_dict())
    assert_same(whole, seen + list(resumed))


def test_without_bad_samples_batches_and_draws_are_torch_s() -> None:
    def use(skip: bool) -> Any:
        torch.manual_seed(3)
        more: dict[str, Any] = {"on_error": "skip"} if skip else {}
        return read(DataLoader(Numbers(20), 3, True, num_workers=1, **more), 2), torch.rand(())

    assert_same(use(True), use(False))


def test_settings_that_cannot_work_are_refused() -> None:
    for data, given in (
        (Split(4), {"on_error": "skip"}),
        (Numbers(4), {"on_error": "skip", "batch_sampler": [[1]]}),
        (Numbers(4), {"on_error": "ignore"}),
        (Numbers(4), {"max_bad": 3}),
        (Numbers(4), {"on_error": "skip", "max_bad": -1}),
    ):
        with pytest.raises(ConfigError, match=r"on_error|max_bad"):
            DataLoader(data, **given)
