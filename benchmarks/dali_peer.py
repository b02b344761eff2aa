"""DALI by itself, as its manual and examples set it up for ImageNet: its file reader, its random crop, its iterator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

__all__ = ["DaliPeer"]

_DEVICE_PADDING = 211_025_920
_HOST_PADDING = 140_544_512
"""What DALI's ImageNet examples reserve for nvJPEG, so that it does not have to allocate on the way."""


class DaliPeer:
    """DALI's own way from files to batches of random windows, resized and mirrored: uint8 (n, 3, size, size).

    `readers.file` shuffles, `decoders.image_random_crop` draws the windows, so they are not those of this loader; their
    distribution is the same. Chroma is not smoothed, which is DALI's default and faster.

    Args:
        files: path and label of each sample.
        size: side of the square.
        batch_size: images a batch.
        threads: of DALI's on the CPU.
        device_id: the GPU's number; None decodes on the CPU.
        hardware_share: of the images, that the GPU's JPEG engines decode, 0 to 1; None on the CPU.
        largest: height and width that no image exceeds.
        seed: of order and windows.
    """

    def __init__(
        self,
        files: Sequence[tuple[str, int]],
        *,
        size: int,
        batch_size: int,
        threads: int,
        device_id: int | None,
        hardware_share: float | None,
        largest: tuple[int, int],
        seed: int = 0,
    ) -> None:
        from nvidia.dali.plugin.base_iterator import LastBatchPolicy
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        decoding = {"device": "cpu"} if device_id is None else _decoding(hardware_share, largest)
        pipeline = _pipeline(
            files, size, decoding, batch_size=batch_size, num_threads=threads, device_id=device_id, seed=seed
        )
        self._batches = DALIGenericIterator(
            [pipeline],
            ["image", "label"],
            reader_name="files",
            last_batch_policy=LastBatchPolicy.PARTIAL,
            prepare_first_batch=False,  # it is part of the pass, as this loader's is
        )
        self._used = False

    def batches(self) -> Iterator[Tensor]:
        """Images of the next epoch."""
        if self._used:
            self._batches.reset()
        self._used = True
        for (batch,) in self._batches:
            images: Tensor = batch["image"]
            yield images.permute(0, 3, 1, 2)


def _decoding(hardware_share: float | None, largest: tuple[int, int]) -> dict[str, Any]:
    """Arguments of the decoder on a GPU."""
    return {
        "device": "mixed",
        "hw_decoder_load": hardware_share,
        "preallocate_height_hint": largest[0],
        "preallocate_width_hint": largest[1],
        "device_memory_padding": _DEVICE_PADDING,
        "host_memory_padding": _HOST_PADDING,
    }


def _pipeline(files: Sequence[tuple[str, int]], size: int, decoding: dict[str, Any], **settings: Any) -> Any:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(**settings)  # type: ignore[untyped-decorator]
    def graph() -> tuple[Any, Any]:
        data, labels = fn.readers.file(
            files=[path for path, _ in files],
            labels=[label for _, label in files],
            random_shuffle=True,
            initial_fill=min(1024, len(files)),
            name="files",
        )
        images = fn.decoders.image_random_crop(
            data, output_type=types.RGB, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3], **decoding
        )
        images = fn.resize(images, size=[size, size], interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(images, horizontal=fn.random.coin_flip()), labels

    return graph()
