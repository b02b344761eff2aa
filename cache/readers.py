"""Who reads through this cache folder, on the whole machine, and when each of them next needs a shard.

It reads and writes the readers' files and touches no shard; what is evicted is decided in `plan.py`, by these numbers.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forebay.cache.catalogue import Catalogue
from forebay.cache.decoded_keys import KeyInUse, living_keys, remove_dead_keys
from forebay.cache.decoded_names import key_of
from forebay.cache.future import Order, until_next_use
from forebay.cache.plan import FAR, UNUSED
from forebay.cache.reader_file import SUFFIX, OrderSettings, ReaderFile, Reading, read_reader_file
from forebay.cache.shard_names import ShardNames
from forebay.sharding import EpochOrder, NodeOrder, StoredDataset

__all__ = ["Reader", "Readers"]

FOLDER = "readers"

log = logging.getLogger(__name__)


class Reader:
    """One reader of this process: what it reads and how far it is, for this process's decisions and for all others'.

    Thread-safe. It has a file from the first `publish` on, which is called under the folder's lock: others, who hold it
    while they look, would take a file for a dead reader's that is new and not locked yet.
    """

    def __init__(self, folder: Path, data: StoredDataset) -> None:
        self._reading = Reading(
            fingerprint=data.fingerprint, sample_nbytes=max(1, data.manifest.nbytes // max(1, data.rows)), order=None
        )
        self._order: Order | None = None
        self._folder = folder
        self._lock = threading.Lock()
        self._closed = False
        self._file: ReaderFile | None = None

    def follow(self, order: Order, position: int) -> None:
        """The reader reads this order from now on, beginning at `position`; others know from the next `publish` on."""
        settings = None  # nobody else can follow another order
        if isinstance(order, EpochOrder | NodeOrder):
            settings = _settings_of(order)
        with self._lock:
            self._order = order
            self._reading = replace(self._reading, order=settings, position=position)

    def advance(self, position: int) -> None:
        """The order has been read up to `position`. A few microseconds: one small write into the page cache."""
        with self._lock:
            if position <= self._reading.position:
                return
            self._reading = replace(self._reading, position=position)
            if self._file is not None:
                try:
                    self._file.move(position)
                except OSError as error:
                    self._give_up(error)

    def now(self) -> tuple[Reading, Order | None]:
        """What is read and how far, and the order itself."""
        with self._lock:
            return self._reading, self._order

    def publish(self) -> None:
        """Write the file anew. Called under the folder's lock."""
        with self._lock:
            self._remove_file()
            if not self._closed:
                try:
                    self._file = ReaderFile(self._folder, self._reading)
                except OSError as error:
                    self._give_up(error)

    def withdraw(self) -> None:
        """Say nothing: what the file says is not so any more, and the folder cannot be locked to say it anew."""
        with self._lock:
            self._remove_file()

    def _give_up(self, error: OSError) -> None:
        """Go on without a file, as on a full disk: the shards of this reader then count as unused for others."""
        log.debug("a reader of %s cannot tell others what it reads: %s", self._folder, error)
        self._remove_file()

    def _remove_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Remove the file. Calling it again does nothing."""
        with self._lock:
            self._closed = True
            self._remove_file()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def path(self) -> Path | None:
        """The file; None when there is none."""
        file = self._file
        return None if file is None else file.path


class Readers:
    """All readers of a cache folder. Its methods are called under the folder's lock."""

    def __init__(self, cache_folder: Path, catalogue: Catalogue) -> None:
        self._folder = cache_folder / FOLDER
        self._catalogue = catalogue
        self._mine: list[Reader] = []
        self._names: dict[str, ShardNames] = {}
        self._orders: dict[tuple[str, OrderSettings], EpochOrder | NodeOrder] = {}  # of living readers

    def enter(self, data: StoredDataset) -> Reader:
        """Begin to read a data set, in an order that is not known yet. The caller closes the reader."""
        reader = Reader(self._folder, data)
        self._mine = [*(other for other in self._mine if not other.closed), reader]
        return reader

    def use_decoded(self, fingerprint: str, key: str) -> KeyInUse:
        """Begin to read decoded samples of one kind. The caller closes what comes back.

        Raises:
            OSError: the file that says so cannot be written.
        """
        return KeyInUse(self._folder, fingerprint, key)

    def publish(self) -> None:
        """Write the files of this process's readers anew: the folder was removed and made again."""
        for reader in self._mine:
            reader.publish()

    def remove_dead(self) -> None:
        """Remove the files that dead readers left."""
        for path in self._paths():
            if read_reader_file(path) is None:
                path.unlink(missing_ok=True)
        remove_dead_keys(self._folder)

    def living(self) -> list[Reading]:
        """What every living reader says, those of this process first."""
        return [reading for reading, _ in self._living()]

    def _living(self) -> Iterator[tuple[Reading, Order | None]]:
        mine = [reader for reader in self._mine if not reader.closed]
        for reader in mine:
            yield reader.now()
        for path in sorted(self._paths() - {reader.path for reader in mine}):
            if (reading := read_reader_file(path)) is not None:
                yield reading, None

    def _paths(self) -> set[Path]:
        try:
            return {self._folder / name for name in os.listdir(self._folder) if name.endswith(SUFFIX)}
        except FileNotFoundError:
            return set()

    def next_uses(self, keys: Sequence[tuple[str, str]]) -> list[int]:
        """How soon each shard is used by the reader that needs it first, in bytes that this reader reads before.

        Args:
            keys: fingerprint and name of each shard.

        Returns:
            A number for each key; `UNUSED` where no living reader uses the shard, or decoded samples of that kind.
        """
        uses = np.full(len(keys), UNUSED, np.int64)
        by_data: dict[str, list[int]] = {}
        for i, (fingerprint, _) in enumerate(keys):
            by_data.setdefault(fingerprint, []).append(i)
        before, self._orders = self._orders, {}
        for reading, order in self._living():
            if (
                isinstance(order, EpochOrder | NodeOrder) and reading.order is not None
            ):  # ranks of one job read the same order
                self._orders[reading.fingerprint, reading.order] = order
            which = by_data.get(reading.fingerprint)
            data = None if which is None else self._catalogue.get(reading.fingerprint)
            if which is None or data is None:
                continue
            if order is None and reading.order is not None:
                order = self._orders_of_others(data, reading.order, before)
            places = np.array(which, np.int64)
            shards = self._shards(data, [keys[i][1] for i in which])
            known = shards >= 0  # a file with a name that the data set does not have is used by nobody
            places, shards = places[known], shards[known]
            uses[places] = np.minimum(uses[places], _soon(reading, order, shards, data.rows))
        kinds = {i: (fingerprint, kind) for i, (fingerprint, name) in enumerate(keys) if (kind := key_of(name))}
        living = living_keys(self._folder) if kinds else set[tuple[str, str]]()
        return [UNUSED if i in kinds and kinds[i] not in living else int(use) for i, use in enumerate(uses)]

    def _orders_of_others(
        self,
        data: StoredDataset,
        settings: OrderSettings,
        before: dict[tuple[str, OrderSettings], EpochOrder | NodeOrder],
    ) -> EpochOrder | NodeOrder:
        key = data.fingerprint, settings
        order = before.get(key) or self._orders.get(key)
        if order is None:
            order = EpochOrder(
                data.shard_rows,
                fingerprint=data.fingerprint,
                seed=settings.seed,
                epoch=settings.epoch,
                shuffle=settings.shuffle,
                window=settings.window,
            )
            if settings.nodes > 1:
                order = NodeOrder(order, node=settings.node, nodes=settings.nodes)
        self._orders[key] = order
        return order

    def _shards(self, data: StoredDataset, names: Sequence[str]) -> npt.NDArray[np.int64]:
        if data.fingerprint not in self._names:
            self._names[data.fingerprint] = ShardNames(data)
        return self._names[data.fingerprint].find(names)


def _settings_of(order: EpochOrder | NodeOrder) -> OrderSettings:
    whole, node, nodes = (order, 0, 1) if isinstance(order, EpochOrder) else (order.order, order.node, order.nodes)
    return OrderSettings(
        seed=whole.seed, epoch=whole.epoch, shuffle=whole.shuffle, window=whole.window, node=node, nodes=nodes
    )


def _soon(reading: Reading, order: Order | None, shards: npt.NDArray[np.int64], rows: int) -> npt.NDArray[np.int64]:
    """Bytes that one reader reads before it uses each shard. In an unknown order, any may come after an epoch or so."""
    if order is None:
        samples = np.full(len(shards), rows, np.int64)
    else:
        samples = until_next_use(order, shards, min(reading.position, order.samples))
    return np.minimum(samples, (FAR - 1) // reading.sample_nbytes) * reading.sample_nbytes
