"""loader: order in, tensors out. Decode, transforms, batches, state and statistics; it knows no model.

`DataLoader` and `ShardDataset` are the public names; `transforms` declares what is done to samples. `native_version`
and `why_not` tell whether the native kernel is there; `dali_version`, `why_no_dali`, `probe` and their neighbours tell
the same of DALI.
"""

from __future__ import annotations

from forebay.loader import transforms
from forebay.loader.dali_probe import (
    dali_version,
    install_line,
    nvimagecodec_version,
    pick_decoder,
    probe,
    why_no_dali,
)
from forebay.loader.dataloader import DataLoader
from forebay.loader.dataset import ShardDataset
from forebay.loader.decode import MAX_PIXELS, decode_image, decode_mask
from forebay.loader.decoded_warm import DecodedWarmed, warm_decoded
from forebay.loader.jpeg_engines import find_engines
from forebay.loader.kernel import native_version, why_not
from forebay.loader.media_checks import check_audio, check_video
from forebay.loader.stats import LoaderStats

__all__ = [
    "MAX_PIXELS",
    "DataLoader",
    "DecodedWarmed",
    "LoaderStats",
    "ShardDataset",
    "check_audio",
    "check_video",
    "dali_version",
    "decode_image",
    "decode_mask",
    "find_engines",
    "install_line",
    "native_version",
    "nvimagecodec_version",
    "pick_decoder",
    "probe",
    "transforms",
    "warm_decoded",
    "why_no_dali",
    "why_not",
]
