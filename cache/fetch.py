"""Fetch one shard from its source into the cache: room first, then the bytes, seen only when their checksum held.

Who may have room at whose cost is decided in `folder.py`; no thread is started here.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator
from typing import NamedTuple

import xxhash

from forebay.cache.folder import CacheFolder, Refusal
from forebay.cache.growing_file import GrowingShard
from forebay.cache.interrupts import Interrupts
from forebay.cache.remote_source import FarFetcher
from forebay.cache.reservation import Reservation
from forebay.errors import CacheError, ClosedError, ShardCorruptError, SourceError
from forebay.sharding import READ_NBYTES, StoredDataset

__all__ = ["ShardFetch", "begin_fetch"]

log = logging.getLogger(__name__)


def begin_fetch(
    folder: CacheFolder,
    data: StoredDataset,
    shard: int,
    *,
    fetcher: FarFetcher | None,
    far: bool,
    stop: Interrupts,
) -> tuple[ShardFetch | Refusal, int]:
    """Make room for a shard.

    Args:
        folder: the cache's.
        data: whose source is read.
        shard: its index.
        fetcher: of a far source; None reads the source by itself.
        far: see `CacheFolder.reserve`.
        stop: looked at while the folder's lock is waited for.

    Returns:
        The fetch, which the caller runs or gives up, or why there is none; and how many shards were evicted.

    Raises:
        CacheError: the folder cannot be used.
        ClosedError: `stop` was set.
    """
    name, nbytes = data.shard_name(shard), int(data.shard_nbytes[shard])
    room, evicted = folder.reserve(data.fingerprint, name, nbytes, far=far, stop=stop)
    if isinstance(room, Refusal):
        return room, evicted
    try:
        room.allocate()
        return ShardFetch(folder, data, shard, room, fetcher), evicted
    except OSError as error:
        room.give_up()
        if folder.absorb(error):
            return Refusal.NO_ROOM, evicted
        raise _unwritable(folder, data, name, error) from error
    except BaseException:
        room.give_up()
        raise


ROUNDS = 8
"""Most times that what differs is fetched again: enough for a link that damages every other part."""


class _Arrived(NamedTuple):
    """What came."""

    checksum: bytes
    """xxh3-128 of all."""
    parts: list[int]
    """xxh3-64 of each `READ_NBYTES`."""


class ShardFetch:
    """A shard that has room and is to come. One thread runs it, once; others may read what has come of a far one.

    Args:
        folder: the cache's.
        data: whose source is read.
        shard: its index.
        room: its room; taken over.
        fetcher: as of `begin_fetch`.
    """

    def __init__(
        self, folder: CacheFolder, data: StoredDataset, shard: int, room: Reservation, fetcher: FarFetcher | None
    ) -> None:
        self.shard = shard
        self._folder = folder
        self._data = data
        self._room = room
        self._name = data.shard_name(shard)
        self._fetcher = fetcher
        self.growing: GrowingShard | None = None
        """What has come of a shard of a far source."""
        if fetcher is not None:
            self.growing = GrowingShard(self._name, f"shard {self._name} of {data.name}", room.duplicate(), room.nbytes)

    def give_up(self) -> None:
        """Give the room back, unless the shard is whole. Calling it again does nothing."""
        self._room.give_up()
        growing, self.growing = self.growing, None
        if growing is not None:
            growing.let_go()

    def run(self, stop: Interrupts) -> Refusal | None:
        """Bring the shard in. The caller gives up afterwards.

        When the bytes are not those of the index, they are fetched again; then what differs between one time and the
        next, as long as anything does: what comes alike twice is what the source holds.

        Args:
            stop: ends it, within a piece of `READ_NBYTES` of a near source.

        Returns:
            Why it was not fetched, or None when it was.

        Raises:
            ShardCorruptError: the source's file has another size or checksum than the index says.
            SourceError: the source cannot be read.
            CacheError: the folder cannot be used.
            ClosedError: `stop` was set.
        """
        try:
            self._verified(stop)
            self._room.commit()
            if self.growing is not None:
                self.growing.finish()
        except (SourceError, ClosedError):
            raise
        except TimeoutError as error:  # of the folder's lock
            log.warning("%s; shard %s is read from the source", str(error), self._name)
            return Refusal.STALLED
        except OSError as error:
            if self._folder.absorb(error):
                return Refusal.NO_ROOM
            raise _unwritable(self._folder, self._data, self._name, error) from error
        return None

    def _verified(self, stop: Interrupts) -> None:
        name, data = self._name, self._data
        wanted = data.shard_checksums[self.shard].tobytes()
        arrived = self._come(stop)
        doubtful = set(range(len(arrived.parts)))
        for _ in range(ROUNDS):
            if arrived.checksum == wanted or not doubtful:
                break
            log.warning(
                "shard %s of %s came with checksum %s; fetching %d of its %d parts again",
                name,
                data.name,
                arrived.checksum.hex(),
                len(doubtful),
                len(arrived.parts),
            )
            if self.growing is not None:
                for part in doubtful:
                    self.growing.forget(part * READ_NBYTES, min((part + 1) * READ_NBYTES, self.growing.nbytes))
            before, arrived = arrived, self._come(stop)
            doubtful = {i for i, pair in enumerate(zip(before.parts, arrived.parts, strict=True)) if len({*pair}) > 1}
        if (found := arrived.checksum) != wanted:
            raise ShardCorruptError(
                f"shard {name} of {data.name}: it was fetched again and has checksum {found.hex()}, the index says "
                f"{wanted.hex()}; `forebay verify` lists what else is damaged: copy the shard again from where it came",
                dataset=data.name,
                shard=name,
                found=found.hex(),
                wanted=wanted.hex(),
            )

    def _come(self, stop: Interrupts) -> _Arrived:
        """Have all bytes in the room."""
        if self.growing is None or self._fetcher is None:
            return self._copy(stop)
        config = self._fetcher.requester.config
        growing, everything = self.growing, [(0, self.growing.nbytes)]

        fetcher = self._fetcher

        def pieces() -> Generator[tuple[GrowingShard, int, int]]:
            with fetcher.turn:
                while (piece := growing.next_piece(config.piece_nbytes)) is not None:
                    yield growing, *piece

        while not growing.has(everything):
            with contextlib.closing(pieces()) as ranges:
                fetcher.requester.fetch(ranges, ahead=True, traffic=fetcher.traffic, interrupts=stop)
            growing.wait_for(everything, stop)
        state, parts = xxhash.xxh3_128(), []
        for offset in range(0, growing.nbytes, READ_NBYTES):
            part = os.pread(growing.read_fd(), min(READ_NBYTES, growing.nbytes - offset), offset)
            state.update(part)
            parts.append(xxhash.xxh3_64_intdigest(part))
        return _Arrived(state.digest(), parts)

    def _copy(self, stop: Interrupts) -> _Arrived:
        name, data, room = self._name, self._data, self._room
        file = data.source.open(name)
        try:
            if file.nbytes != room.nbytes:
                raise ShardCorruptError(
                    f"shard {name} of {data.name} has {file.nbytes} bytes, the index says {room.nbytes}: it was cut "
                    f"short or replaced; copy it again from where it came",
                    dataset=data.name,
                    shard=name,
                )
            state, parts = xxhash.xxh3_128(), []
            for offset in range(0, room.nbytes, READ_NBYTES):
                if stop.is_set():
                    raise ClosedError(f"the cache was closed while it fetched shard {name} of {data.name}")
                piece = file.read(offset, min(READ_NBYTES, room.nbytes - offset))
                state.update(piece)
                parts.append(xxhash.xxh3_64_intdigest(piece))
                room.write(offset, piece)
            return _Arrived(state.digest(), parts)
        finally:
            file.close()


def _unwritable(folder: CacheFolder, data: StoredDataset, name: str, error: OSError) -> CacheError:
    return CacheError(
        f"shard {name} of {data.name} cannot be written to the cache folder {folder.path}: {error}; check the disk, or "
        f"read without a cache",
        path=folder.path,
        shard=name,
    )
