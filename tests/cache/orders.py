"""Orders of an epoch for the tests: the real ones, with windows of one shard unless said otherwise."""

from __future__ import annotations

from forebay.sharding import EpochOrder, StoredDataset


def epoch_order(data: StoredDataset, seed: int | None = None, *, epoch: int = 0, window: int = 1) -> EpochOrder:
    """The order of an epoch, one shard after the other; storage order without a seed."""
    shuffle = seed is not None
    return EpochOrder(
        data.shard_rows, fingerprint=data.fingerprint, seed=seed or 0, epoch=epoch, shuffle=shuffle, window=window
    )
