"""loader: order in, tensors out. Decode, transforms, batches, state and statistics; it knows no model.

`DataLoader` and `ShardDataset` are the public names; `transforms` declares what is done to samples.
"""

from __future__ import annotations

from forebay.loader import transforms
from forebay.loader.dataloader import DataLoader
from forebay.loader.dataset import ShardDataset
from forebay.loader.decode import MAX_PIXELS, decode_image, decode_mask
from forebay.loader.stats import LoaderStats

__all__ = ["MAX_PIXELS", "DataLoader", "LoaderStats", "ShardDataset", "decode_image", "decode_mask", "transforms"]
