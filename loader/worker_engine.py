"""The choice of the iterator for any data set that is no ShardDataset: worker processes, threads, or neither.

It checks what was asked for and starts the iterator; the work is in the iterators.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe, Subset

from forebay.errors import ConfigError
from forebay.loader.dataset import ShardDataset
from forebay.loader.fetch_iterator import InProcessIterator
from forebay.loader.fetch_samples import FetchSettings
from forebay.loader.stateful_iterable import IterableState
from forebay.loader.stateful_passes import Passes
from forebay.loader.threaded_iterator import ThreadIterator
from forebay.loader.worker_context import WorkerSettings
from forebay.loader.worker_iterator import LoaderView, TorchWayIterator, WorkerIterator, shared_memory_works

__all__ = ["check_engine", "open_iterator"]

_MOST_BATCH_THREADS = 1024
_SPARE_SEGMENTS = 8


def check_engine(loader: Any, dataset: object, *, batch_sampler: object, worker_init_fn: object) -> None:
    """Refuse settings of ours that cannot work with this data set, and say what a wrapped ShardDataset loses.

    Raises:
        ConfigError: names the setting and what it would lead to.
    """
    iterable = isinstance(dataset, IterableDataset)
    if loader.workers not in ("process", "thread"):
        raise ConfigError(f'workers={loader.workers!r}; give "process" or "thread"')
    if loader.workers == "thread" and worker_init_fn is not None:
        raise ConfigError(
            'worker_init_fn cannot be used with workers="thread": it sets up a process of its own, its generators and '
            "its copy of the data set, and threads share all of these; do it in the data set's constructor"
        )
    if not 1 <= loader.batch_threads <= _MOST_BATCH_THREADS:
        raise ConfigError(f"batch_threads={loader.batch_threads}; give a number from 1 to {_MOST_BATCH_THREADS}")
    if loader.batch_threads > 1 and iterable:
        raise ConfigError(
            "batch_threads= needs a data set with indices: the samples of an iterable one come one after the other; "
            "use num_workers="
        )
    if loader.on_error not in ("raise", "skip"):
        raise ConfigError(f'on_error={loader.on_error!r}; give "raise" or "skip"')
    if loader.on_error == "skip" and iterable:
        raise ConfigError(
            'on_error="skip" needs a data set with indices: an iterable one that has raised may not go on, and nothing '
            "else can fill the place; catch the error where the sample is made"
        )
    if loader.on_error == "skip" and batch_sampler is not None:
        raise ConfigError(
            'on_error="skip" cannot be used with a batch_sampler: it chose the samples of a batch to go together, and '
            "one drawn from all would not; use batch_size= and sampler=, or catch the error in the data set"
        )
    if loader.max_bad is not None and loader.on_error != "skip":
        raise ConfigError('max_bad= counts samples that are skipped, and on_error is "raise"; pass on_error="skip"')
    if isinstance(dataset, Subset) and isinstance(_innermost(dataset), ShardDataset):
        warnings.warn(
            "a Subset of a ShardDataset is read sample by sample, in torch's order: without the cache's look-ahead, "
            "decoding by the batch, rank sharding and exact augmentation; make the ShardDataset of the shards wanted",
            UserWarning,
            stacklevel=3,
        )


def _innermost(dataset: Any) -> Any:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def open_iterator(loader: Any, passes: Passes) -> Any:
    """Begin a pass with an iterator of the kind that the loader asks for."""
    processes = loader.num_workers > 0 and loader.workers == "process"
    if processes:
        loader.check_worker_number_rationality()
    current = passes.begin(loader)
    if isinstance(loader.dataset, IterDataPipe):
        current.untold = "a DataPipe cannot be asked where it stands"
    view = LoaderView(loader)
    fetch = FetchSettings(
        threads=loader.batch_threads,
        size=len(loader.dataset) if loader.on_error == "skip" else None,
        epoch=current.epoch,
        seed=current.seed or 0,
    )
    iterator: Any
    if processes and not shared_memory_works():
        iterator = TorchWayIterator(view, current)
    elif processes:
        with_state = current.workers is not None and not isinstance(loader.dataset, IterDataPipe)
        states = tuple(IterableState.parse(worker) for worker in current.workers or ()) if with_state else None
        tasks = loader.prefetch_factor * (1 if loader.in_order else loader.num_workers)
        settings = WorkerSettings(fetch=fetch, segments=tasks + _SPARE_SEGMENTS, states=states)
        iterator = WorkerIterator(view, settings, current)
    elif loader.num_workers > 0:
        iterator = ThreadIterator(view, fetch, current)
    else:
        iterator = InProcessIterator(view, fetch, current)
    passes.follow(iterator)
    return iterator
