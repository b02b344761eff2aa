"""What all declared transforms have in common. It declares none."""

from __future__ import annotations

from typing import ClassVar

__all__ = ["Declared"]


class Declared:
    """A transform that says what to do; subclasses are frozen dataclasses."""

    draws: ClassVar[int] = 0
    """Uniform numbers that it needs for a sample, drawn for the whole batch at once."""
