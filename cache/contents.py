"""What a cache holds, and work on it from outside: listing, filling, pruning and verifying, for `forebay cache`.

Each function opens the folders that it is told, under the same locks as training, so it may run beside it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forebay.cache.config import CacheConfig
from forebay.cache.decoded_names import is_decoded
from forebay.cache.decoded_verification import verify_decoded
from forebay.cache.fetch import begin_fetch
from forebay.cache.folder import CacheFolder, Refusal
from forebay.cache.folders import CacheFolders
from forebay.cache.interrupts import Interrupts
from forebay.cache.listing import ShardFile
from forebay.cache.marker import MARKER
from forebay.cache.remote_source import RemoteSource
from forebay.cache.shard_names import ShardNames
from forebay.cache.table_file import read_batch
from forebay.cache.verification import check_whole
from forebay.errors import CacheError, ShardCorruptError
from forebay.sharding import UNIT_WRITER, EpochOrder, StoredDataset

__all__ = [
    "CachedData",
    "Contents",
    "Warmed",
    "look_into_cache",
    "prune_cache",
    "verify_cache",
    "warm_cache",
]

WITHOUT_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class CachedData:
    """What is kept of one data set."""

    fingerprint: str
    origin: str | None
    """Where it was first read from; None when that is not known."""
    shards: int
    nbytes: int
    """Bytes of shards and decoded samples."""
    shards_of_data: int | None
    """Shards that the data set has; None when its index is not known."""
    positions: tuple[float, ...]
    """Of each living reader, how much of its epoch it has read; 0 where nobody knows its order."""
    decoded_files: int = 0
    """Shards whose samples are kept decoded, one for each kind of pixels."""
    decoded_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Contents:
    """What one folder holds."""

    path: Path
    data: tuple[CachedData, ...]
    unfinished_nbytes: int
    """Room of the shards that are being fetched."""
    disk_nbytes: int
    disk_free_nbytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of everything that counts towards the budget."""
        return sum(data.nbytes for data in self.data) + self.unfinished_nbytes


@dataclass(frozen=True, slots=True)
class Warmed:
    """What `warm_cache` did."""

    fetched: int
    present: int
    """Shards that were there before."""
    without_room: int


def look_into_cache(path: Path) -> Contents:
    """What a cache folder holds.

    Raises:
        CacheError: there is no cache, or it cannot be used.
    """
    folder = _open(path)
    found, readings = folder.look(stop=threading.Event())
    by_data: dict[str, list[ShardFile]] = {reading.fingerprint: [] for reading in readings}
    for shard in found.shards:
        by_data.setdefault(shard.fingerprint, []).append(shard)
    known = []
    for fingerprint, shards in by_data.items():
        data = folder.catalogue.get(fingerprint)
        rows = 1 if data is None else max(1, data.rows)
        decoded = [file for file in shards if is_decoded(file.name)]
        known.append(
            CachedData(
                fingerprint=fingerprint,
                origin=folder.catalogue.origin(fingerprint),
                shards=len(shards) - len(decoded),
                nbytes=sum(shard.nbytes for shard in shards),
                shards_of_data=None if data is None else data.num_shards,
                positions=tuple(min(1.0, r.position / rows) for r in readings if r.fingerprint == fingerprint),
                decoded_files=len(decoded),
                decoded_nbytes=sum(file.nbytes for file in decoded),
            )
        )
    disk = os.statvfs(folder.path)
    return Contents(
        path=folder.path,
        data=tuple(sorted(known, key=lambda data: (-data.nbytes, data.fingerprint))),
        unfinished_nbytes=found.reserved,
        disk_nbytes=disk.f_blocks * disk.f_frsize,
        disk_free_nbytes=disk.f_bavail * disk.f_frsize,
    )


