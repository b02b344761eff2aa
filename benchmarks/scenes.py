"""What the drawn photographs show: eight kinds of scene, each painted anew from random numbers.

A painter returns reflected light, before any camera. It knows no files; `photographs.py` takes the pictures.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["PAINTERS", "Light", "Painter"]

Light = npt.NDArray[np.float32]
"""Float32 (H, W, 3), mostly from 0 to 1."""
Field = npt.NDArray[np.float32]
"""Float32 (H, W)."""
Painter = Callable[[np.random.Generator, int, int], Light]
"""`(rng, height, width)` to light."""


def _grid(height: int, width: int) -> tuple[Field, Field]:
    """Coordinates y and x, in units of the longer side, the centre at 0."""
    longest = max(height, width)
    y = (np.arange(height, dtype=np.float32) - height / 2) / longest
    x = (np.arange(width, dtype=np.float32) - width / 2) / longest
    return np.broadcast_to(y[:, None], (height, width)), np.broadcast_to(x[None, :], (height, width))


def _noise(rng: np.random.Generator, height: int, width: int, roughness: float, stretch: float = 1.0) -> Field:
    """Fractal noise from 0 to 1: white noise whose spectrum falls with frequency to the power of `roughness`."""
    spectrum = np.fft.rfft2(rng.standard_normal((height, width), dtype=np.float32))
    y, x = np.fft.fftfreq(height)[:, None] * height * stretch, np.fft.rfftfreq(width)[None, :] * width / stretch
    falloff = np.maximum(np.hypot(y, x), 1.0).astype(np.float32) ** -roughness
    field = np.fft.irfft2(spectrum * falloff, s=(height, width)).astype(np.float32)
    low, high = np.percentile(field[::4, ::4], [1, 99])
    clipped: Field = np.clip((field - low) / (high - low), 0, 1)
    return clipped


def _turned(rng: np.random.Generator, y: Field, x: Field, most: float) -> tuple[Field, Field]:
    """The coordinates turned by up to `most` radians and seen a little from the side."""
    angle, tilt = rng.uniform(-most, most), rng.uniform(-0.5, 0.5)
    depth = 1 + tilt * x
    return (np.cos(angle) * y - np.sin(angle) * x) / depth, (np.sin(angle) * y + np.cos(angle) * x) / depth


def _colour(rng: np.random.Generator, brightness: tuple[float, float] = (0.25, 0.85)) -> Light:
    """Any colour, not too vivid; classes share their colours, so that colour alone tells nothing."""
    vivid = rng.uniform(0.05, 0.5)
    return (rng.uniform(*brightness) * (1 - vivid + vivid * rng.uniform(0, 1.4, 3))).astype(np.float32)


def _blend(share: Field, low: Light, high: Light) -> Light:
    return low + share[..., None] * (high - low)


def _bricks(rng: np.random.Generator, height: int, width: int) -> Light:
    y, x = _turned(rng, *_grid(height, width), 0.3)
    tall, wide = (size := rng.uniform(0.05, 0.12)), size * rng.uniform(1.8, 3)
    row = np.floor(y / tall)
    column = np.floor(x / wide + 0.5 * (row % 2))
    to_edge = np.minimum(
        np.abs(y / tall - row - 0.5) * -tall + tall / 2,
        np.abs(x / wide + 0.5 * (row % 2) - column - 0.5) * -wide + wide / 2,
    )
    mortar = np.clip(1 - to_edge / (tall * rng.uniform(0.06, 0.14)), 0, 1)
    tone = rng.uniform(0.6, 1.15, 4096).astype(np.float32)[((row * 71 + column * 13).astype(np.int64)) % 4096]
    rough = _noise(rng, height, width, 0.9)
    wall = _colour(rng) * (tone * (0.7 + 0.5 * rough))[..., None]
    return _blend(mortar, wall, _colour(rng) * 0.8)


def _clouds(rng: np.random.Generator, height: int, width: int) -> Light:
    y, _ = _grid(height, width)
    cover = _noise(rng, height, width, rng.uniform(1.5, 1.9), stretch=rng.uniform(0.5, 0.9))
    thick = np.clip((cover - rng.uniform(0.3, 0.6)) * rng.uniform(2, 4), 0, 1)
    shade = 0.75 + 0.25 * np.clip((cover - np.roll(cover, height // 12, axis=0)) * 2 + 0.5, 0, 1)
    sky = _blend(y + 0.5, _colour(rng, (0.3, 0.6)), _colour(rng, (0.6, 0.9)))
    return _blend(thick, sky, np.float32(0.95) * shade[..., None])


def _hills(rng: np.random.Generator, height: int, width: int) -> Light:
    y, x = _grid(height, width)
    near, far = _colour(rng, (0.15, 0.5)), _colour(rng, (0.6, 0.95))
    light = _blend(y + 0.5, far * 0.9, far)
    ridges = rng.integers(3, 7)
    for ridge in range(ridges):
        share = (ridge + 1) / ridges
        waves = rng.uniform(0, 2 * np.pi, 6)
        line = sum(np.sin(x[0] * 2.5 * 2.0**octave + waves[octave]) * 0.09 * share / 1.7**octave for octave in range(6))
        ground = y > line + (share - 0.75) * rng.uniform(0.5, 0.8)
        rough = _noise(rng, height, width, 1.1)[..., None] * 0.35 * share + 1 - 0.35 * share
        light = np.where(ground[..., None], _blend(np.full_like(y, share), far, near) * rough, light)
    return light


def _pebbles(rng: np.random.Generator, height: int, width: int) -> Light:
    y, x = _turned(rng, *_grid(height, width), 3)
    size = rng.uniform(0.05, 0.13)
    cell_y, cell_x = np.floor(y / size).astype(np.int64), np.floor(x / size).astype(np.int64)
    jitter = rng.uniform(0.1, 0.9, (2, 4096)).astype(np.float32)
    tones = rng.uniform(0.45, 1.2, (4096, 3)).astype(np.float32) * 0.4 + rng.uniform(0.3, 1, (4096, 1)) * 0.6
    nearest, second = np.full(y.shape, 9, np.float32), np.full(y.shape, 9, np.float32)
    owner = np.zeros(y.shape, np.int64)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            key = ((cell_y + down) * 73 + (cell_x + right) * 31) % 4096
            away = np.hypot(cell_y + down + jitter[0, key] - y / size, cell_x + right + jitter[1, key] - x / size)
            closer = away < nearest
            second = np.where(closer, nearest, np.minimum(second, away))
            owner = np.where(closer, key, owner)
            nearest = np.where(closer, away, nearest)
    round_ = np.clip((second - nearest) * 2.2, 0, 1) ** 0.6 * (1.05 - 0.5 * nearest)
    stones: Light = (_colour(rng, (0.5, 1.0)) * tones[owner] * round_[..., None]).astype(np.float32)
    return stones


def _ripples(rng: np.random.Generator, height: int, width: int) -> Light:
    y, x = _grid(height, width)
    depth = 1 / (y + rng.uniform(0.6, 0.9))
    phase = np.zeros_like(y)
    for _ in range(7):
        heading, length = rng.normal(0, 0.5), rng.uniform(8, 40)
        phase = phase + np.sin(
            (x * np.sin(heading) * depth + depth * np.cos(heading) * 1.5) * length + rng.uniform(0, 6)
        )
    slope = phase / 7 + 0.5 * (_noise(rng, height, width, 1.2, stretch=3) - 0.5)
    water = _blend(np.clip(slope + 0.5, 0, 1), _colour(rng, (0.1, 0.4)), _colour(rng, (0.5, 0.9)))
    glitter = np.exp(-(((x - rng.uniform(-0.3, 0.3)) / 0.15) ** 2)) * np.clip(slope * 4 - 1, 0, 1)
    light: Light = water + glitter[..., None] * np.float32(rng.uniform(0.2, 0.8))
    return light


def _spheres(rng: np.random.Generator, height: int, width: int) -> Light:
    y, x = _grid(height, width)
    light = _blend(_noise(rng, height, width, 1.4), _colour(rng, (0.3, 0.6)), _colour(rng, (0.5, 0.9)))
    sun = np.array([rng.uniform(-0.8, -0.3), rng.uniform(-0.7, 0.7), rng.uniform(0.4, 0.9)])
    sun /= np.linalg.norm(sun)
    for _ in range(rng.integers(1, 6)):
        radius = rng.uniform(0.07, 0.2)
        v, u = (y - rng.uniform(-0.3, 0.35)) / radius, (x - rng.uniform(-0.4, 0.4)) / radius
        shadow = np.exp(-(((v - 0.9) / 0.5) ** 2 + ((u + sun[1]) / 1.1) ** 2))
        light = light * (1 - 0.6 * shadow[..., None])
        inside = 1 - v**2 - u**2
        z = np.sqrt(np.maximum(inside, 0))
        facing = np.clip(v * sun[0] + u * sun[1] + z * sun[2], 0, 1)
        ball = _colour(rng, (0.4, 1.0)) * (0.2 + 0.8 * facing)[..., None]
        ball = ball + (facing ** rng.uniform(12, 60))[..., None] * np.float32(rng.uniform(0.1, 0.6))
        light = _blend(np.clip(inside * radius * 250, 0, 1), light, ball)
    return light


def _windows(rng: np.random.Generator, height: int, width: int) -> Light:
    y, x = _turned(rng, *_grid(height, width), 0.12)
    tall, wide = rng.uniform(0.09, 0.18), rng.uniform(0.07, 0.16)
    row, column = np.floor(y / tall), np.floor(x / wide)
    v, u = np.abs(y / tall - row - 0.5), np.abs(x / wide - column - 0.5)
    half_v, half_u = rng.uniform(0.28, 0.4), rng.uniform(0.25, 0.4)
    pane = (v < half_v) & (u < half_u) & (u > 0.025) & ~((v < 0.02) & (rng.random() < 0.6))
    lit = rng.uniform(0, 1, 4096).astype(np.float32)[((row * 57 + column * 17).astype(np.int64)) % 4096] ** 2
    glass = _blend(np.clip(lit + 0.3 * _noise(rng, height, width, 1.3), 0, 1), _colour(rng, (0.1, 0.3)), _colour(rng))
    wall = _colour(rng) * (0.75 + 0.35 * _noise(rng, height, width, 1.0))[..., None]
    return np.where(pane[..., None], glass, wall).astype(np.float32)


def _wood(rng: np.random.Generator, height: int, width: int) -> Light:
    y, x = _turned(rng, *_grid(height, width), 3)
    plank_wide = rng.uniform(0.15, 0.4)
    plank = np.floor(y / plank_wide)
    shift = rng.uniform(-3, 3, 64).astype(np.float32)[plank.astype(np.int64) % 64]
    bend = _noise(rng, height, width, 1.8)
    rings = np.hypot(y - plank * plank_wide + 0.4 * shift * 0.1, 0.12 * (x + shift)) + 0.05 * bend
    grain = 0.5 + 0.5 * np.sin(rings * rng.uniform(250, 500) + shift)
    fibre = _noise(rng, height, width, 0.7)
    share = np.clip(0.6 * grain + 0.4 * fibre + 0.1 * shift / 3, 0, 1)
    gap = np.abs(y / plank_wide - plank - 0.5) > 0.492
    return _blend(share, _colour(rng, (0.2, 0.5)), _colour(rng, (0.5, 0.9))) * np.where(gap, 0.3, 1)[..., None]


PAINTERS: dict[str, Painter] = {
    "bricks": _bricks,
    "clouds": _clouds,
    "hills": _hills,
    "pebbles": _pebbles,
    "ripples": _ripples,
    "spheres": _spheres,
    "windows": _windows,
    "wood": _wood,
}
"""Class names to their painters, in sorted order."""
