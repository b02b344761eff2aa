"""Shards through Python callables in worker processes: the samples that threads make, draws that repeat, clear ends."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.errors import BadSampleBudgetError, ConfigError, SampleError, StallError

COLUMNS = ["image", "label", "name", "__index__", "__valid__"]


def brighten(image: Tensor) -> Tensor:
    return image.float() + 1


def jitter(image: Tensor, rng: np.random.Generator) -> Tensor:
    return image * float(rng.random())


def draw_everywhere(image: Tensor) -> Tensor:
    return image * random.random() + np.random.rand() + torch.rand(())


def process(_: Any) -> Tensor:
    return torch.tensor(os.getpid())


def fail_at_three(label: Any) -> Any:
    if int(label) == 2:
        raise LookupError("no such label")
    return label


def dataset(path: Path, *steps: Any, **others: Any) -> ShardDataset:
    transforms = {"image": [T.RandomResizedCrop(16), *steps], **others}
    return ShardDataset(path, transforms=transforms, columns=COLUMNS)


def assert_equal(a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]]) -> None:
    assert len(a) == len(b)
    for left, right in zip(a, b, strict=True):
        assert list(left) == list(right)
        for name, value in left.items():
            assert torch.equal(value, right[name]) if isinstance(value, Tensor) else value == right[name]


@pytest.mark.parametrize("steps", [(brighten,), (jitter,), (jitter, jitter)])
@pytest.mark.parametrize("workers", [1, 3])
def test_processes_give_what_threads_give(pictures: Path, steps: tuple[Callable[..., Any], ...], workers: int) -> None:
    data = dataset(pictures, *steps)
    settings: dict[str, Any] = {"shuffle": True, "seed": 4, "drop_last": workers == 3}
    with DataLoader(data, 8, num_workers=2, workers="thread", **settings) as loader:
        expected = [list(loader) for _ in range(2)]
    with DataLoader(data, 8, num_workers=workers, **settings) as loader:
        for epoch in expected:
            assert_equal(list(loader), epoch)


def test_the_callables_run_in_as_many_other_processes(pictures: Path) -> None:
    with DataLoader(dataset(pictures, label=[process]), 4, num_workers=2) as loader:
        pids = {int(pid) for batch in loader for pid in batch["label"]}
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_without_workers_the_callables_run_here(pictures: Path) -> None:
    with DataLoader(dataset(pictures, label=[process]), 4) as loader:
        assert {int(pid) for batch in loader for pid in batch["label"]} == {os.getpid()}


@pytest.mark.parametrize("sampler", [None, list(range(60, 10, -1))])
def test_what_draws_from_the_global_generators_repeats_on_any_workers_and_after_a_resume(
    pictures: Path, sampler: Any
) -> None:
    data = dataset(pictures, T.Seeded(draw_everywhere), T.Seeded(draw_everywhere))
    order: dict[str, Any] = {"shuffle": True} if sampler is None else {"sampler": sampler}
    with DataLoader(data, 8, num_workers=1, seed=9, **order) as loader:
        whole = list(loader)
    with DataLoader(data, 8, num_workers=3, seed=9, **order) as loader:
        first = list(itertools.islice(iter(loader), 3))
        state = json.loads(json.dumps(loader.state_dict()))
    with DataLoader(data, 8, num_workers=2, seed=9, **order) as loader:
        loader.load_state_dict(state)
        assert_equal(first + list(loader), whole)
    draws = torch.cat([batch["image"].amax((1, 2, 3)) for batch in whole])
    assert len(set(draws.tolist())) == len(draws)


def test_a_sample_by_index_is_that_of_the_loader_and_leaves_the_generators_alone(pictures: Path) -> None:
    data = dataset(pictures, T.Seeded(draw_everywhere))
    with DataLoader(data, 8, num_workers=2, seed=9) as loader:
        batch = next(iter(loader))
    data.set_epoch(0, seed=9)
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    expected = torch.rand(2), np.random.rand(), random.random()
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    image = data[5]["image"]
    assert torch.equal(torch.rand(2), expected[0])
    assert (np.random.rand(), random.random()) == expected[1:]
    torch.testing.assert_close(image, batch["image"][5], atol=2, rtol=0)
    data.close()


def test_batch_transforms_and_ranks_are_as_with_threads(pictures: Path) -> None:
    data = dataset(pictures, brighten)
    for rank in range(2):
        settings: dict[str, Any] = {"rank": rank, "world_size": 2, "seed": 1, "global_batch_size": 12}
        settings["batch_transforms"] = [T.MixUp(0.4)]
        with DataLoader(data, num_workers=2, workers="thread", **settings) as loader:
            expected = list(loader)
        with DataLoader(data, num_workers=2, **settings) as loader:
            assert_equal(list(loader), expected)


def test_a_bad_sample_is_named_with_the_traceback_of_the_worker(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures, label=[fail_at_three]), 4, num_workers=2)
    iterator = iter(loader)
    with pytest.raises(SampleError, match="row 2: transform failed: LookupError: no such label") as caught:
        next(iterator)
    assert (caught.value.row, caught.value.stage) == (2, "transform")
    assert any("in fail_at_three" in note for note in caught.value.__notes__)


def test_bad_samples_are_replaced_and_counted_as_with_threads(make_pictures: Any, tmp_path: Path) -> None:
    data = dataset(make_pictures(tmp_path / "bad", broken=(3, 40)), brighten)
    with DataLoader(data, 8, num_workers=2, workers="thread", on_error="skip", seed=2) as loader:
        expected, bad = list(loader), loader.stats().bad
    with DataLoader(data, 8, num_workers=2, on_error="skip", seed=2) as loader:
        assert_equal(list(loader), expected)
        assert loader.stats().bad == bad
        assert loader.stats().bad_count == 2
    with (
        DataLoader(data, 8, num_workers=2, on_error="skip", max_bad=1, seed=2) as loader,
        pytest.raises(BadSampleBudgetError),
    ):
        list(loader)


def test_the_statistics_add_up_over_the_workers(pictures: Path, tmp_path: Path) -> None:
    transforms: Any = {"image": [T.RandomResizedCrop(16), brighten]}
    data = ShardDataset(pictures, transforms=transforms, cache=f"{tmp_path / 'cache'}:1GB")
    with DataLoader(data, 8, shuffle=True, num_workers=2) as loader:
        for _ in range(2):
            assert len(list(loader)) == 13
        stats = loader.stats()
    assert (stats.samples, stats.batches) == (194, 26)
    assert stats.stages["decode"].samples == 194
    assert stats.stages["decode"].busy_s > 0
    assert stats.read_nbytes > 100_000
    assert stats.cache["fetched"] == len(data.data.shard_rows)


class KillAt:
    """Ends its process in a way that no exception tells."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, name: str) -> str:
        if name == self.name:
            os.kill(os.getpid(), signal.SIGKILL)
        return name


