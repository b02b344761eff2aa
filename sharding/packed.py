"""Arrays of numbers in a footer's JSON: little-endian, in base64, since Arrow wants valid UTF-8.

Pure values: what the numbers mean, and whether they can be, is told by `footer.py` and `jpeg_places.py`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FooterError", "pack", "unpack"]


class FooterError(ValueError):
    """A footer that does not hold; the shard reader says where."""


def pack(values: npt.NDArray[Any]) -> str:
    """The text of an array, its elements in C order."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(little.tobytes()).decode("ascii")


def unpack(text: str, dtype: str, count: int | None = None) -> npt.NDArray[Any]:
    """The array of a text: read-only, one dimension, no larger than the text.

    Args:
        text: what `pack` made.
        dtype: numpy's name of the little-endian dtype, such as `<i8`.
        count: how many numbers there must be; any when None.

    Raises:
        FooterError: the text is no base64, or of another count.
        TypeError, ValueError: it is no text, or of half a number.
    """
    try:
        values = np.frombuffer(base64.b64decode(text, validate=True), dtype=dtype)
    except binascii.Error as error:
        raise FooterError(f"its footer holds an array that is no base64: {error}") from error
    if count is not None and len(values) != count:
        raise FooterError(f"its footer holds {len(values)} numbers where {count} are due")
    return values
