"""Photographs that no camera took: a few hundred JPEGs of several classes, for a machine that has none at hand.

Scenes are drawn (`scenes.py`), then taken by an imagined camera: light from one side, a lens, a sensor with noise, and
a JPEG encoder; some lie on their side with an EXIF orientation, some are grey. The same seed gives the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from forebay.benchmarks.scenes import PAINTERS, Light

__all__ = ["CLASSES", "draw_folder", "draw_photograph"]

CLASSES = tuple(PAINTERS)
"""Names of the classes, sorted."""
_SHAPES = ((3, 4), (2, 3), (9, 16), (1, 1), (4, 3), (3, 2))
_ORIENTATIONS = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
"""EXIF orientation to the turn that the stored pixels have had."""
_ORIENTATION_TAG = 0x0112


def draw_photograph(name: str, number: int, *, seed: int = 0, longest: tuple[int, int] = (280, 560)) -> bytes:
    """Draw photograph `number` of class `name`.

    Args:
        name: one of `CLASSES`.
        number: any integer from 0; each is another picture.
        seed: another world of pictures.
        longest: smallest and largest length of the longer side, in pixels.

    Returns:
        A JPEG, the same bytes for the same arguments (and versions of numpy and Pillow).
    """
    rng = np.random.default_rng((seed, CLASSES.index(name), number))
    aspect = _SHAPES[rng.integers(len(_SHAPES))]
    scale = rng.integers(longest[0], longest[1] + 1) / max(aspect)
    height, width = round(aspect[0] * scale), round(aspect[1] * scale)
    return _develop(rng, _expose(rng, PAINTERS[name](rng, height, width)))


def _expose(rng: np.random.Generator, scene: Light) -> npt.NDArray[np.uint8]:
    """Light through lens and sensor: falling off to one side and the corners, warm or cold, blurred, noisy."""
    height, width = scene.shape[:2]
    y, x = np.linspace(-1, 1, height, dtype=np.float32)[:, None], np.linspace(-1, 1, width, dtype=np.float32)[None, :]
    angle = rng.uniform(0, 2 * np.pi)
    lamp = 1 + rng.uniform(0, 0.4) * (np.cos(angle) * x + np.sin(angle) * y) - rng.uniform(0, 0.25) * (x**2 + y**2)
    warmth = 1 + rng.uniform(-0.15, 0.15) * np.array([1, 0, -1], np.float32)
    light = scene.astype(np.float32) * lamp[..., None] * (warmth * np.float32(rng.uniform(0.65, 1.25)))
    full_well = rng.uniform(200, 2500)
    photons = np.clip(light, 0, 1) * full_well
    noisy = photons + rng.standard_normal(photons.shape, dtype=np.float32) * np.sqrt(photons + 4)
    pixels: npt.NDArray[np.uint8] = (np.clip(noisy / full_well, 0, 1) ** (1 / 1.6) * 255).astype(np.uint8)
    return pixels


def _develop(rng: np.random.Generator, pixels: npt.NDArray[np.uint8]) -> bytes:
    """The file that the camera writes."""
    picture = Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(float(rng.choice([0.4, 0.6, 0.9, 1.6]))))
    if rng.random() < 0.05:
        picture = picture.convert("L")
    exif = Image.Exif()
    if rng.random() < 0.12:
        orientation = int(rng.choice(sorted(_ORIENTATIONS)))
        picture = picture.transpose(_ORIENTATIONS[orientation])
        exif[_ORIENTATION_TAG] = orientation
    file = io.BytesIO()
    picture.save(
        file,
        "JPEG",
        quality=int(rng.integers(75, 96)),
        subsampling=int(rng.choice([0, 2, 2])) if picture.mode == "RGB" else -1,
        progressive=bool(rng.random() < 0.15),
        exif=exif,
    )
    return file.getvalue()


def draw_folder(
    folder: Path,
    *,
    per_class: int,
    first: int = 0,
    seed: int = 0,
    threads: int = 2,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Draw photographs `first` to `first + per_class` of every class into class folders of `folder`.

    Files that are there already are drawn again, with the same bytes.

    Args:
        folder: made when missing.
        per_class: photographs a class.
        first: the number of the first one; another range is another set of pictures.
        seed: of all pictures.
        threads: how many are drawn at once.
        progress: called after each photograph with its size in bytes.

    Returns:
        Bytes written.
    """
    wanted = [(name, number) for name in CLASSES for number in range(first, first + per_class)]
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)

    def draw(which: tuple[str, int]) -> int:
        name, number = which
        return (folder / name / f"{name}-{number:04d}.jpg").write_bytes(draw_photograph(name, number, seed=seed))

    nbytes = 0
    with ThreadPoolExecutor(threads, thread_name_prefix="forebay-draw") as pool:
        sizes: Iterator[int] = pool.map(draw, wanted)
        for size in sizes:
            nbytes += size
            if progress is not None:
                progress(size)
    return nbytes
