"""Whether the decoded samples in a cache are as they were written; those that are not are forgotten, and made again.

It decodes nothing: what is compared is what stands in the file beside the pixels.
"""

from __future__ import annotations

import os

from forebay.cache.decoded_file import DecodedFile
from forebay.cache.folder import CacheFolder
from forebay.cache.listing import ShardFile
from forebay.cache.shard_names import ShardNames
from forebay.sharding import StoredDataset

__all__ = ["verify_decoded"]


def verify_decoded(folder: CacheFolder, data: StoredDataset | None, file: ShardFile) -> list[str]:
    """Read one file of decoded samples; what is wrong with each sample that was forgotten, or with the file.

    Args:
        folder: of the cache.
        data: the data set that the file is of; of an unknown one the file is left alone.
        file: as it was listed.

    Raises:
        OSError: the file cannot be read.
    """
    shard = -1 if data is None else int(ShardNames(data).find([file.name])[0])
    if data is None or shard < 0:
        return []
    path = folder.path / file.fingerprint / file.name
    try:
        opened = DecodedFile(os.open(path, os.O_RDWR | os.O_CLOEXEC), int(data.shard_rows[shard]))
    except FileNotFoundError:  # evicted meanwhile
        return []
    except ValueError as error:
        folder.remove(file.fingerprint, file.name)
        return [f"{path}: {error}"]
    try:
        damaged = opened.damaged_rows()
        for row in damaged:
            opened.forget(row)
    finally:
        opened.close()
    return [f"{path}: decoded row {row} is not as it was written" for row in damaged]
