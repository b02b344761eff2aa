"""Opening a data set by whatever names its place: a folder, a URL, or an opened source; and telling shards from tables.

A table's files are found here and opened by `table_open`.
"""

from __future__ import annotations

import os
from typing import cast

from forebay.cache.remote_config import RemoteConfig
from forebay.cache.remote_source import RemoteSource, is_url
from forebay.cache.table_places import Place, TablePlace, find_far_table, find_files, is_table
from forebay.errors import ConfigError, ManifestError, SourceError
from forebay.sharding import MANIFEST_NAME, Source, StoredDataset, open_dataset

__all__ = ["open_or_find", "open_place"]


def open_place(place: str | os.PathLike[str] | Source, remote: RemoteConfig | None = None) -> StoredDataset:
    """Open a data set: of a URL, its manifest and index are read, by three requests or four.

    Args:
        place: a folder, `s3://bucket/folder` or another URL (see `RemoteSource`), or an opened source.
        remote: how a URL is read; only for one.

    Raises:
        ManifestError: it is no finished data set, it is damaged, or it was written by a newer version; says what to do.
        SourceError: it cannot be read.
        ConfigError: a package for such URLs is missing, or `remote` was given with a place that is no URL.
    """
    if not is_url(place):
        if remote is not None:
            raise ConfigError("remote= says how a URL is read, and the place is none; leave it out")
        return open_dataset(place)
    source = RemoteSource(str(place), remote)
    try:
        return open_dataset(source)
    except SourceError as error:
        if getattr(error, "missing", False):
            raise ManifestError(
                f"{source.name} is no data set: {error}; if it was being written, the manifest comes last",
                missing=getattr(error, "path", None),
            ) from error
        raise


def open_or_find(place: Place | Source, remote: RemoteConfig | None = None) -> StoredDataset | TablePlace:
    """Open shards, or find the files of a table: whichever lies there.

    Of the URL of a folder the manifest decides: where there is one, nothing is asked for that `open_place` would not
    ask for; where there is none, the files are listed.

    Args:
        place: as of `open_place`; or a Parquet file, a list or a glob of them.
        remote: how a URL is read.

    Raises:
        ManifestError: neither a finished data set nor a table lies there; says what was looked for.
        SourceError, ConfigError: as `open_place` and `find_files`.
    """
    if is_table(place):
        return find_files(cast("Place", place), remote)
    lone = cast("str | os.PathLike[str] | Source", place)
    try:
        return open_place(lone, remote)
    except ManifestError as error:
        if not is_url(place) or getattr(error, "missing", None) != MANIFEST_NAME:
            raise
        return find_far_table(str(place), remote)
