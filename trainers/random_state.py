"""The generators of random numbers that a step may draw from, taken down and set again. It draws nothing itself."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["kept_random_state", "random_state", "restore_random_state"]


def random_state(device: torch.device) -> dict[str, Any]:
    """The generators that a model or loss may draw from: Python's, numpy's, torch's, and the device's.

    Returns:
        Tensors and plain values.
    """
    version, words, gauss = random.getstate()
    name, key, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": (version, torch.tensor(words, dtype=torch.int64), gauss),
        "numpy": (str(name), torch.from_numpy(np.asarray(key).astype(np.int64)), int(position), int(has_gauss), cached),
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Set the generators as they were when `random_state` was called."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, key, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, key.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["device"] is not None:
        torch.cuda.set_rng_state(state["device"], device)


@contextmanager
def kept_random_state(device: torch.device) -> Iterator[None]:
    """Leave the generators as they were before the body, whatever it draws."""
    state = random_state(device)
    try:
        yield
    finally:
        restore_random_state(state, device)
