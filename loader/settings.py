"""What the loader of shards is told, checked before anything starts."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from forebay.errors import ConfigError
from forebay.loader.batches import Tail
from forebay.loader.transforms import BatchTransform

__all__ = ["PREFETCH_NBYTES", "ShardLoaderSettings", "whole_number"]

MOST_THREADS = 1024
PREFETCH_NBYTES = 2 << 30
"""Bytes that batches made ahead may take: 50 batches of 256 float32 images of 224 pixels."""


_WHOLE_NUMBERS = (
    "batch_size", "global_batch_size", "threads", "prefetch", "prefetch_nbytes", "seed", "window", "nodes"
)  # fmt: skip
_ARGUMENTS = {"threads": "num_workers", "prefetch": "prefetch_factor", "timeout_s": "timeout"}


def whole_number(name: str, value: object) -> int:
    """`value` as an int; numpy's integers are taken, floats, bools and text are not.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ConfigError(f"{name}={value!r}; give a whole number")
    return operator.index(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardLoaderSettings:
    """What `DataLoader` was given, for a `ShardDataset`; its docstring says what each is."""

    batch_size: int | None
    global_batch_size: int | None
    shuffle: bool | None
    """None: not said, so that a state may."""
    drop_last: bool
    threads: int
    prefetch: int | None
    prefetch_nbytes: int
    timeout_s: float
    seed: int | None
    window: int | None
    on_error: Literal["raise", "skip"]
    max_bad: float | None
    batch_transforms: tuple[BatchTransform, ...]
    pin_memory: bool
    device: torch.device | str | None
    rank: int | None
    world_size: int | None
    mesh: Any
    data_dims: Sequence[str] | None
    nodes: int | None
    tail: Tail | None
    """None: as `drop_last` says."""
    generator: torch.Generator | None
    decode: Literal["auto", "dali", "native", "library"]
    workers: Literal["process", "thread"]

    def __post_init__(self) -> None:
        for name in _WHOLE_NUMBERS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole_number(_ARGUMENTS.get(name, name), value))
        for name in ("timeout_s", "max_bad"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int | float):
                raise ConfigError(f"{_ARGUMENTS.get(name, name)}={value!r}; give a number")
        if self.workers not in ("process", "thread"):
            raise ConfigError(f'workers={self.workers!r}; give "process" or "thread"')
        if self.decode not in ("auto", "dali", "native", "library"):
            raise ConfigError(f'decode={self.decode!r}; give "auto", "dali", "native" or "library"')
        self._check_batch_size()
        self._check_tail()
        if self.threads < 0:
            raise ConfigError(
                f"num_workers={self.threads}; give a number of decode threads, or 0 for this process's share"
            )
        if self.threads > MOST_THREADS:
            raise ConfigError(
                f"num_workers={self.threads}; give at most {MOST_THREADS}, best as many as there are cores"
            )
        for transform in self.batch_transforms:
            if not isinstance(transform, BatchTransform):
                raise ConfigError(
                    f"batch_transforms: {transform!r} is none; give T.MixUp, T.CutMix, or an object of your own with "
                    "`check(schema)` and `__call__(batch, rng, schema)`, as forebay.transforms.BatchTransform says"
                )
        if self.prefetch is not None and self.prefetch < 1:
            raise ConfigError(f"prefetch_factor={self.prefetch}; give at least 1 batch ahead, or None for 2")
        if self.prefetch_nbytes <= 0:
            raise ConfigError(f"prefetch_nbytes={self.prefetch_nbytes}; give a positive number of bytes")
        if self.timeout_s < 0:
            raise ConfigError(f"timeout={self.timeout_s}; give seconds, or 0 to wait as long as it takes")
        if self.window is not None and self.window < 1:
            raise ConfigError(f"window={self.window}; give at least 1 shard, or None for the default")
        if self.seed is not None and not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed={self.seed}; give an integer from 0 to 2**63 - 1")
        if self.on_error not in ("raise", "skip"):
            raise ConfigError(f'on_error={self.on_error!r}; give "raise" or "skip"')

    @property
    def tail_rule(self) -> Tail:
        """What becomes of a last batch that is not full."""
        return self.tail or ("drop" if self.drop_last else "short")

    def _check_tail(self) -> None:
        if self.tail not in (None, "drop", "pad", "short"):
            raise ConfigError(f'tail={self.tail!r}; give "drop", "pad" or "short"')
        if self.tail is not None and self.drop_last:
            raise ConfigError(
                f"drop_last=True and tail={self.tail!r} both say what becomes of a last batch that is not full; give "
                'one: drop_last=True is tail="drop", drop_last=False is tail="short"'
            )

    def _check_batch_size(self) -> None:
        if self.global_batch_size is not None:
            if self.batch_size not in (1, None):
                raise ConfigError(
                    f"batch_size={self.batch_size} (of a rank) and global_batch_size={self.global_batch_size} (of all "
                    "ranks) are both given; give one"
                )
            if self.global_batch_size < 1:
                raise ConfigError(f"global_batch_size={self.global_batch_size}; give at least 1")
        elif self.batch_size is None:
            raise ConfigError(
                "batch_size=None: a ShardDataset is read in batches; give batch_size=1, or read dataset[i]"
            )
        elif self.batch_size < 1:
            raise ConfigError(f"batch_size={self.batch_size}; give at least 1 sample a batch")
