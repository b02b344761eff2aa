"""What the passes over shards of one loader share: memory, decoder, statistics, and the engines that are running."""

from __future__ import annotations

import weakref

import torch

from forebay.errors import ConfigError
from forebay.loader.batch_plans import BatchPlan
from forebay.loader.dali_pipeline import DEPTH
from forebay.loader.dali_stage import DaliDecoder
from forebay.loader.dataset import ShardDataset
from forebay.loader.decoders import choose_decoder
from forebay.loader.device import resolve_device
from forebay.loader.engine import CHUNK, ShardEngine
from forebay.loader.engine_settings import EngineSettings
from forebay.loader.ranks import thread_share
from forebay.loader.refusals import refuse_for_stages
from forebay.loader.settings import ShardLoaderSettings
from forebay.loader.shard_workers import ShardWorkers
from forebay.loader.slots import LoaderMemory
from forebay.loader.stats import LoaderStats, Meter
from forebay.loader.tables_room import TableRoom
from forebay.loader.tails import Tail

__all__ = ["EngineRoom", "Room", "open_room"]


class EngineRoom:
    """Starts engines for one loader, and closes them. One thread.

    Args:
        dataset: what they read.
        settings: how.

    Raises:
        ConfigError: the decoder or the device is not to be had.
        SchemaError: a batch transform does not fit the data set.
    """

    def __init__(self, dataset: ShardDataset, settings: ShardLoaderSettings) -> None:
        refuse_for_stages(dataset, settings)
        self._dataset = dataset
        self._settings = settings
        self._device = resolve_device(settings.device)
        self._pin_memory = (settings.pin_memory or self._device is not None) and torch.cuda.is_available()
        self._memory = self._new_memory()
        self._processes = _processes(dataset, settings)
        on_cpu = bool(self._processes) or dataset.decoded is not None
        self._choice = choose_decoder(settings.decode, None if on_cpu else self._device)
        if dataset.decoded is not None and self._choice.decoder == "dali":
            raise ConfigError(
                'decode="dali" and decoded=True: stored pixels are finished by the native kernel, and DALI would make '
                'slightly different ones of what is not stored; take decode="auto"'
            )
        self._dali = None
        if self._choice.decoder == "dali":
            self._dali = DaliDecoder(
                device=self._device, mode=self._choice.mode, threads=settings.threads or thread_share()
            )
        self._newest: weakref.ref[ShardEngine | ShardWorkers] | None = None
        self._engines: weakref.WeakSet[ShardEngine | ShardWorkers] = weakref.WeakSet()
        for transform in settings.batch_transforms:
            transform.check(dataset.schema)
        self.reset_stats()

    def only(self, dataset: ShardDataset) -> EngineRoom:
        """A room for a data set with other outputs; this one is closed.

        Raises:
            ConfigError: the outputs do not go with the settings; nothing is changed then.
        """
        other = EngineRoom(dataset, self._settings)
        self.close()
        return other

    def _new_memory(self) -> LoaderMemory:
        return LoaderMemory(pin_memory=self._pin_memory, batches=(self._settings.prefetch or 2) + 2)

    @property
    def needs_largest(self) -> bool:
        """Whether the decoder must be told how many samples the largest batch has."""
        return self._dali is not None

    def prefetch(self, batch_size: int) -> int:
        """Batches made ahead: as many as were asked for, and at least what keeps all threads busy."""
        if self._processes:
            return (self._settings.prefetch or 2) * self._processes
        wanted = max(self._settings.prefetch or 2, -(-2 * self.meter.threads * CHUNK // batch_size))
        return wanted + (DEPTH if self._dali else 0)

    def start(self, plan: BatchPlan, *, seed: int, epoch: int, prefetch: int) -> ShardEngine | ShardWorkers:
        """An engine for one pass, at work.

        Raises:
            ConfigError: its threads cannot be started.
            CacheError: the cache cannot be used.
        """
        s = self._settings
        maker = self._dataset.maker
        tails: list[Tail | None] = [None] * len(maker.programs)
        if not self._processes and (self._device is not None or self._dali is not None):
            maker, tails = maker.without_tails()
        settings = EngineSettings(
            data=self._dataset.data,
            maker=maker,
            virtual=self._dataset.virtual,
            partial=self._dataset.partial,
            plan=plan,
            seed=seed,
            epoch=epoch,
            threads=self.meter.threads,
            decoder=self._choice.decoder,
            tails=tuple(tails),
            prefetch=prefetch,
            prefetch_nbytes=s.prefetch_nbytes,
            on_error=s.on_error,
            batch_transforms=s.batch_transforms,
            pin_memory=self._pin_memory,
            device=self._device,
            decoded=self._dataset.decoded,
        )
        store = self._dataset.open_store()
        try:
            engine: ShardEngine | ShardWorkers
            if self._processes:
                engine = ShardWorkers(
                    self._dataset, settings, store, self.meter, workers=self._processes, prefetch=s.prefetch or 2
                )
            else:
                engine = ShardEngine(settings, store, self.meter, self._memory, self._dali)
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
        if self._dali is not None:
            self._dali.close()

    def reset_stats(self) -> None:
        """Begin to count anew, with the next pass."""
        s = self._settings
        self.meter = Meter(
            threads=s.threads or thread_share(),
            max_bad=s.max_bad,
            decoder=self._choice.told,
            decoding=dict if self._dali is None else self._dali.counts.to_dict,
            readers=self._processes or 1,
        )

    def stats(self) -> LoaderStats:
        """Where the time went; see `LoaderStats`."""
        engine = self._newest() if self._newest is not None else None
        if engine is not None:
            engine.measure()
        return self.meter.stats()


Room = EngineRoom | TableRoom


def open_room(dataset: ShardDataset, settings: ShardLoaderSettings) -> Room:
    """The room for a data set's kind: shards of samples, or a table.

    Raises:
        ConfigError, SchemaError: as `EngineRoom` and `TableRoom`.
    """
    if dataset.view is not None:
        return TableRoom(dataset.view, dataset.cache, dataset.virtual, settings)
    return EngineRoom(dataset, settings)


def _processes(dataset: ShardDataset, settings: ShardLoaderSettings) -> int:
    """How many worker processes make the batches; 0: threads of this one do, as DALI's are.

    Raises:
        ConfigError: a transform needs processes, and what was asked for are threads.
    """
    programs = dataset.maker.programs
    processes = settings.threads if settings.workers == "process" and settings.decode != "dali" else 0
    if not processes and any(program.needs_process for program in programs):
        raise ConfigError(
            "T.Seeded needs worker processes, since threads share the global generators that its function draws from: "
            'give num_workers=1 or more, and neither workers="thread" nor decode="dali"; or write the function as '
            "f(x, rng), drawing from the numpy Generator rng"
        )
    return processes if any(program.opaque for program in programs) else 0
