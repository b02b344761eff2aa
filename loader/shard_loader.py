"""The loader of a data set of shards: epochs, state and statistics, one engine a pass.

It decides what comes next and remembers what was received; the engine does the work.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from forebay.errors import ConfigError, StateError
from forebay.loader.batch_plans import OrderPlan
from forebay.loader.batches import BatchGrid
from forebay.loader.dataset import ShardDataset
from forebay.loader.engine_room import open_room
from forebay.loader.frameworks import accelerate_place
from forebay.loader.ranks import Ranks, agree
from forebay.loader.settings import ShardLoaderSettings, whole_number
from forebay.loader.shard_iterator import Pass, ShardIterator
from forebay.loader.state import STATE_VERSION, LoaderState
from forebay.loader.stats import LoaderStats
from forebay.sharding import EpochOrder, default_window

__all__ = ["ShardLoader"]


class ShardLoader:
    """Passes over a `ShardDataset`. Used from one thread; the newest iterator is the one that the state speaks of."""

    def __init__(self, dataset: ShardDataset, settings: ShardLoaderSettings) -> None:
        self._dataset = dataset
        self._settings = settings
        self._room = open_room(dataset, settings)
        if any(given is not None for given in (settings.rank, settings.world_size, settings.mesh, settings.data_dims)):
            self._ranks()
        self._seed = settings.seed
        self._window = settings.window
        self._shuffle = bool(settings.shuffle)
        self._next_epoch = 0
        self._next_position = 0
        self._loaded = False
        self._agreed = False
        self.prepared = False
        """Whether accelerate prepared this loader: it hears then how far a pass has come."""
        self._pass: Pass | None = None
        self._newest_plan: OrderPlan | None = None
        self._newest: weakref.ref[ShardIterator] | None = None
        self._check_not_empty(settings.global_batch_size or settings.batch_size or 1)

    def _check_not_empty(self, global_batch_size: int) -> None:
        if self._settings.tail_rule == "drop" and 0 < len(self._dataset) < global_batch_size:
            raise ConfigError(
                f"{self._dataset.data.name} has {len(self._dataset):,} samples, fewer than a global batch of "
                f'{global_batch_size:,}, and drop_last=True, or tail="drop", would leave no batch at all; make the '
                'batch smaller, or pass drop_last=False or tail="pad" for one batch'
            )

    def _ranks(self) -> Ranks:
        s = self._settings
        return Ranks.find(s.rank, s.world_size, mesh=s.mesh, data_dims=s.data_dims, nodes=s.nodes)

    def _global_batch_size(self, ranks: Ranks) -> int:
        if self._settings.global_batch_size is not None:
            return self._settings.global_batch_size
        assert self._settings.batch_size is not None
        return self._settings.batch_size * ranks.world_size

    def _grid(self, ranks: Ranks, start: int, *, even: bool = False) -> BatchGrid:
        return BatchGrid(
            samples=len(self._dataset),
            global_batch_size=self._global_batch_size(ranks),
            tail=self._settings.tail_rule,
            start=start,
            even=even,
        )

    def rank_samples(self) -> int:
        """Samples of this rank in a whole epoch."""
        ranks = self._ranks()
        return self._grid(ranks, 0).rank_samples(rank=ranks.rank, world_size=ranks.world_size)

    def __len__(self) -> int:
        return len(self._grid(self._ranks(), 0))

    # -- passes ------------------------------------------------------------------------------------------------------

    def begin(self, *, even: bool = False, told: bool = False) -> ShardIterator:
        """Start the next epoch, or the rest of the one that a loaded state is in.

        Args:
            even: as `BatchGrid` has it.
            told: as `Pass` has it.

        Raises:
            RankMismatchError: on every rank, when the ranks are not about to read the same.
        """
        ranks = self._ranks()
        self._settle(ranks)  # first, so that ranks that differ all learn it here instead of one raising alone
        self._check_not_empty(self._global_batch_size(ranks))
        assert self._seed is not None
        epoch, start = self._next()
        current = Pass(epoch, self._grid(ranks, start, even=even), resumed=self._loaded, told=told)
        plan = self._plan(ranks, epoch, current.grid)
        assert plan.largest is not None
        engine = self._room.start(plan, seed=self._seed, epoch=epoch, prefetch=self._room.prefetch(plan.largest))
        self._pass, self._newest_plan = current, plan
        self._next_epoch, self._next_position = epoch + 1, 0
        self._loaded = False
        place = accelerate_place(current.grid.repeats(ranks.world_size)) if self.prepared else None
        iterator = ShardIterator(
            engine, current, self._room.meter, timeout_s=self._settings.timeout_s or None, place=place
        )
        self._newest = weakref.ref(iterator)
        return iterator

    def _plan(self, ranks: Ranks, epoch: int, grid: BatchGrid) -> OrderPlan:
        assert self._seed is not None
        data = self._dataset.data
        order = EpochOrder(
            data.shard_rows,
            fingerprint=data.fingerprint,
            seed=self._seed,
            epoch=epoch,
            shuffle=self._shuffle,
            window=self._window,
        )
        return OrderPlan(order, grid, ranks)

    def _next(self) -> tuple[int, int]:
        if self._pass is not None and self._pass.told and self._pass.delivered == 0 and not self._pass.ended:
            return self._pass.epoch, 0
        return self._next_epoch, self._next_position

    def _settle(self, ranks: Ranks) -> None:
        """Fix the seed, and make sure once that all ranks read the same."""
        if self._seed is None and ranks.world_size > 1 and not ranks.collective:
            raise ConfigError(
                f"rank={ranks.rank} of world_size={ranks.world_size} without a process group: every rank would draw a "
                "seed of its own and read another order; give seed="
            )
        if self._seed is None and ranks.draws:
            drawn = torch.empty((), dtype=torch.int64).random_(generator=self._settings.generator)
            self._seed = int(drawn.item())
        if self._agreed:
            return
        epoch, position = self._next()
        agreed = agree(
            ranks,
            {
                "data set fingerprint": self._dataset.fingerprint,
                "seed": self._seed,
                "epoch": epoch,
                "position": position,
                "shuffle": self._shuffle,
                "window": self._effective_window(),
                "global batch size": self._global_batch_size(ranks),
                "tail": self._settings.tail_rule,
                "on_error": self._settings.on_error,
                "loader version": STATE_VERSION,
                "world size": ranks.world_size,
                "nodes of the ranks": ranks.node_of,
            },
        )
        self._seed = agreed["seed"]
        self._agreed = True

    def _effective_window(self) -> int:
        shards = len(self._dataset.data.shard_rows)
        return min(self._window if self._window is not None else default_window(shards), max(shards, 1))

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass begin epoch `epoch`, from its start; a loaded state with batches left keeps its place."""
        epoch = whole_number("epoch", epoch)
        if epoch < 0:
            raise ConfigError(f"epoch={epoch}; epochs count from 0")
        if self._loaded and (epoch == self._next_epoch or len(self._grid(self._ranks(), self._next_position)) > 0):
            return
        self._loaded = False
        self._next_epoch, self._next_position = epoch, 0
        if self._pass is not None:
            self._pass.told = False
        self._agreed = False  # the ranks may have been told different ones

    def follow_epoch(self, epoch: int) -> None:
        """Likewise, told by a framework that may have asked for the iterator already.

        A pass that has given nothing yet, and goes on with no loaded state, begins again as one over `epoch`.
        """
        newest = None if self._newest is None else self._newest()
        current = self._pass
        if newest is None or not newest.close.alive or current is None or current.ended:
            self.set_epoch(epoch)
        elif current.epoch != epoch:
            self.set_epoch(epoch)
            if current.delivered == 0 and not current.resumed:
                newest.become(self.begin(even=current.grid.even, told=True))
                self._newest = weakref.ref(newest)

    # -- what comes, and what of it ----------------------------------------------------------------------------------

    def only(self, outputs: Sequence[str]) -> None:
        """Give only these outputs from the next pass on; see `DataLoader.only`."""
        self._room = self._room.only(self._dataset.only(outputs))

    def ids_of(self, batch: int) -> npt.NDArray[np.int64]:
        """Samples of a batch of this rank; see `DataLoader.ids_of`."""
        plan = self._planned()
        planned = plan.samples(_number_in(plan, batch))
        return self._dataset.data.shard_starts[planned.shards] + planned.rows

    def weight_of(self, batch: int) -> float:
        """Weight of a batch of this rank; see `DataLoader.weight_of`."""
        plan = self._planned()
        return plan.weight(_number_in(plan, batch))

    def _planned(self) -> OrderPlan:
        """The plan of the newest pass; of the next one before there is any."""
        if self._pass is not None and self._newest_plan is not None:
            return self._newest_plan
        ranks = self._ranks()
        if self._seed is None:
            self._settle(ranks)
        epoch, start = self._next()
        return self._plan(ranks, epoch, self._grid(ranks, start))

    def close(self) -> None:
        """Close every pass that is still open, and free its memory."""
        self._room.close()

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self, batches: int | None) -> dict[str, Any]:
        """The state after what was received, or after `batches` batches of the newest pass."""
        ranks = self._ranks()
        if self._seed is None:
            self._settle(ranks)
        assert self._seed is not None
        epoch, position = self._next()
        if batches is not None and self._pass is None:
            raise StateError(
                f"state_dict(batches={batches}) counts from the newest iter(loader), and there is none yet"
            )
        if self._pass is not None and (batches is not None or not self._pass.ended):
            done = self._pass.delivered if batches is None else batches
            if not 0 <= done <= len(self._pass.grid):
                raise StateError(f"state_dict(batches={batches}): this pass has {len(self._pass.grid)} batches")
            epoch, position = self._pass.epoch, self._pass.grid.position_after(done)
        return LoaderState(
            version=STATE_VERSION,
            fingerprint=self._dataset.fingerprint,
            seed=self._seed,
            epoch=epoch,
            position=position,
            shuffle=self._shuffle,
            window=self._effective_window(),
            tail=self._settings.tail_rule,
            global_batch_size=self._global_batch_size(ranks),
        ).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; see `DataLoader.load_state_dict`."""
        loaded = LoaderState.parse(state)
        self._check_fits(loaded)
        self._seed, self._window, self._shuffle = loaded.seed, loaded.window, loaded.shuffle
        self._next_epoch, self._next_position = loaded.epoch, loaded.position
        self._loaded = True
        self._pass = None
        self._agreed = False

    def _check_fits(self, loaded: LoaderState) -> None:
        name, fingerprint = self._dataset.data.name, self._dataset.fingerprint
        if loaded.fingerprint != fingerprint:
            raise StateError(
                f"the state is of another data set: its fingerprint is {loaded.fingerprint}, {name} has {fingerprint}; "
                "load it into a loader of the data it was taken with"
            )
        if loaded.position > len(self._dataset):
            raise StateError(
                f"the state is at sample {loaded.position} of an epoch, {name} has {len(self._dataset)}; it is damaged"
            )
        given: dict[str, tuple[Any, Any]] = {
            "tail (drop_last)": (self._settings.tail_rule, loaded.tail),
        }
        if self._settings.shuffle is not None:
            given["shuffle"] = (self._settings.shuffle, loaded.shuffle)
        if self._settings.seed is not None:
            given["seed"] = (self._settings.seed, loaded.seed)
        if self._settings.window is not None and loaded.shuffle:
            given["window"] = (self._effective_window(), loaded.window)
        differing = [
            f"{key} is {ours!r} here and {theirs!r} in the state"
            for key, (ours, theirs) in given.items()
            if ours != theirs
        ]
        if differing:
            raise StateError(
                f"the state contradicts what this loader was given: {'; '.join(differing)}; make the loader with the "
                "state's settings (seed and window may be left out: they are taken from the state)"
            )

    # -- statistics --------------------------------------------------------------------------------------------------

    def reset_stats(self) -> None:
        """Begin to count anew, with the next pass."""
        self._room.reset_stats()

    def stats(self) -> LoaderStats:
        """Where the time went; see `LoaderStats`."""
        return self._room.stats()


def _number_in(plan: OrderPlan, batch: int) -> int:
    number = whole_number("batch", batch)
    if not 0 <= number < plan.batches:
        raise ConfigError(f"batch={number}: this pass has {plan.batches} batches, and they count from 0")
    return number
