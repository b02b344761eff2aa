"""What the passes over a table of one loader share: memory, statistics, and the engines that are running.

It has the methods of `EngineRoom`, which is for shards of samples.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch

from forebay.cache import CacheConfig
from forebay.errors import ConfigError
from forebay.loader.batch_plans import BatchPlan, OrderPlan
from forebay.loader.dataset import ShardDataset
from forebay.loader.device import resolve_device
from forebay.loader.ranks import thread_share
from forebay.loader.settings import ShardLoaderSettings
from forebay.loader.slots import LoaderMemory
from forebay.loader.stats import LoaderStats, Meter
from forebay.loader.table_engine import TableEngine, TableSettings
from forebay.loader.tables import TableView
from forebay.sharding import default_window

__all__ = ["TableRoom"]

FAR_THREADS = 8
"""Units that are asked for at a time of a place behind a network, at least."""


class TableRoom:
    """Starts engines for one loader, and closes them. One thread.

    Args:
        view: of the table.
        cache: where units are kept.
        virtual: which of `__index__`, `__valid__` and `__weight__` the user wants.
        settings: of the loader.

    Raises:
        ConfigError: a setting that a table does not have, or a window that no memory holds.
    """

    needs_largest = False
    """See `EngineRoom.needs_largest`."""

    def __init__(
        self, view: TableView, cache: CacheConfig | None, virtual: tuple[str, ...], settings: ShardLoaderSettings
    ) -> None:
        self._view = view
        self._cache = cache
        self._virtual = virtual
        self._settings = settings
        self._device = resolve_device(settings.device)
        self._pin_memory = (settings.pin_memory or self._device is not None) and torch.cuda.is_available()
        self._memory = self._new_memory()
        self._newest: weakref.ref[TableEngine] | None = None
        self._engines: weakref.WeakSet[TableEngine] = weakref.WeakSet()
        _refuse_settings(settings)
        if settings.shuffle:
            self._check_window(settings.window)
        self.reset_stats()

    def only(self, dataset: ShardDataset) -> TableRoom:
        """See `EngineRoom.only`."""
        assert dataset.view is not None
        other = TableRoom(dataset.view, self._cache, dataset.virtual, self._settings)
        self.close()
        return other

    def _new_memory(self) -> LoaderMemory:
        return LoaderMemory(pin_memory=self._pin_memory, batches=(self._settings.prefetch or 2) + 2)

    def _check_window(self, window: int | None) -> None:
        """Refuse a window of units that do not fit in memory, where no cache holds them."""
        nbytes = np.sort(self._view.data.shard_nbytes)[::-1]
        window = min(default_window(len(nbytes)) if window is None else window, len(nbytes))
        budget = 0 if self._cache is None else self._cache.budget
        if self._cache is not None and self._cache.disk_share is not None:
            return
        needed, has = int(nbytes[:window].sum()), self._view.memory_nbytes + budget
        if needed > has:
            fits = int(np.searchsorted(np.cumsum(nbytes), has, side="right"))
            raise ConfigError(
                f"{self._view.data.name}: a shuffle window of {window} units has about {needed / 1e9:,.1f} GB, and "
                f"{has / 1e9:,.1f} GB are held in memory{' and the cache' if budget else ''}: units would be decoded "
                f'again and again; give cache="/nvme/forebay:{max(1, round(1.2 * needed / 1e9))}GB" (or more, and '
                f"later epochs decode nothing), window={max(1, fits)}, or a larger memory_nbytes of the data set",
                window=window,
                fitting=max(1, fits),
            )

    def prefetch(self, batch_size: int) -> int:
        """Batches made ahead: as many as were asked for, and at least what keeps the threads busy."""
        return max(self._settings.prefetch or 2, min(self.meter.threads, 4) + 1)

    def start(self, plan: BatchPlan, *, seed: int, epoch: int, prefetch: int) -> TableEngine:
        """An engine for one pass, at work.

        Raises:
            ConfigError: its threads cannot be started, or its window fits nowhere.
            CacheError: the cache cannot be used.
        """
        if isinstance(plan, OrderPlan) and plan.shuffles:
            self._check_window(plan.window)
        settings = TableSettings(
            view=self._view,
            virtual=self._virtual,
            plan=plan,
            threads=self.meter.threads,
            prefetch=prefetch,
            prefetch_nbytes=self._settings.prefetch_nbytes,
            pin_memory=self._pin_memory,
            device=self._device,
        )
        store = self._view.open_store(self._cache)
        try:
            engine = TableEngine(settings, store, self.meter, self._memory)
        except BaseException:
            store.close()
            raise
        self._newest = weakref.ref(engine)
        self._engines.add(engine)
        return engine

    def close(self) -> None:
        """Close every engine that still runs, and free the memory. The room can be used again."""
        for engine in list(self._engines):
            engine.close()
        self._memory.close()
        self._memory = self._new_memory()

    def reset_stats(self) -> None:
        """Begin to count anew, with the next pass."""
        threads = self._settings.threads or thread_share()
        if self._view.data.table.is_far:
            threads = max(threads, FAR_THREADS)
        self.meter = Meter(threads=threads, max_bad=None, decoder="none: a table's units are gathered", readers=threads)

    def stats(self) -> LoaderStats:
        """Where the time went; see `LoaderStats`. `read` is units, cached or decoded, `collate` batches."""
        engine = self._newest() if self._newest is not None else None
        if engine is not None:
            engine.measure()
        return self.meter.stats()


def _refuse_settings(settings: ShardLoaderSettings) -> None:
    reasons = {
        "on_error": (settings.on_error != "raise", "no row of a table can fail to decode by itself"),
        "max_bad": (settings.max_bad is not None, "no row of a table can fail to decode by itself"),
        "decode": (settings.decode != "auto", "there are no pictures to decode"),
        "batch_transforms": (bool(settings.batch_transforms), "they mix pictures; use table_transform= or transforms="),
    }
    for name, (given, reason) in reasons.items():
        if given:
            raise ConfigError(f"{name}= cannot be used with a table of Parquet files: {reason}; leave it out")
