"""The generators that an epoch's order is drawn from: their state as text, taken before it is drawn and put back later.

It knows generators and samplers of torch's kind; a sampler that keeps its own state is asked elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from forebay.errors import StateError

__all__ = ["Generators", "sampler_chain", "sampler_epochs", "write"]


def sampler_chain(loader: Any) -> list[Any]:
    """The samplers of a loader, each with the one inside it behind it; the first is the one that its iterator asks."""
    chain = [loader._index_sampler]
    while (inner := _inner(chain[-1])) is not None and not any(inner is known for known in chain):
        chain.append(inner)
    return chain


def _inner(sampler: Any) -> Any:
    inner = getattr(sampler, "sampler", None)
    return getattr(sampler, "batch_sampler", None) if inner is None else inner  # accelerate's divide a batch sampler


def sampler_epochs(chain: Sequence[Any]) -> list[int | None]:
    """The epoch of each sampler that is told one, as DistributedSampler is; None: it has none."""
    epochs = [getattr(sampler, "epoch", None) if hasattr(sampler, "set_epoch") else None for sampler in chain]
    return [epoch if type(epoch) is int else None for epoch in epochs]


class Generators:
    """The generators that base seed and order of a loader are drawn from."""

    def __init__(self, loader: Any) -> None:
        self._generators = _generators(loader)
        self._seed_from = loader.generator
        chain = sampler_chain(loader)
        # A sampler of the user's may draw from any.
        self._others = any(not type(sampler).__module__.startswith("torch.utils.data") for sampler in chain)

    def take(self) -> dict[str, Any]:
        """Their state now."""
        taken: dict[str, Any] = {
            name: torch.get_rng_state() if generator is None else generator.get_state()
            for name, generator in self._generators.items()
        }
        if self._others:
            taken["python"] = random.getstate()
            taken["numpy"] = np.random.get_state()
        return taken

    def put(self, taken: Mapping[str, Any]) -> None:
        """Put them where they were."""
        for name, value in taken.items():
            if name == "python":
                random.setstate(value)
            elif name == "numpy":
                np.random.set_state(value)
            elif name in self._generators:
                generator = self._generators[name]
                if generator is None:
                    torch.set_rng_state(value)
                else:
                    generator.set_state(value)

    def draw_base_seed(self) -> None:
        """Draw what torch draws as the base seed of an iterator."""
        torch.empty((), dtype=torch.int64).random_(generator=self._seed_from)

    def read(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Take what `write` gave.

        Raises:
            StateError: it is of other generators, or cannot be read.
        """
        missing = sorted(set(self._generators) - set(state))
        if missing:
            raise StateError(
                f"the loader state has no generator {missing}, it has {sorted(state)}; make the loader with the "
                "generator= and the sampler that it had when the state was taken"
            )
        return {name: _read(name, value) for name, value in state.items()}


def write(taken: Mapping[str, Any]) -> dict[str, Any]:
    """A state of generators as plain JSON values."""
    return {name: _write(name, value) for name, value in taken.items()}


def _generators(loader: Any) -> dict[str, torch.Generator | None]:
    """By name, those that base seed and order are drawn from, each once; None is torch's global one."""
    found: dict[str, torch.Generator | None] = {"torch" if loader.generator is None else "loader": loader.generator}
    for sampler in sampler_chain(loader):
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator) and not any(generator is known for known in found.values()):
            found["sampler"] = generator
        elif generator is None and hasattr(sampler, "generator"):
            found.setdefault("torch", None)
    return found


def _write(name: str, value: Any) -> Any:
    if name == "python":
        version, words, gauss = value
        return [version, _text(np.array(words, dtype=np.uint32)), gauss]
    if name == "numpy":
        kind, words, *rest = value
        return [kind, _text(words), *rest]
    return _text(value.numpy())


def _read(name: str, value: Any) -> Any:
    try:
        if name == "python":
            version, words, gauss = value
            return version, tuple(_bytes(words).view(np.uint32).tolist()), gauss
        if name == "numpy":
            kind, words, *rest = value
            return kind, _bytes(words).view(np.uint32), *rest
        return torch.from_numpy(_bytes(value))
    except (TypeError, ValueError, binascii.Error) as error:
        raise StateError(
            f"the loader state's generator {name!r} cannot be read ({error}); give the state as it was saved"
        ) from error


def _text(words: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(words.tobytes()).decode("ascii")


def _bytes(text: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=np.uint8)
