"""Warnings about a budget that is too small for a data set: each given once in a process, with what would fit."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from forebay.cache.plan import fitting_window
from forebay.sharding import StoredDataset

__all__ = ["warn_of_size", "warn_of_window"]

log = logging.getLogger(__name__)

_told: set[tuple[str, str]] = set()  # (fingerprint, subject): a store is opened anew for every epoch


def warn_of_size(data: StoredDataset, shard: int, budget: int) -> None:
    """A shard is larger than the whole budget."""
    _warn_once(
        (data.fingerprint, "size"),
        f"shard {data.shard_name(shard)} of {data.name} has {data.shard_nbytes[shard]} bytes and the cache's budget is "
        f"{budget}: shards like it are read from the source in place; give a larger budget, or write smaller shards",
    )


def warn_of_window(data: StoredDataset, in_use: npt.NDArray[np.bool_], budget: int) -> None:
    """The shards in use at one position (a mask over all) do not fit in the budget; nothing is said when they do."""
    needed = int(data.shard_nbytes[in_use].sum())
    if needed > budget and int(in_use.sum()) > 1:  # of one shard that does not fit, its size is told
        _warn_once(
            (data.fingerprint, "window"),
            f"the shuffle window of {data.name} holds {int(in_use.sum())} shards, {needed} bytes, and the cache's "
            f"budget is {budget}: the shards beyond it are read from the source sample by sample; give "
            f"window={fitting_window(budget, data.shard_nbytes)}, the largest that fits, or a larger budget",
        )


def _warn_once(about: tuple[str, str], message: str) -> None:
    if about not in _told:
        _told.add(about)
        log.warning("%s", message)
