"""Fill the decoded cache ahead of training: every picture is decoded once, in the order of its first use.

It is a pass of the loader over the pictures alone, of which one pixel each is kept. What is stored, and where, is the
same as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.cache import CacheConfig
from forebay.errors import ConfigError
from forebay.loader.dataloader import DataLoader
from forebay.loader.dataset import ShardDataset
from forebay.loader.transforms import RandomCrop, Transform
from forebay.sharding import Kind, StoredDataset

__all__ = ["DecodedWarmed", "warm_decoded"]

_BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class DecodedWarmed:
    """What `warm_decoded` did, in pictures."""

    stored: int
    present: int
    """Pictures that were there before."""
    without_room: int
    """Pictures that have no room, or do not decode."""


def warm_decoded(
    data: StoredDataset,
    config: CacheConfig,
    head: Sequence[Transform],
    *,
    columns: Sequence[str] | None = None,
    seed: int | None = None,
    epoch: int = 0,
    window: int | None = None,
    threads: int = 0,
    progress: Callable[[int], None],
) -> DecodedWarmed:
    """Decode and store a data set's pictures, as many as have room; what others read is not evicted.

    Args:
        data: of pictures.
        config: of the cache.
        head: the resizes and central crops that the training's transforms begin with; none to keep pictures whole.
        columns: of pictures; all such columns when None.
        seed: of the training to come; None takes the pictures as they lie.
        epoch: of the training.
        window: of the training, if it is not the default.
        threads: that decode; 0 takes this process's share.
        progress: called with the number of samples after each batch.

    Raises:
        ConfigError: there is no such column.
        ShardCorruptError, SourceError, CacheError: as reading through the cache.
    """
    pictures = [column.name for column in data.schema if column.kind is Kind.IMAGE]
    chosen = pictures if columns is None else list(columns)
    if not chosen or not set(chosen) <= set(pictures):
        raise ConfigError(f"columns {chosen} of {data.name}: give image columns; it has {pictures or 'none'}")
    transforms: dict[str, Any] = {name: [*head, RandomCrop(1)] for name in chosen}
    dataset = ShardDataset(data.source, cache=config, transforms=transforms, columns=chosen, decoded=True)
    with DataLoader(
        dataset,
        _BATCH_SIZE,
        shuffle=seed is not None,
        seed=seed or 0,
        window=window,
        num_workers=threads,
        on_error="skip",
        max_bad=max(1, data.rows),
    ) as loader:
        loader.set_epoch(epoch)
        for batch in loader:
            progress(len(batch[chosen[0]]))
        told = loader.stats().decoded
    stored, present, misses = (int(told[name]) for name in ("stored", "hits", "misses"))
    return DecodedWarmed(stored=stored, present=present, without_room=misses - stored)
