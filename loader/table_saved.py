"""Columns' transforms as plain values, to be saved with a model, and back.

The values are JSON's; nothing is pickled, and nothing but transforms of this module's list is ever made of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from forebay.errors import ConfigError
from forebay.loader.table_buckets import Bucketize, HashBucket
from forebay.loader.table_transforms import Cast, Clip, ColumnTransform, Log1p, Standardize

__all__ = ["transforms_from_dict", "transforms_to_dict"]

_BY_NAME: dict[str, type[ColumnTransform]] = {
    kind.__name__: kind for kind in (Bucketize, Cast, Clip, HashBucket, Log1p, Standardize)
}


def transforms_to_dict(transforms: Mapping[str, Sequence[ColumnTransform]]) -> dict[str, list[dict[str, Any]]]:
    """Columns' transforms as plain dicts, lists, numbers and texts, to be saved with a model as JSON."""
    return {column: [_saved(transform) for transform in chain] for column, chain in transforms.items()}


def transforms_from_dict(saved: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[ColumnTransform]]:
    """What `transforms_to_dict` gave, as transforms again.

    Raises:
        ConfigError: a name or setting that no transform of this version has.
    """
    return {column: [_restore(column, one) for one in chain] for column, chain in saved.items()}


def _saved(transform: ColumnTransform) -> dict[str, Any]:
    saved: dict[str, Any] = {"transform": type(transform).__name__}
    for field in fields(transform):
        value = getattr(transform, field.name)
        if isinstance(value, torch.dtype):
            value = str(value).removeprefix("torch.")
        saved[field.name] = list(value) if isinstance(value, tuple) else value
    return saved


def _restore(column: str, saved: Mapping[str, Any]) -> ColumnTransform:
    settings = {name: value for name, value in saved.items() if name != "transform"}
    name = saved.get("transform")
    if name not in _BY_NAME:
        raise ConfigError(f"column {column!r}: there is no transform {name!r}; there are {sorted(_BY_NAME)}")
    if "dtype" in settings:
        settings["dtype"] = getattr(torch, settings["dtype"], None)
    try:
        return _BY_NAME[name](**settings)
    except TypeError as error:
        raise ConfigError(f"column {column!r}: {name} does not take {sorted(settings)}: {error}") from error
