"""Fetch one shard from its source into the cache: room first, then the bytes, seen only when their checksum held.

Who may have room at whose cost is decided in `folder.py`; no thread is started here.
"""

from __future__ import annotations

import logging
import threading

import xxhash

from forebay.cache.folder import CacheFolder, Refusal
from forebay.cache.reservation import Reservation
from forebay.errors import CacheError, ClosedError, ShardCorruptError, SourceError
from forebay.sharding import READ_NBYTES, StoredDataset

__all__ = ["fetch_shard"]

log = logging.getLogger(__name__)


def fetch_shard(
    folder: CacheFolder,
    data: StoredDataset,
    shard: int,
    *,
    far: bool,
    stop: threading.Event,
) -> tuple[Refusal | None, int]:
    """Bring a shard into the folder. Tried twice when the bytes are not those of the index.

    Args:
        folder: the cache's.
        data: whose source is read.
        shard: its index.
        far: see `CacheFolder.reserve`.
        stop: looked at between pieces of `READ_NBYTES`, and while the folder's lock is waited for.

    Returns:
        Why it was not fetched, or None when it was; and how many shards were evicted.

    Raises:
        ShardCorruptError: the source's file has another size or checksum than the index says, twice.
        SourceError: the source cannot be read.
        CacheError: the folder cannot be used.
        ClosedError: `stop` was set.
    """
    name, nbytes = data.shard_name(shard), int(data.shard_nbytes[shard])
    room, evicted = folder.reserve(data.fingerprint, name, nbytes, far=far, stop=stop)
    if isinstance(room, Refusal):
        return room, evicted
    try:
        with room:
            room.allocate()
            _copy_verified(data, shard, room, stop)
            room.commit()
    except (SourceError, ClosedError):
        raise
    except TimeoutError as error:  # of the folder's lock
        log.warning("%s; shard %s is read from the source", str(error), name)
        return Refusal.STALLED, evicted
    except OSError as error:
        if folder.absorb(error):
            return Refusal.NO_ROOM, evicted
        raise CacheError(
            f"shard {name} of {data.name} cannot be written to the cache folder {folder.path}: {error}; check the "
            f"disk, or read without a cache",
            path=folder.path,
            shard=name,
        ) from error
    return None, evicted


def _copy_verified(data: StoredDataset, shard: int, room: Reservation, stop: threading.Event) -> None:
    name = data.shard_name(shard)
    wanted = data.shard_checksums[shard].tobytes()
    found = _copy(data, shard, room, stop)
    if found != wanted:
        log.warning("shard %s of %s came with checksum %s; fetching it again", name, data.name, found.hex())
        found = _copy(data, shard, room, stop)
    if found != wanted:
        raise ShardCorruptError(
            f"shard {name} of {data.name}: it was fetched twice and has checksum {found.hex()}, the index says "
            f"{wanted.hex()}; `forebay verify` lists what else is damaged: copy the shard again from where it came",
            dataset=data.name,
            shard=name,
            found=found.hex(),
            wanted=wanted.hex(),
        )


def _copy(data: StoredDataset, shard: int, room: Reservation, stop: threading.Event) -> bytes:
    """Copy the bytes; what checksum they had."""
    name = data.shard_name(shard)
    file = data.source.open(name)
    try:
        if file.nbytes != room.nbytes:
            raise ShardCorruptError(
                f"shard {name} of {data.name} has {file.nbytes} bytes, the index says {room.nbytes}: it was cut short "
                f"or replaced; copy it again from where it came",
                dataset=data.name,
                shard=name,
            )
        state = xxhash.xxh3_128()
        for offset in range(0, room.nbytes, READ_NBYTES):
            if stop.is_set():
                raise ClosedError(f"the cache was closed while it fetched shard {name} of {data.name}")
            piece = file.read(offset, min(READ_NBYTES, room.nbytes - offset))
            state.update(piece)
            room.write(offset, piece)
        return state.digest()
    finally:
        file.close()
