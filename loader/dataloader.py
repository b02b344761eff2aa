"""`DataLoader`: torch's face, and the choice of the engine behind it. It holds no machinery of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import torch
import torch.utils.data
from torch.utils.data import Dataset, Sampler

from forebay.errors import ConfigError
from forebay.loader.dataset import ShardDataset
from forebay.loader.settings import PREFETCH_NBYTES, ShardLoaderSettings
from forebay.loader.shard_loader import ShardLoader
from forebay.loader.stats import LoaderStats
from forebay.loader.transforms import BatchTransform

__all__ = ["DataLoader"]


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader, for shards: the same arguments in the same order, and batches that are there before the step.

    A `ShardDataset` is read by threads of this process, in an order that depends on data, `seed` and epoch alone: not
    on the number of threads, ranks, or the batch size. Batches are dicts of tensors by output name. Each `iter()`
    begins the next epoch, the first is 0; `state_dict()` after any batch, loaded into another loader, goes on with the
    very next one. Any other data set goes to torch's own machinery, unchanged.

    Args:
        dataset: a `ShardDataset`, or any torch data set.
        batch_size: samples a batch of this rank.
        shuffle: mix the samples; False keeps the order of storage, None too, unless a loaded state says otherwise.
        sampler: refused for shards: the order is a function that ranks, cache and state build on.
        batch_sampler: likewise.
        num_workers: threads of this process that decode; 0 means its share of the cores that it may use.
        collate_fn: refused for shards: batches are made in place; see `batch_transforms`.
        pin_memory: give tensors in pinned memory (where there is a CUDA device).
        drop_last: leave out a last batch that is not full. The default keeps it, shorter, on every rank.
        timeout: seconds after which a batch that has not come is a `StallError`; 0 waits.
        worker_init_fn: refused for shards: there are no worker processes.
        multiprocessing_context: likewise.
        generator: where a `seed` that is not given is drawn from; None means torch's global one.
        prefetch_factor: batches made ahead; 2 when None.
        persistent_workers: of no consequence for shards: threads start in less than a millisecond.
        pin_memory_device: of no consequence, as in torch since 2.8.
        in_order: of no consequence for shards: batches always come in order.
        seed: of order and augmentation; None draws one on rank 0 and sends it to all.
        global_batch_size: samples a batch over all ranks, instead of `batch_size`.
        window: shards that the shuffle mixes; None means 64, or all when there are at most 128.
        on_error: "raise" ends at a sample that does not decode; "skip" fills its place, and no other, from its shard.
        max_bad: bad samples that "skip" tolerates: a count, or a rate when below 1; None means 0.1 %, and at least 10.
        batch_transforms: act on whole batches of this rank, such as `T.MixUp(0.2)`.
        device: where batches go, on a stream of its own, ahead of the step; None leaves them on the CPU.
        rank: this process among the readers; None asks torch.distributed.
        world_size: of these readers.
        prefetch_nbytes: bytes that batches made ahead may take; one always fits. 2 GiB.
        decode: "native" decodes with the kernel, which looks only at what a crop needs, "library" with simplejpeg and
            torch, to the same pixels; "dali" with NVIDIA DALI, on the GPU when `device` is one, in the same order and
            with the same windows, to pixels that differ by a grey level. "auto" takes DALI on a GPU, else the kernel,
            else the libraries: what is there and works; `stats().decoder` says which, and why.

    Raises:
        ConfigError: settings that cannot work, each with what they would lead to.
    """

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
        prefetch_nbytes: int = PREFETCH_NBYTES,
        decode: Literal["auto", "dali", "native", "library"] = "auto",
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
        self.prefetch_nbytes = prefetch_nbytes
        self.decode = decode
        self._shards: ShardLoader | None = None
        if isinstance(dataset, ShardDataset):
            self._refuse_for_shards(
                sampler=sampler,
                batch_sampler=batch_sampler,
                collate_fn=collate_fn,
                worker_init_fn=worker_init_fn,
                multiprocessing_context=multiprocessing_context,
            )
            self._shards = ShardLoader(
                dataset,
                ShardLoaderSettings(
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
                    generator=generator,
                    decode=decode,
                ),
            )
            # torch wants workers where these are given; for shards they are settings of the threads.
            super().__init__(
                dataset,
                batch_size,
                bool(shuffle) and len(dataset) > 0,
                drop_last=drop_last,
                timeout=timeout,
                generator=generator,
            )
            self.num_workers = num_workers
            self.pin_memory = pin_memory
            self.prefetch_factor = prefetch_factor
        else:
            self._refuse_for_others(dataset)
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

    @staticmethod
    def _refuse_for_shards(**given: Any) -> None:
        reasons = {
            "sampler": "it has its own order, which cache, ranks and state build on; use shuffle=, seed= and window=",
            "batch_sampler": "it has its own batches; use batch_size= or global_batch_size=, shuffle= and seed=",
            "collate_fn": "its batches are made in place; use transforms= for samples, batch_transforms= for batches",
            "worker_init_fn": "it is read by threads, no worker process would call this; leave it out",
            "multiprocessing_context": "it is read by threads of this process; leave it out",
        }
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name}= cannot be used with a ShardDataset: {reasons[name]}")

    def _refuse_for_others(self, dataset: object) -> None:
        defaults: Mapping[str, Any] = {
            "seed": None,
            "global_batch_size": None,
            "window": None,
            "on_error": "raise",
            "max_bad": None,
            "device": None,
            "rank": None,
            "world_size": None,
            "prefetch_nbytes": PREFETCH_NBYTES,
            "decode": "auto",
        }
        given = [name for name, default in defaults.items() if getattr(self, name) != default]
        given += ["batch_transforms"] if self.batch_transforms else []
        if given:
            raise ConfigError(
                f"{', '.join(given)}: only for a ShardDataset, and this is a {type(dataset).__name__}; write it as "
                "shards with ShardWriter or `forebay shard`, or leave these out"
            )

    def _shard_loader(self, method: str) -> ShardLoader:
        if self._shards is None:
            raise ConfigError(
                f"DataLoader.{method} needs a ShardDataset, and this is a {type(self.dataset).__name__}; write it as "
                "shards with ShardWriter or `forebay shard`"
            )
        return self._shards

    def __iter__(self) -> Any:
        return super().__iter__() if self._shards is None else self._shards.begin()

    def __getstate__(self) -> Any:
        if self._shards is not None:
            raise TypeError(
                "a DataLoader of shards does not go to another process: it has threads and open files; pass the "
                "ShardDataset, which does, and make the loader there; state_dict() tells where it stands"
            )
        return super().__getstate__()

    def __len__(self) -> int:
        return super().__len__() if self._shards is None else len(self._shards)

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter()` begin epoch `epoch`, from its start."""
        self._shard_loader("set_epoch").set_epoch(epoch)

    def state_dict(self, *, batches: int | None = None) -> dict[str, Any]:
        """The state after the newest batch that the loop has received: a few plain JSON values, equal on every rank.

        Args:
            batches: instead, the state after this many batches of the newest `iter()`, for whoever reads ahead.
        """
        return self._shard_loader("state_dict").state_dict(batches)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next `iter()` go on where `state_dict` was taken, on any number of ranks and threads.

        Raises:
            StateError: of other data, or it contradicts a setting that was given. Nothing is changed then.
        """
        self._shard_loader("load_state_dict").load_state_dict(state_dict)

    def stats(self) -> LoaderStats:
        """Where the time went so far: by stage, and how long the training loop waited."""
        return self._shard_loader("stats").stats()

    def reset_stats(self) -> None:
        """Begin to count anew, for instance after the first epoch."""
        self._shard_loader("reset_stats").reset_stats()

    def close(self) -> None:
        """Stop reading ahead, and leave no thread, lock or open file. Calling it again does nothing."""
        if self._shards is not None:
            self._shards.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
