"""loader: order in, tensors out. Decode, transforms, batches, state and statistics; it knows no model.

`DataLoader` and `ShardDataset` are the public names; `transforms` declares what is done to samples. `native_version`
and `why_not` tell whether the native kernel is there.
"""

from __future__ import annotations

from forebay.loader import transforms
from forebay.loader.dataloader import DataLoader
from forebay.loader.dataset import ShardDataset
from forebay.loader.decode import MAX_PIXELS, decode_image, decode_mask
from forebay.loader.kernel import native_version, why_not
from forebay.loader.stats import LoaderStats

__all__ = [
    "MAX_PIXELS",
    "DataLoader",
    "LoaderStats",
    "ShardDataset",
    "decode_image",
    "decode_mask",
    "native_version",
    "transforms",
    "why_not",
]
