"""cache: makes shards local and keeps them within a budget, shared by all processes of a machine.

It knows no tensors. Where bytes come from is told by `forebay.sharding.Source`; what comes next, by the epoch's order.
"""

from __future__ import annotations

from forebay.cache.config import CacheConfig, parse_size
from forebay.cache.shard_cache import ShardCache, open_store
from forebay.cache.store import InPlaceStore, ShardStore

__all__ = ["CacheConfig", "InPlaceStore", "ShardCache", "ShardStore", "open_store", "parse_size"]
