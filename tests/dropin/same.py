"""Comparing two loaders: what they give, of which types, with which warnings and errors, and what they draw on the way.

Nothing here knows how either of them works.
"""

from __future__ import annotations

import random
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch import Tensor

from forebay import DataLoader

__all__ = [
    "LOADERS",
    "Outcome",
    "TorchLoader",
    "assert_same",
    "assert_same_outcome",
    "forget",
    "outcome",
    "read",
    "seed_all",
]

TorchLoader = torch.utils.data.DataLoader

LOADERS: Sequence[Callable[..., Any]] = (TorchLoader, DataLoader)
"""The one to equal, and ours."""


def assert_same(a: Any, b: Any, where: str = "batch") -> None:
    """Fail unless both are equal in type, structure, dtype, memory layout and every value."""
    assert type(a) is type(b), f"{where}: {type(a)} and {type(b)}"
    if isinstance(a, Tensor):
        assert (a.dtype, a.shape, a.layout) == (b.dtype, b.shape, b.layout), where
        if a.layout is torch.strided:
            assert a.stride() == b.stride(), where
        assert a.requires_grad == b.requires_grad, where
        a, b = (t.detach().coalesce().to_dense() if t.is_sparse else t.detach() for t in (a, b))
        assert torch.equal(a.nan_to_num(7.5), b.nan_to_num(7.5)), where
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape, a.flags.writeable) == (b.dtype, b.shape, b.flags.writeable), where
        assert a.flags.f_contiguous == b.flags.f_contiguous or not a.flags.forc, where
        np.testing.assert_array_equal(a, b, where)
    elif isinstance(a, Mapping):
        assert list(a) == list(b), where
        for key in a:
            assert_same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same(left, right, f"{where}[{i}]")
    elif is_dataclass(a):
        for field in dataclass_fields(a):
            assert_same(getattr(a, field.name), getattr(b, field.name), f"{where}.{field.name}")
    else:
        assert a == b or str(a) == str(b) == "nan", f"{where}: {a!r} and {b!r}"


def seed_all(seed: int = 5) -> None:
    """Put the three global generators where `seed` says."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def forget(error: BaseException) -> BaseException:
    """Let go of what an error's frames hold: else the iterator and its workers live on until they are collected."""
    for each in (error, error.__cause__, error.__context__):
        if each is not None:
            traceback.clear_frames(each.__traceback__)
            each.__traceback__ = None
    error.__cause__ = error.__context__ = None
    return error


@dataclass
class Outcome:
    """What came of using a loader."""

    value: Any
    error: BaseException | None
    warned: list[tuple[type[Warning], str]]
    draws: tuple[float, float, float]
    """What random, numpy and torch would draw next."""


def outcome(use: Callable[[Callable[..., Any]], Any], loader: Callable[..., Any], seed: int = 5) -> Outcome:
    """Use a loader class under seeded generators, with every warning recorded."""
    seed_all(seed)
    value, error = None, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = use(loader)
        except Exception as raised:  # noqa: BLE001 - compared by the caller
            error = forget(raised)
    warned = [(w.category, str(w.message)) for w in caught]
    draws = (random.random(), float(np.random.rand()), float(torch.rand(())))
    return Outcome(value, error, warned, draws)


def assert_same_outcome(use: Callable[[Callable[..., Any]], Any], seed: int = 5) -> Any:
    """Use both loader classes and fail unless values, errors, warnings and the generators' next draws are equal.

    Returns:
        What the use of ours gave.
    """
    expected, ours = (outcome(use, loader, seed) for loader in LOADERS)
    if expected.error is None and ours.error is not None:
        raise ours.error
    assert type(expected.error) is type(ours.error), f"{expected.error!r} and {ours.error!r}"
    assert expected.warned == ours.warned
    assert_same(expected.value, ours.value)
    assert expected.draws == ours.draws, "the global generators stand elsewhere than after torch's"
    return ours.value


def read(loader: Iterable[Any], epochs: int = 1) -> list[list[Any]]:
    """All batches of some epochs."""
    return [list(loader) for _ in range(epochs)]
