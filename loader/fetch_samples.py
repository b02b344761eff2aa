"""The samples of one batch from a map-style data set: errors that name the index, and several at a time on request.

It calls the data set exactly as torch would, once a sample; it knows no worker and no queue.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import MapDataPipe, get_worker_info

from forebay.loader.fetch_replacements import BadFetch, Replacements

__all__ = ["FetchSettings", "SampleFetcher"]

_MAP_STYLE = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchSettings:
    """How samples are fetched."""

    threads: int = 1
    """Samples of one batch that are fetched side by side."""
    size: int | None = None
    """Samples of the data set, among which one is drawn for a bad one's place; None: the first bad one is raised."""
    seed: int = 0
    """Of these draws."""
    epoch: int = 0
    """Of the first pass."""

    def seeded(self, seed: int) -> FetchSettings:
        """The same with the base seed of a pass."""
        return replace(self, seed=seed)

    def wraps(self, dataset: object, kind: int) -> bool:
        """Whether a data set of torch's `kind` is fetched from by a `SampleFetcher`."""
        return kind == _MAP_STYLE and not isinstance(dataset, MapDataPipe)

    @property
    def is_plain(self) -> bool:
        """Whether it does what torch does."""
        return self.threads == 1 and self.size is None


class SampleFetcher:
    """A data set for torch's fetcher, which asks it for a batch's samples or, without batches, for one.

    Args:
        dataset: the user's; its own `__getitems__` is used when it has one.
        settings: how.
        report: told of each sample that was replaced.
    """

    def __init__(self, dataset: Any, settings: FetchSettings, report: Callable[[BadFetch], None]) -> None:
        self._dataset = dataset
        self._settings = settings
        self._report = report
        self._replacements: Replacements | None = None
        if settings.size is not None:
            self._replacements = Replacements(settings.seed, settings.epoch, settings.size)
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def __getitem__(self, index: Any) -> Any:
        sample, bad = self._fetch(index)
        self._tell(bad)
        return sample

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        s = self._settings
        many = getattr(self._dataset, "__getitems__", None)
        if many and s.is_plain:
            try:
                return many(indices)
            except Exception as error:
                error.add_note(f"while the data set's __getitems__ fetched the samples {_shown(indices)}{_where()}")
                raise
        if s.threads > 1 and len(indices) > 1:
            fetched = self._side_by_side(indices)
        elif self._replacements is not None:
            fetched = [self._fetch(index) for index in indices]
        else:
            return self._one_by_one(indices)
        for _, bad in fetched:
            self._tell(bad)
        return [sample for sample, _ in fetched]

    def _one_by_one(self, indices: Sequence[Any]) -> list[Any]:
        samples, dataset, index = [], self._dataset, None
        try:
            for index in indices:
                samples.append(dataset[index])
        except Exception as error:
            error.add_note(_failed(index, indices))
            raise
        return samples

    def _fetch(self, index: Any) -> tuple[Any, list[BadFetch]]:
        """One sample, and the bad ones met on the way to it."""
        if self._replacements is not None:
            return self._replacements.fetch(self._dataset, index)
        try:
            return self._dataset[index], []
        except Exception as error:
            error.add_note(_failed(index, None))
            raise

    def _side_by_side(self, indices: Sequence[Any]) -> list[tuple[Any, list[BadFetch]]]:
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(self._settings.threads, "forebay-fetch")
        futures = [self._pool.submit(self._fetch, index) for index in indices]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _tell(self, bad: Sequence[BadFetch]) -> None:
        for each in bad:
            self._report(each)

    def next_epoch(self) -> None:
        """A next pass begins."""
        if self._replacements is not None:
            self._replacements.epoch += 1

    def close(self) -> None:
        """End the threads, which finish the samples in hand."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _where() -> str:
    info = get_worker_info()
    return "" if info is None else f", in worker {info.id} (pid {os.getpid()})"


def _failed(index: Any, indices: Sequence[Any] | None) -> str:
    among = "" if indices is None else f", in the batch of the samples {_shown(indices)}"
    return f"while the data set fetched sample {index!r:.200}{among}{_where()}"


def _shown(indices: Sequence[Any]) -> str:
    """Indices in a length that a message can bear."""
    shown = ", ".join(f"{index!r:.40}" for index in indices[:8])
    return f"[{shown}, ... {len(indices)} in all]" if len(indices) > 8 else f"[{shown}]"
