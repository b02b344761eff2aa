"""forebay: training data for PyTorch, always there before the step.

    from forebay import DataLoader, ShardDataset, ShardWriter, transforms as T

Names are imported when first used, so that `import forebay` and `forebay --help` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay import errors
    from forebay.cache import CacheConfig
    from forebay.loader import DataLoader, ShardDataset, transforms
    from forebay.sharding import ShardWriter
    from forebay.trainers import DataParallelTrainer, PipelineTrainer

__all__ = [
    "CacheConfig",
    "DataLoader",
    "DataParallelTrainer",
    "PipelineTrainer",
    "ShardDataset",
    "ShardWriter",
    "errors",
    "transforms",
]

_HOMES = {
    "CacheConfig": "forebay.cache",
    "DataLoader": "forebay.loader",
    "DataParallelTrainer": "forebay.trainers",
    "PipelineTrainer": "forebay.trainers",
    "ShardDataset": "forebay.loader",
    "ShardWriter": "forebay.sharding",
    "errors": "forebay",
    "transforms": "forebay.loader",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'forebay' has no attribute {name!r}; it has {__all__}")
    if name in ("errors", "transforms"):
        value: Any = importlib.import_module(f"{_HOMES[name]}.{name}")
    else:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
