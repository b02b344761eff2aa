"""Arguments of `DataLoader` that do not go with the kind of data set, or with each other, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.errors import ConfigError
from forebay.loader.settings import PREFETCH_NBYTES

__all__ = ["refuse_for_others", "refuse_for_samplers", "refuse_for_shards", "refuse_for_stages"]

_FOR_SHARDS = {
    "collate_fn": "its batches are made in place; use transforms= for samples, batch_transforms= for batches",
    "worker_init_fn": "its threads and worker processes run nothing but the transforms; leave it out",
    "multiprocessing_context": "its worker processes, where transforms need them, start as torch's do; leave it out",
    "batch_threads": "its threads share the samples of a batch already; use num_workers=",
}
_ONLY_FOR_SHARDS: Mapping[str, Any] = {
    "seed": None,
    "global_batch_size": None,
    "window": None,
    "device": None,
    "rank": None,
    "world_size": None,
    "mesh": None,
    "data_dims": None,
    "nodes": None,
    "tail": None,
    "prefetch_nbytes": PREFETCH_NBYTES,
    "decode": "auto",
}


def refuse_for_shards(**given: Any) -> None:
    """Of a `ShardDataset`: arguments that are not None.

    Raises:
        ConfigError: there is one.
    """
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name}= cannot be used with a ShardDataset: {_FOR_SHARDS[name]}")


def refuse_for_samplers(loader: Any, batch_sampler: object) -> None:
    """Of a `ShardDataset` with a sampler or batch sampler: settings of an order that is ours.

    Raises:
        ConfigError: there is one.
    """
    for name in ("global_batch_size", "window", "rank", "world_size", "mesh", "data_dims", "nodes", "tail"):
        if getattr(loader, name) is not None:
            raise ConfigError(
                f"{name}= cannot be used with a sampler, which says itself what this rank reads, and in which order; "
                "leave one of them out"
            )
    if loader.on_error == "skip" and batch_sampler is not None:
        raise ConfigError(
            'on_error="skip" cannot be used with a batch_sampler: it chose the samples of a batch to go together, and '
            "one drawn from the shard would not; use batch_size= and sampler="
        )


def refuse_for_stages(dataset: Any, settings: Any) -> None:
    """Of a `ShardDataset` without some of its outputs: settings that need all of them.

    Raises:
        ConfigError: there is one.
    """
    if dataset.partial and settings.on_error == "skip":
        raise ConfigError(
            f'on_error="skip" with only {list(dataset.outputs)}: a stage that does not read a bad image would not know '
            'that another sample took its place, and targets would not fit inputs; use on_error="raise"'
        )
    if dataset.partial and settings.batch_transforms:
        raise ConfigError(
            f"batch_transforms with only {list(dataset.outputs)}: they mix inputs and targets, and see but a part; mix "
            "in the training loop, or leave out only"
        )


def refuse_for_others(loader: Any, dataset: object) -> None:
    """Of any other data set: settings that only shards have.

    Raises:
        ConfigError: there is one.
    """
    given = [name for name, default in _ONLY_FOR_SHARDS.items() if getattr(loader, name) != default]
    given += ["batch_transforms"] if loader.batch_transforms else []
    if given:
        raise ConfigError(
            f"{', '.join(given)}: only for a ShardDataset, and this is a {type(dataset).__name__}; write it as "
            "shards with ShardWriter or `forebay shard`, or leave these out"
        )
