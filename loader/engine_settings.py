"""What the engine is given for one pass, and what it gives back for each batch: values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from forebay.errors import SampleError
from forebay.loader.batch_plans import BatchPlan
from forebay.loader.decoded_pass import DecodedSettings
from forebay.loader.head_work import Decoder
from forebay.loader.mixing import BatchTransform
from forebay.loader.samples import SampleMaker
from forebay.loader.tails import Tail
from forebay.sharding import StoredDataset

__all__ = ["Delivery", "EngineSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """All that fixes what one pass delivers, and with how much memory and how many threads."""

    data: StoredDataset
    maker: SampleMaker
    virtual: tuple[str, ...]
    """Which of `__index__`, `__valid__` and `__weight__` the user wants."""
    partial: bool
    """Whether outputs were left out, so that what is not read is counted."""
    plan: BatchPlan
    """Which samples each batch is of."""
    seed: int
    epoch: int
    threads: int
    """That decode: of the native kernel, and as many that make in Python what it leaves."""
    decoder: Decoder
    """What decodes the heads of programs."""
    tails: tuple[Tail | None, ...]
    """By program, steps that are done to the whole batch."""
    prefetch: int
    """Batches in the making or ready, the one in the user's hands not counted."""
    prefetch_nbytes: int
    """Bytes that these may take together; one batch always fits."""
    on_error: Literal["raise", "skip"]
    batch_transforms: tuple[BatchTransform, ...]
    pin_memory: bool
    device: torch.device | None
    decoded: DecodedSettings | None = None
    """The decoded cache, if there is to be one."""


@dataclass(slots=True)
class Delivery:
    """A batch for the training loop, with what is to be said about it."""

    batch: dict[str, Any]
    samples: int
    bad: list[SampleError]
    excess: int = 0
    """Samples of shards of another node."""
    unread_nbytes: float = 0.0
    """Bytes of the samples that were left out."""
    copied: torch.cuda.Event | None = None
