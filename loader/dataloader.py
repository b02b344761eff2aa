"""`DataLoader`: torch's face, and the choice of the engine behind it. It holds no machinery of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import Dataset, Sampler, default_collate, default_convert
from typing_extensions import TypeVar  # torch needs it too; typing has defaults from Python 3.13 on

from forebay.errors import ConfigError
from forebay.loader.dataset import ShardDataset
from forebay.loader.engine_room import Room, open_room
from forebay.loader.frameworks import ShardSampler, settings_of_samplers, warn_what_accelerate_drops
from forebay.loader.refusals import refuse_for_others, refuse_for_samplers, refuse_for_shards
from forebay.loader.sampled_iterator import SampledIterator
from forebay.loader.settings import PREFETCH_NBYTES, ShardLoaderSettings, whole_number
from forebay.loader.shard_loader import ShardLoader
from forebay.loader.stateful_generators import sampler_chain
from forebay.loader.stateful_passes import Passes
from forebay.loader.stats import LoaderStats
from forebay.loader.transforms import BatchTransform
from forebay.loader.worker_engine import check_engine, open_iterator
from forebay.loader.worker_iterator import LoaderView

__all__ = ["DataLoader"]

Batch_co = TypeVar("Batch_co", covariant=True, default=Any)


class DataLoader(torch.utils.data.DataLoader[Batch_co]):
    """torch's DataLoader, for shards: the same arguments in the same order, and batches that are there before the step.

    A `ShardDataset` is read by threads of this process, in an order that depends on data, `seed` and epoch alone: not
    on the number of threads, ranks, or the batch size. Batches are dicts of tensors by output name. Each `iter()`
    begins the next epoch, the first is 0; `state_dict()` after any batch, loaded into another loader, goes on with the
    very next one.

    Any other data set, map-style or iterable, gives the batches that torch's DataLoader gives for the same arguments
    and generators: order, seeds and collation are torch's own code. What differs is the way from worker processes:
    batches lie in shared memory that is used again once the last tensor, view or array of a batch is gone, so keep
    them as long as you like; `tensor.is_shared()` is False. `state_dict()` works for these too: of a map-style data
    set it holds how far the order was delivered, and loading skips indices, never samples, on any number of workers;
    of an iterable one it holds where each worker stands, by the `state_dict` of the data set or its iterator or by
    reading again what was delivered, and wants the same number of workers. With `generator=None` the order comes from
    torch's global generator, which the first `iter()` after loading puts back to where that epoch began. What
    workers draw for augmentation in the middle of an epoch is not restored. Worker processes each hold a copy of the
    data set; a million Python strings in a list grow the memory of each, in an array they do not.

    Args:
        dataset: a `ShardDataset`, or any torch data set.
        batch_size: samples a batch of this rank.
        shuffle: mix the samples; False keeps the order of storage, None too, unless a loaded state says otherwise.
        sampler: gives the order by index. Of shards too: this rank then reads what its sampler says, and the cache
            looks ahead in it as far as batches are made ahead. Without one, shards have an order of their own, which
            ranks share out, the cache knows ahead, and any number of ranks goes on with.
        batch_sampler: likewise, whole batches.
        num_workers: threads of this process that decode, 0 means its share of the cores that it may use; with Python
            callables among the transforms, worker processes that make whole batches, but with 0, `workers="thread"` or
            `decode="dali"`.
        collate_fn: refused for shards: batches are made in place; see `batch_transforms`.
        pin_memory: give tensors in pinned memory (where there is a CUDA device).
        drop_last: leave out a last batch that is not full. The default keeps it, shorter, on every rank.
        timeout: seconds after which a batch that has not come is a `StallError`; 0 waits.
        worker_init_fn: refused for shards: nothing but the transforms runs there.
        multiprocessing_context: likewise.
        generator: where a `seed` that is not given is drawn from; None means torch's global one.
        prefetch_factor: batches made ahead; 2 when None.
        persistent_workers: of no consequence for shards: threads start in less than a millisecond.
        pin_memory_device: of no consequence, as in torch since 2.8.
        in_order: of no consequence for shards: batches always come in order.
        seed: of order and augmentation; None draws one on rank 0 and sends it to all.
        global_batch_size: samples a batch over all ranks, instead of `batch_size`.
        window: shards that the shuffle mixes; None means 64, or all when there are at most 128.
        on_error: "raise" ends at a sample that does not decode; "skip" fills its place, and no other, from its shard,
            or, for map-style data sets that raise, by the sample at an index drawn from base seed, epoch and index.
        max_bad: bad samples that "skip" tolerates: a count, or a rate when below 1; None means 0.1 %, and at least 10.
        batch_transforms: act on whole batches of this rank, such as `T.MixUp(0.2)`.
        device: where batches go, on a stream of its own, ahead of the step; None leaves them on the CPU.
        rank: this process among the readers; None asks torch.distributed.
        world_size: of these readers.
        mesh: of torch, instead of both: ranks with the same coordinates in `data_dims` get the same batches, as tensor,
            context and pipeline parallel ranks need. Every rank of the default process group makes the loader.
        data_dims: names of the mesh's dims along which ranks read different samples; `("dp",)` when None.
        nodes: that ranks are spread over, neighbours together: each caches a part of the shards, and its ranks take the
            samples of these, up to their share of the batch. None asks torchrun's environment; 1 divides each batch
            into contiguous slices. Which samples form a global batch does not depend on it.
        tail: what becomes of a last batch that is not full, over all ranks: "drop" leaves it out, "short" divides it as
            evenly as can be, "pad" fills it up with repetitions whose `"__valid__"` is false. None goes by `drop_last`.
            No rank is ever without a batch: of fewer samples than ranks, some get one that is not valid.
        prefetch_nbytes: bytes that batches made ahead may take; one always fits. 2 GiB.
        workers: where Python makes the samples: "process", or "thread" for data sets, and callables among the
            transforms of shards, that release the GIL or cannot be pickled. Threads share one `random`, numpy and
            torch generator: the order is torch's, values drawn from these are not. An iterable data set has one thread.
        batch_threads: of map-style data sets: samples of one batch that are fetched side by side, by threads in each
            worker, for data sets that wait on storage. The data set must bear it.
        decode: "native" decodes with the kernel, which looks only at what a crop needs, "library" with simplejpeg and
            torch, to the same pixels; "dali" with NVIDIA DALI, on the GPU when `device` is one, in the same order and
            with the same windows, to pixels that differ by a grey level. "auto" takes DALI on a GPU, else the kernel,
            else the libraries: what is there and works; `stats().decoder` says which, and why.

    Raises:
        ConfigError: settings that cannot work, each with what they would lead to.
    """

    _shards: ShardLoader | None = None
    _sampled: Room | None = None
    _passes: Passes = Passes(None)
    _prepared: bool = False

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        global_batch_size: int | None = None,
        window: int | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        max_bad: float | None = None,
        batch_transforms: Sequence[BatchTransform] = (),
        device: torch.device | str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        data_dims: Sequence[str] | None = None,
        nodes: int | None = None,
        tail: Literal["drop", "pad", "short"] | None = None,
        prefetch_nbytes: int = PREFETCH_NBYTES,
        decode: Literal["auto", "dali", "native", "library"] = "auto",
        workers: Literal["process", "thread"] = "process",
        batch_threads: int = 1,
    ) -> None:
        # Before torch's own constructor, which freezes some attributes and reads none of these.
        self.seed = seed
        self.global_batch_size = global_batch_size
        self.window = window
        self.on_error = on_error
        self.max_bad = max_bad
        self.batch_transforms = batch_transforms
        self.device = device
        self.rank = rank
        self.world_size = world_size
        self.mesh = mesh
        self.data_dims = data_dims
        self.nodes = nodes
        self.tail = tail
        self.prefetch_nbytes = prefetch_nbytes
        self.decode = decode
        self.workers = workers
        self.batch_threads = whole_number("batch_threads", batch_threads)
        self._shards = self._sampled = None
        self._passes = Passes(None if isinstance(dataset, ShardDataset) else max_bad)
        if isinstance(dataset, ShardDataset):
            meant = settings_of_samplers(dataset, sampler, batch_sampler)
            if meant is not None:
                sampler = batch_sampler = None
                batch_size = meant.get("batch_size", batch_size)
                drop_last = meant.get("drop_last", drop_last)
                tail = "short" if tail == "drop" and "drop_last" in meant else tail
                shuffle = meant["shuffle"]
            refuse_for_shards(
                collate_fn=None if collate_fn in (default_collate, default_convert) else collate_fn,
                worker_init_fn=worker_init_fn,
                multiprocessing_context=multiprocessing_context,
                batch_threads=None if batch_threads == 1 else batch_threads,
            )
            settings = ShardLoaderSettings(
                batch_size=batch_size,
                global_batch_size=global_batch_size,
                shuffle=shuffle,
                drop_last=drop_last,
                threads=num_workers,
                prefetch=prefetch_factor,
                prefetch_nbytes=prefetch_nbytes,
                timeout_s=timeout,
                seed=seed,
                window=window,
                on_error=on_error,
                max_bad=max_bad,
                batch_transforms=tuple(batch_transforms),
                pin_memory=pin_memory,
                device=device,
                rank=rank,
                world_size=world_size,
                mesh=mesh,
                data_dims=data_dims,
                nodes=nodes,
                tail=tail,
                generator=generator,
                decode=decode,
                workers=workers,
            )
            # torch wants workers where these are given; for shards they are settings of the threads.
            any_dataset: Dataset[Any] = dataset
            if sampler is None and batch_sampler is None:
                self._shards = ShardLoader(dataset, settings)
                super().__init__(
                    any_dataset,
                    batch_size,
                    sampler=ShardSampler(self._shards, dataset, shuffle),
                    drop_last=drop_last,
                    timeout=timeout,
                    generator=generator,
                )
                self.use_stateful_dataloader = True  # accelerate's save_state asks for it
            else:
                refuse_for_samplers(self, batch_sampler)
                super().__init__(
                    any_dataset,
                    batch_size,
                    shuffle,
                    sampler,
                    batch_sampler,
                    drop_last=drop_last,
                    timeout=timeout,
                    generator=generator,
                )
                self._sampled = open_room(dataset, settings)
            self.num_workers = num_workers
            self.pin_memory = pin_memory
            self.prefetch_factor = prefetch_factor
        else:
            refuse_for_others(self, dataset)
            check_engine(self, dataset, batch_sampler=batch_sampler, worker_init_fn=worker_init_fn)
            super().__init__(
                dataset,
                batch_size,
                shuffle,
                sampler,
                batch_sampler,
                num_workers,
                collate_fn,
                pin_memory,
                drop_last,
                timeout,
                worker_init_fn,
                multiprocessing_context,
                generator,
                prefetch_factor=prefetch_factor,
                persistent_workers=persistent_workers,
                pin_memory_device=pin_memory_device,
                in_order=in_order,
            )

    def __iter__(self) -> Any:
        if self._shards is not None:
            return self._shards.begin(even=getattr(self.batch_sampler, "even_batches", False))
        iterator: Any = self._iterator
        if iterator is not None and self.persistent_workers and self.num_workers > 0:
            if self._passes.pending:
                iterator.close()
                self._iterator = None
            else:
                iterator.current = self._passes.begin(self, iterator.current.sampler)
        return super().__iter__()

    def _get_iterator(self) -> Any:
        return open_iterator(self, self._passes) if self._sampled is None else self._sampled_iterator(self._sampled)

    def _sampled_iterator(self, room: Room) -> SampledIterator:
        iterator = SampledIterator(LoaderView(self), room, self._passes.begin(self))
        self._passes.follow(iterator)
        return iterator

    @property
    def _is_accelerate_prepared(self) -> bool:
        """What accelerate asks before it prepares a loader; one of shards divides by rank itself and stays as it is."""
        if self._shards is None:
            if not self._prepared:
                warn_what_accelerate_drops(self)
            return self._prepared
        if not self._shards.prepared:
            self._shards.prepared = True
            if self.batch_sampler is not None:
                self.batch_sampler.even_batches = True  # type: ignore[attr-defined]  # accelerate's name and default
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        self._prepared = prepared

    def __getstate__(self) -> Any:
        if self._shards is not None or self._sampled is not None:
            raise TypeError(
                "a DataLoader of shards does not go to another process: it has threads and open files; pass the "
                "ShardDataset, which does, and make the loader there; state_dict() tells where it stands"
            )
        return super().__getstate__()

    def __len__(self) -> int:
        return super().__len__() if self._shards is None else len(self._shards)

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter()` begin epoch `epoch`, from its start; a loaded state with batches left keeps its place.

        Of another data set than shards: passed on to sampler, batch sampler and data set, those that have a
        `set_epoch`.
        """
        if self._shards is not None:
            self._shards.set_epoch(epoch)
            return
        self._passes.set_epoch(epoch)
        chain = [*sampler_chain(self), self.sampler, self.dataset]
        for i, part in enumerate(chain):
            if callable(getattr(part, "set_epoch", None)) and not any(part is earlier for earlier in chain[:i]):
                part.set_epoch(epoch)

    def state_dict(self, *, batches: int | None = None) -> dict[str, Any]:
        """The state after the newest batch that the loop has received: a few plain JSON values.

        Of shards it is equal on every rank; of another data set it speaks of this loader alone.

        Args:
            batches: instead, the state after this many batches of the newest `iter()`, for whoever reads ahead; of
                shards only.
        """
        if self._shards is not None:
            return self._shards.state_dict(batches)
        if batches is not None:
            raise ConfigError("state_dict(batches=...) needs a ShardDataset, whose order is arithmetic; leave it out")
        return self._passes.state_dict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next `iter()` go on where `state_dict` was taken.

        Of shards on any number of ranks and threads; of another data set as the class says.

        Raises:
            StateError: of other data, or it contradicts a setting that was given. Nothing is changed then.
        """
        if self._shards is not None:
            self._shards.load_state_dict(state_dict)
        else:
            self._passes.load_state_dict(self, state_dict)

    def only(self, outputs: Sequence[str]) -> None:
        """Give only these outputs from the next `iter()` on, and read only the columns that they need.

        For the stages of a pipelined model: the first needs inputs, the last targets, one between them nothing, `[]`.
        Order, random numbers and the samples of each batch stay those of the whole data set. `stats()`, which begins
        anew, tells the bytes that are not read; a pass that is under way is closed.

        Args:
            outputs: names of outputs of the `ShardDataset` (`dataset.outputs` are all), and virtual columns.

        Raises:
            ConfigError: there is no such output, or a setting needs those that are left out. Nothing is changed then.
        """
        if self._shards is not None:
            self._shards.only(outputs)
        elif self._sampled is not None:
            self._sampled = self._sampled.only(cast("ShardDataset", self.dataset).only(outputs))
        else:
            raise ConfigError(
                "only() chooses among the outputs of a ShardDataset; of this data set, take what you need"
            )

    def ids_of(self, *, batch: int) -> npt.NDArray[np.int64]:
        """The samples of one of this rank's batches, without reading any.

        No message is sent, but for a seed that nobody gave, before the first `iter()`: then all ranks must ask.

        Args:
            batch: its number in the newest `iter()`, or the next one before there is any, from 0. After a resume in
                mid-epoch 0 is the first batch that was not delivered before.

        Returns:
            int64 (B,), indices in the data set, repetitions in a last batch included. Where a sample was bad and
            replaced, the bad one's.

        Raises:
            ConfigError: there is no such batch, or the order is not the loader's own.
        """
        if self._shards is None:
            raise ConfigError("ids_of() needs a ShardDataset without a sampler, whose order is arithmetic")
        return self._shards.ids_of(batch)

    def weight_of(self, *, batch: int) -> float:
        """What `"__weight__"` is of one of this rank's batches, counted as for `ids_of`; as a float.

        A mean loss over the batch's valid samples, times this and averaged over the ranks, is the mean over the global
        batch. It is 1 where each rank has as many samples.

        Raises:
            ConfigError: as `ids_of`.
        """
        if self._shards is None:
            raise ConfigError("weight_of() needs a ShardDataset without a sampler, whose order is arithmetic")
        return self._shards.weight_of(batch)

    def stats(self) -> LoaderStats:
        """Where the time went so far: by stage, and how long the training loop waited."""
        of_shards = self._shards or self._sampled
        return self._passes.stats(self.num_workers) if of_shards is None else of_shards.stats()

    def reset_stats(self) -> None:
        """Begin to count anew, for instance after the first epoch."""
        (self._shards or self._sampled or self._passes).reset_stats()

    def close(self) -> None:
        """Stop reading ahead, and leave no thread, process, lock or open file. Calling it again does nothing."""
        if self._shards is not None:
            self._shards.close()
            return
        self._passes.close()
        if self._sampled is not None:
            self._sampled.close()
        self._iterator = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
