"""cache: makes shards local and keeps them within a budget, shared by all processes of a machine.

It knows no tensors. Where bytes come from is told by `forebay.sharding.Source`; what comes next, by the epoch's order.
"""

from __future__ import annotations

from forebay.cache.config import ENVIRONMENT, CacheConfig, Verify, parse_size
from forebay.cache.contents import (
    CachedData,
    Contents,
    Warmed,
    look_into_cache,
    prune_cache,
    verify_cache,
    warm_cache,
)
from forebay.cache.future import Order
from forebay.cache.shard_cache import ShardCache, open_store
from forebay.cache.simulation import HitRatios, Step, hit_ratios, in_turn, record_epoch
from forebay.cache.store import InPlaceStore, ShardStore

__all__ = [
    "ENVIRONMENT",
    "CacheConfig",
    "CachedData",
    "Contents",
    "HitRatios",
    "InPlaceStore",
    "Order",
    "ShardCache",
    "ShardStore",
    "Step",
    "Verify",
    "Warmed",
    "hit_ratios",
    "in_turn",
    "look_into_cache",
    "open_store",
    "parse_size",
    "prune_cache",
    "record_epoch",
    "verify_cache",
    "warm_cache",
]
