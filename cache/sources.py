"""Opening a data set by whatever names its place: a folder, a URL, or an opened source."""

from __future__ import annotations

import os

from forebay.cache.remote_config import RemoteConfig
from forebay.cache.remote_source import RemoteSource, is_url
from forebay.errors import ConfigError, ManifestError, SourceError
from forebay.sharding import Source, StoredDataset, open_dataset

__all__ = ["open_place"]


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
                f"{source.name} is no data set: {error}; if it was being written, the manifest comes last"
            ) from error
        raise