def warm_cache(
    data: StoredDataset,
    config: CacheConfig,
    *,
    order: EpochOrder,
    fetch_threads: int = 2,
    progress: Callable[[int], None],
) -> Warmed:
    """Fetch a data set's shards in order of first use, as many as have room; what others read is not evicted.

    Args:
        data: to fetch.
        config: of the cache.
        order: of the epoch that will be read.
        fetch_threads: shards that are fetched at a time.
        progress: called with the bytes of each shard that is there or has no room; by several threads.

    Raises:
        ShardCorruptError, SourceError, CacheError: as reading through the cache.
    """
    folders, stop = CacheFolders(config), Interrupts(f"the cache of {data.name}")
    fetcher = data.source.for_store(stop) if isinstance(data.source, RemoteSource) else None
    full = set[Path]()

    def fetch(shard: int) -> Refusal | None:
        name = data.shard_name(shard)
        home = folders.home(data.fingerprint, name)
        refusal: Refusal | None = Refusal.NO_ROOM
        if home.path not in full and data.shard_nbytes[shard] <= home.budget:
            begun, _ = begin_fetch(home, data, shard, fetcher=fetcher, far=True, stop=stop)
            if isinstance(begun, Refusal):
                refusal = begun
            else:
                try:
                    refusal = begun.run(stop)
                finally:
                    begun.give_up()
            if refusal is Refusal.NO_ROOM:
                full.add(home.path)
        progress(int(data.shard_nbytes[shard]))
        return refusal

    with _reading(folders, data, order, stop), ThreadPoolExecutor(fetch_threads, "forebay-warm") as threads:
        try:
            outcomes = list(threads.map(fetch, [span.shard for span in order.spans()]))
        except BaseException:  # Ctrl-C, or an error of one fetch: the others end at their next piece
            stop.set()
            raise
    return Warmed(
        fetched=sum(outcome is None for outcome in outcomes),
        present=sum(outcome in (Refusal.PRESENT, Refusal.BUSY) for outcome in outcomes),
        without_room=sum(outcome in (Refusal.NO_ROOM, Refusal.STALLED) for outcome in outcomes),
    )


@contextmanager
def _reading(folders: CacheFolders, data: StoredDataset, order: EpochOrder, stop: threading.Event) -> Iterator[None]:
    readers = folders.enter(data, stop=stop)
    try:
        folders.follow(readers, order, 0, stop=stop)
        yield
    finally:
        for reader in readers:
            reader.close()


def prune_cache(path: Path, *, keep_nbytes: int = 0, fingerprint: str | None = None) -> tuple[int, int]:
    """Remove shards, those that are needed last first, until no more than some bytes are left.

    Args:
        path: of a cache folder.
        keep_nbytes: bytes that may stay, of the whole folder.
        fingerprint: remove shards of this data set only.

    Returns:
        How many shards were removed, and their bytes.

    Raises:
        CacheError: there is no cache, or it cannot be used.
    """
    return _open(path).prune(keep_nbytes, fingerprint, stop=threading.Event())


def verify_cache(path: Path, *, progress: Callable[[int], None]) -> tuple[int, Sequence[str], int]:
    """Compare the checksum of every whole shard with the index that was written down beside it; drop what differs.

    Decoded samples are compared with the checksums that they were written with; those that differ are forgotten.

    Args:
        path: of a cache folder.
        progress: called with bytes that were read.

    Returns:
        How many shards hold; what each of those that were dropped had; how many belong to no known data set.

    Raises:
        CacheError: there is no cache, or it cannot be used.
    """
    folder = _open(path)
    found, _ = folder.look(stop=threading.Event())
    names: dict[str, ShardNames] = {}
    whole = unknown = 0
    damaged = []
    for file in found.shards:
        data = folder.catalogue.get(file.fingerprint)
        shard = -1
        if is_decoded(file.name):
            damaged += verify_decoded(folder, data, file)
            progress(file.nbytes)
            continue
        if data is not None:
            shard = int(names.setdefault(file.fingerprint, ShardNames(data)).find([file.name])[0])
        mapped = folder.open_shard(file.fingerprint, file.name)
        if mapped is None:  # evicted meanwhile
            continue
        if data is None or shard < 0:
            unknown += 1
        else:
            try:
                if data.manifest.writer.get("format") == UNIT_WRITER:  # made, not copied: it carries its own checksum
                    read_batch(mapped, verify=True)
                else:
                    check_whole(data, shard, mapped)
                whole += 1
            except ShardCorruptError as error:
                damaged.append(str(error).partition(";")[0])
                folder.remove(file.fingerprint, file.name)
        mapped.close()
        progress(file.nbytes)
    return whole, damaged, unknown


def _open(path: Path) -> CacheFolder:
    if not (path / MARKER).exists():
        raise CacheError(
            f"{path} is no cache folder: it has no {MARKER}; give the folder of `cache=` (without its size)", path=path
        )
    return CacheFolder(CacheConfig(path=path, budget=WITHOUT_LIMIT, min_free=0), path)