def test_a_killed_worker_is_named_with_what_it_had_in_hand(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures, name=[KillAt("picture 1")]), 4, num_workers=2)
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match=r"SIGKILL.*shard 0, row 0; shard 0, row 1"):
        list(iterator)
    loader.close()


class WaitAt:
    """Never returns."""

    def __call__(self, label: Any) -> Any:
        while True:
            time.sleep(1)


def test_a_callable_that_hangs_is_told_after_the_timeout(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures, label=[WaitAt()]), 4, num_workers=2, timeout=0.5)
    with pytest.raises(StallError, match=r"batch 0 of epoch 0 did not come within timeout=0.5 s"):
        next(iter(loader))
    loader.close()


@pytest.mark.parametrize(
    ("steps", "settings", "word"),
    [
        ((T.Seeded(draw_everywhere),), {}, "T.Seeded needs worker processes"),
        ((T.Seeded(draw_everywhere),), {"num_workers": 2, "workers": "thread"}, "T.Seeded needs worker processes"),
        ((brighten,), {"num_workers": 2, "workers": "fiber"}, "workers='fiber'"),
        ((T.Seeded(draw_everywhere),), {"num_workers": 2, "decode": "dali"}, "T.Seeded needs worker processes"),
    ],
)
def test_what_does_not_go_with_processes_is_refused(
    pictures: Path, steps: Any, settings: dict[str, Any], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        DataLoader(dataset(pictures, *steps), 4, **settings)


@pytest.mark.parametrize("function", [None, T.CenterCrop(4)])
def test_seeded_takes_a_callable_that_is_not_declared(function: Any) -> None:
    with pytest.raises(ConfigError, match="give a callable"):
        T.Seeded(function)


def test_iterators_that_are_left_end_their_workers(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures, brighten), 4, num_workers=2)
    next(iter(loader))
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    assert len(list(loader)) == 25
