"""The process that tries one of DALI's modes: `python -m forebay.loader.dali_probe_child MODE DEVICE`.

Its last word is "good", or why the mode is not. It may crash or hang: the process that started it expects that.
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from forebay.loader.dali_graph import DaliMode, Encoded, HeadShape, build_pipeline, graph_columns
from forebay.loader.geometry import View

__all__ = ["check_pixels", "decode", "expected_pixels", "main", "make_images", "make_views", "run_graph"]

Pixels = npt.NDArray[np.uint8]
_SIZE = (40, 48)
_TOLD = 300
"""Characters of an error that are passed on."""
_BATCHES = 4
"""More than are on their way at once, so that memory is used again."""
_TOLERANCE = 1.5
"""Grey levels from Pillow's on average over a window of these smooth images. In colour, a window that is one pixel off
is 1.7 to 2.8 away; chroma that is not smoothed when it is made larger, as is a GPU's right, at most 0.7."""
_FORMS: Sequence[tuple[int, int, str, dict[str, Any]]] = (
    (96, 128, "RGB", {"subsampling": 2}),
    (127, 97, "RGB", {"subsampling": 2}),
    (200, 150, "RGB", {"subsampling": 0}),
    (65, 333, "RGB", {"subsampling": 1}),
    (150, 200, "L", {}),
    (111, 77, "L", {"progressive": True}),
    (240, 320, "RGB", {"subsampling": 2, "progressive": True}),
    (180, 180, "RGB", {"subsampling": 2, "restart_marker_rows": 1}),
)
"""Height, width, colours, and how Pillow writes it: each kind of JPEG that takes a path of its own in a codec."""


def make_images() -> list[bytes]:
    """Small JPEGs of many forms, whose pixels tell where they are."""
    return [_encode(*form) for form in _FORMS]


def _encode(height: int, width: int, colours: str, options: dict[str, Any]) -> bytes:
    y, x = np.mgrid[:height, :width].astype(np.float64)
    waves = [128 + 100 * np.sin(0.05 * x + 0.03 * y), 128 + 100 * np.cos(0.06 * y), 128 + 100 * np.sin(0.04 * (x - y))]
    picture = Image.fromarray(np.stack(waves, axis=-1).astype(np.uint8)).convert(colours)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=95, **options)
    return file.getvalue()


def make_views(batch: int) -> list[View]:
    """A window of each image, another one for each batch, resized."""
    rng = np.random.default_rng(batch)
    views = []
    for height, width, _, _ in _FORMS:
        rows, columns = rng.integers(height // 3, height + 1), rng.integers(width // 3, width + 1)
        top, left = rng.integers(0, height - rows + 1), rng.integers(0, width - columns + 1)
        window = int(top), int(left), int(rows), int(columns)
        views.append(View.of_window(window, _SIZE, flipped=bool(rng.random() < 0.5)))
    return views


def expected_pixels(data: bytes, view: View) -> Pixels:
    """What the window becomes on the CPU, by Pillow: uint8 (H, W, 3)."""
    box = (view.left, view.top, view.left + view.width, view.top + view.height)
    with Image.open(io.BytesIO(data)) as file:
        small = file.convert("RGB").resize((_SIZE[1], _SIZE[0]), Image.Resampling.BILINEAR, box=box)
    pixels = np.asarray(small)
    return pixels[:, ::-1] if view.flipped else pixels


def run_graph(
    batches: Sequence[Sequence[tuple[Encoded, View]]],
    *,
    size: tuple[int, int],
    threads: int,
    device_id: int | None,
    mode: DaliMode,
) -> Callable[[], Iterator[Any]]:
    """The loader's graph without the loader: makes DALI's outputs, (n, H, W, 3), pass after pass over some batches.

    Args:
        batches: pictures, and a whole window of each.
        size: that windows become, (height, width).
        threads: of DALI's on the CPU.
        device_id: the GPU's number; None runs it on the CPU.
        mode: how it decodes on a GPU.

    Returns:
        What begins a pass, one at a time. Each output is valid until the next.
    """
    shapes = [HeadShape(*size, crops=False)]
    heads = [([data for data, _ in batch], np.array([view for _, view in batch], np.int64)) for batch in batches]
    columns = [graph_columns(0, shapes, [head]) for head in heads]
    left = iter(columns)
    pipeline = build_pipeline(
        shapes,
        lambda: next(left),
        mode=mode,
        batch_size=max(map(len, batches)),
        threads=threads,
        device_id=device_id,
        depth=2,
    )

    def run() -> Iterator[Any]:
        nonlocal left
        left = iter(columns)
        for _ in columns:
            yield pipeline.run()[0]
        with contextlib.suppress(StopIteration):
            pipeline.run()  # notices the end
        pipeline.reset()

    return run


def decode(mode: DaliMode, device_id: int | None, images: Sequence[bytes]) -> list[Pixels]:
    """The windows of every batch as DALI makes them: by batch, uint8 (n, H, W, 3)."""
    batches = [list(zip(images, make_views(number), strict=True)) for number in range(_BATCHES)]
    outputs = run_graph(batches, size=_SIZE, threads=2, device_id=device_id, mode=mode)()
    return [np.array((out if device_id is None else out.as_cpu()).as_tensor()) for out in outputs]


def check_pixels(batches: Sequence[Pixels], images: Sequence[bytes]) -> str:
    """Compare with Pillow's: "good", or what is wrong."""
    worst, place = 0.0, (0, 0)
    for number, pixels in enumerate(batches):
        for i, (data, view) in enumerate(zip(images, make_views(number), strict=True)):
            difference = float(np.abs(pixels[i].astype(np.int16) - expected_pixels(data, view)).mean())
            worst, place = max((worst, place), (difference, (number, i)))
    if worst <= _TOLERANCE:
        return "good"
    height, width, colours, options = _FORMS[place[1]]
    return (
        f"the pixels of a window of a JPEG of {width} x {height}, {colours}, {options}, are {math.ceil(worst)} grey "
        f"levels from Pillow's on average"
    )


def main(arguments: Sequence[str]) -> None:
    """Try the mode, print the verdict."""
    wanted, device = arguments
    (mode,) = (known for known in get_args(DaliMode) if known == wanted)
    images = make_images()
    try:
        verdict = check_pixels(decode(mode, None if device == "cpu" else int(device), images), images)
    except Exception as error:  # noqa: BLE001 - delivered: an error is an answer too
        verdict = f"{type(error).__name__}: {' '.join(str(error).split())}"[:_TOLD]
    print(verdict)  # noqa: T201 - how the answer gets to the process that asked


if __name__ == "__main__":
    main(sys.argv[1:])
