"""What lies at the place that a `ShardDataset` is given: shards, which are opened, or a table, whose files are found.

It reads no samples, and knows what the cache knows of places.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from forebay.cache import RemoteConfig, TablePlace, find_files, is_table, is_url, open_or_find, open_place
from forebay.errors import ConfigError
from forebay.sharding import StoredDataset

__all__ = ["find_data"]


def find_data(
    path: Any, kind: Literal["auto", "forebay", "parquet"], remote: RemoteConfig | None, *, for_tables: Sequence[str]
) -> StoredDataset | TablePlace:
    """Open shards, or find the files of a table, and refuse options that are for tables alone.

    Args:
        path: of `ShardDataset`.
        kind: its `format`.
        remote: how a URL is read.
        for_tables: names of the options that were given and that only tables have.

    Raises:
        ConfigError: some were given, and these are shards; or `path` is no place.
        ManifestError, SourceError: as `open_or_find`.
    """
    if not isinstance(path, str | os.PathLike | Sequence) and not hasattr(path, "open"):
        raise ConfigError(f"ShardDataset({path!r:.200}): give a folder, a file, a URL or a list of Parquet files")
    if kind == "parquet" or (kind == "auto" and is_table(path)):
        return find_files(path, remote)
    of_list = not isinstance(path, str | os.PathLike) and not hasattr(path, "open")
    if not of_list and kind == "auto" and is_url(path):
        found = open_or_find(path, remote)
        if isinstance(found, TablePlace) or not for_tables:
            return found
    if for_tables or of_list:
        raise ConfigError(
            f"{', '.join(for_tables) or 'a list of files'}: only for a table of Parquet files, and {path!r:.200} is "
            'read as shards; pass format="parquet" if it is one'
        )
    return open_place(path, remote)
