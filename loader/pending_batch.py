"""A batch on its way through the engine: what is known of it, what is made so far, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from forebay.errors import SampleError
from forebay.loader.decoded_output import DecodedOutput
from forebay.loader.draws import Draws
from forebay.loader.encoded import RawBatch
from forebay.loader.head_work import BatchHeads
from forebay.sharding import StoredDataset

__all__ = ["PendingBatch", "Places"]


class PendingBatch:
    """A batch in the making. Decode threads write disjoint places of it; the last one out hands it on."""

    __slots__ = (
        "bad",
        "chunks_left",
        "decoded",
        "draws",
        "excess",
        "failures",
        "heads",
        "indices",
        "is_end",
        "left",
        "made",
        "number",
        "pieces",
        "raw",
        "rows",
        "shards",
        "slots",
        "start",
        "unread_nbytes",
        "valid",
        "weight",
    )

    def __init__(self, number: int, *, is_end: bool = False) -> None:
        self.number = number
        self.is_end = is_end
        """Whether it only says that there are no more."""
        self.start = 0
        self.shards: list[int] = []
        self.rows: list[int] = []
        self.indices: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.valid: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self.weight = 1.0
        self.excess = 0
        self.unread_nbytes = 0.0
        self.raw = RawBatch()
        self.draws: list[Draws] = []
        self.heads: BatchHeads
        self.decoded: dict[int, DecodedOutput] = {}
        """By program that goes by way of the decoded cache."""
        self.slots: list[tuple[Tensor | None, ...]] = []
        self.pieces: list[tuple[tuple[Tensor, ...] | None, ...]] = []
        self.made: list[list[tuple[Any, ...]]] = []
        self.bad: dict[int, SampleError] = {}
        self.failures: dict[int, BaseException] = {}
        self.left: list[int] = []
        """Places that are made one by one."""
        self.chunks_left = 0

    def fail(self, place: int, error: BaseException) -> None:
        """Remember what went wrong with the sample at `place`; -1 is the batch as a whole."""
        self.failures[place] = error

    def failure(self) -> BaseException | None:
        """The failure of the earliest sample, whichever thread was first."""
        return self.failures[min(self.failures)] if self.failures else None


class Places(Sequence[str]):
    """Names of samples, spelt out only when an error needs one."""

    def __init__(self, data: StoredDataset, batch: PendingBatch) -> None:
        self._data, self._batch = data, batch

    def __len__(self) -> int:
        return len(self._batch.rows)

    def __getitem__(self, i: Any) -> Any:
        return f"shard {self._data.shard_name(self._batch.shards[i])}, row {self._batch.rows[i]}"
