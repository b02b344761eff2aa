"""Whether a shard in the cache still has the bytes that arrived: its checksum as a whole, when that is wanted.

Checked on arrival is what `fetch.py` does; samples are checked when they are read, whatever is chosen here.
"""

from __future__ import annotations

import xxhash

from forebay.cache.config import Verify
from forebay.errors import ShardCorruptError
from forebay.sharding import READ_NBYTES, MappedFile, StoredDataset

__all__ = ["check_copy", "check_whole"]

_checked: set[str] = set()  # files that this process has checked: a store is opened anew for every epoch


def check_copy(data: StoredDataset, shard: int, file: MappedFile, when: Verify) -> None:
    """Compare the checksum of the cache's copy of a shard, if it is to be compared now.

    Raises:
        ShardCorruptError: its size or checksum is not the index's.
    """
    if when == "arrival" or (when == "first_use" and file.name in _checked):
        return
    check_whole(data, shard, file)
    _checked.add(file.name)


def check_whole(data: StoredDataset, shard: int, file: MappedFile) -> None:
    """Compare size and checksum of a copy of a shard with the index. About 5 ms for 64 MiB in memory.

    Raises:
        ShardCorruptError: one differs; names the copy.
    """
    wanted = data.shard_checksums[shard].tobytes().hex()
    state = xxhash.xxh3_128()
    if file.nbytes == data.shard_nbytes[shard]:
        for offset in range(0, file.nbytes, READ_NBYTES):
            state.update(file.read(offset, min(READ_NBYTES, file.nbytes - offset)))
    if (found := state.hexdigest()) != wanted:
        raise ShardCorruptError(
            f"{file.name} has {file.nbytes} bytes and checksum {found}, the index says "
            f"{int(data.shard_nbytes[shard])} and {wanted}; delete it to fetch it again",
            dataset=data.name,
            shard=data.shard_name(shard),
            found=found,
            wanted=wanted,
        )
