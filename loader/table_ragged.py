"""How lists of different lengths become one tensor: padded to one length, or as torch's jagged layout.

Declarations alone; they change how rows are gathered, never what is kept of a column.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import ConfigError

__all__ = ["LENGTH_SUFFIX", "Jagged", "Padded", "Ragged"]

LENGTH_SUFFIX = "__length"
"""Ends the name of an output that has the lengths of a padded one's lists."""


@dataclass(frozen=True)
class Jagged:
    """All values of a batch one after the other, and where each list begins: a nested tensor of torch's jagged layout.

    What a column of lists becomes when nothing is declared. `tensor.values()` and `tensor.offsets()` give the two.
    """


@dataclass(frozen=True)
class Padded:
    """One tensor (B, length), with `value` behind the end of each list.

    Args:
        length: values a list, at most; None takes the longest of each batch.
        value: the padding.
        cut: what to keep of a longer list: "start" its first values, "end" its last ones. None makes it an error.
        lengths: also give each list's length, after a cut, as the output `NAME__length`, int64 (B,).
    """

    length: int | None = None
    value: float | bool = 0
    cut: str | None = None
    lengths: bool = False

    def __post_init__(self) -> None:
        if self.length is not None and (type(self.length) is not int or self.length < 1):
            raise ConfigError(f"Padded(length={self.length!r}): give values a list, 1 or more, or None")
        if self.cut not in (None, "start", "end"):
            raise ConfigError(
                f'Padded(cut={self.cut!r}): give "start" or "end", what is kept of a longer list, or None'
            )
        if self.cut is not None and self.length is None:
            raise ConfigError(f"Padded(cut={self.cut!r}): nothing is cut without length=; give one, or leave cut out")
        if not isinstance(self.value, bool | int | float):
            raise ConfigError(f"Padded(value={self.value!r}): give a number")


Ragged = Jagged | Padded
"""What `ragged={"column": ...}` takes."""
