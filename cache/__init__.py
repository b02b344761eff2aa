"""cache: makes shards local and keeps them within a budget, shared by all processes of a machine.

It knows no tensors. Where bytes come from is told by `forebay.sharding.Source`; what comes next, by the epoch's order.
"""

from __future__ import annotations

from forebay.cache.bucket_destination import BucketDestination
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
from forebay.cache.remote_config import RemoteConfig
from forebay.cache.remote_source import RemoteSource, is_url, public_name
from forebay.cache.shard_cache import ShardCache, open_store
from forebay.cache.simulation import HitRatios, Step, hit_ratios, in_turn, record_epoch
from forebay.cache.sources import open_place
from forebay.cache.store import InPlaceStore, ShardStore

__all__ = [
    "ENVIRONMENT",
    "BucketDestination",
    "CacheConfig",
    "CachedData",
    "Contents",
    "HitRatios",
    "InPlaceStore",
    "Order",
    "RemoteConfig",
    "RemoteSource",
    "ShardCache",
    "ShardStore",
    "Step",
    "Verify",
    "Warmed",
    "hit_ratios",
    "in_turn",
    "is_url",
    "look_into_cache",
    "open_place",
    "open_store",
    "parse_size",
    "prune_cache",
    "public_name",
    "record_epoch",
    "verify_cache",
    "warm_cache",
]
