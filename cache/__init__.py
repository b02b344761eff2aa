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
from forebay.cache.decoded_file import DecodedFile
from forebay.cache.decoded_store import DecodedStore
from forebay.cache.future import Order
from forebay.cache.remote_config import RemoteConfig
from forebay.cache.remote_source import RemoteSource, is_url, public_name
from forebay.cache.shard_cache import ShardCache, open_store
from forebay.cache.simulation import HitRatios, Step, hit_ratios, in_turn, record_epoch
from forebay.cache.sources import open_or_find, open_place
from forebay.cache.store import InPlaceStore, ShardStore
from forebay.cache.table_notes import TableNotes
from forebay.cache.table_open import count_rows, open_notes, open_table
from forebay.cache.table_places import Place, TablePlace, find_files, is_table
from forebay.cache.table_store import HeldUnit, UnitStore, open_units

__all__ = [
    "ENVIRONMENT",
    "BucketDestination",
    "CacheConfig",
    "CachedData",
    "Contents",
    "DecodedFile",
    "DecodedStore",
    "HeldUnit",
    "HitRatios",
    "InPlaceStore",
    "Order",
    "Place",
    "RemoteConfig",
    "RemoteSource",
    "ShardCache",
    "ShardStore",
    "Step",
    "TableNotes",
    "TablePlace",
    "UnitStore",
    "Verify",
    "Warmed",
    "count_rows",
    "find_files",
    "hit_ratios",
    "in_turn",
    "is_table",
    "is_url",
    "look_into_cache",
    "open_notes",
    "open_or_find",
    "open_place",
    "open_store",
    "open_table",
    "open_units",
    "parse_size",
    "prune_cache",
    "public_name",
    "record_epoch",
    "verify_cache",
    "warm_cache",
]
