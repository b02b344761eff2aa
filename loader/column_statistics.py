"""What `forebay stats` found out about columns, read back from its JSON, for transforms that need numbers of the data.

How the numbers are found stands in `forebay.loader.statistics_pass`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from forebay.errors import ConfigError, SourceError

__all__ = ["STATISTICS_VERSION", "ColumnStatistics", "load_statistics"]

STATISTICS_VERSION = 1
"""Of the JSON's layout."""


@dataclass(frozen=True)
class ColumnStatistics:
    """One column's numbers: mean, std and quantiles over its finite values, bounds over all but NaN."""

    name: str
    type: str
    """As Arrow writes it."""
    count: int
    """Values that are not null; in lists each element is one."""
    nulls: int
    nans: int = 0
    min: Any = None
    """Of numbers, the smallest; of dates and times as a number in their unit; of texts the first; of bytes in
    hexadecimal digits; infinities as texts."""
    max: Any = None
    mean: float | None = None
    std: float | None = None
    """Of the population: divided by the count."""
    quantiles: Mapping[str, float] = field(default_factory=dict)
    """By the fraction of values at or below, as text: "0.5" is the median."""
    lengths: Mapping[str, float] = field(default_factory=dict)
    """Of lists, quantiles of their lengths."""
    distinct: int | None = None
    """How many different values."""
    distinct_is_exact: bool = True

    def number(self, which: str) -> float:
        """Mean or std.

        Raises:
            ConfigError: the column has none.
        """
        value = getattr(self, which)
        if value is None:
            raise ConfigError(f"column {self.name!r} ({self.type}, {self.count} values) has no {which}; give numbers")
        return float(value)

    def quantile(self, fraction: float) -> float:
        """The value that this fraction of values is at or below, between the known quantiles by a straight line."""
        if not 0 <= fraction <= 1 or not self.quantiles:
            raise ConfigError(
                f"column {self.name!r} ({self.type}) has no quantile {fraction}; give a number from 0 to 1"
            )
        known = sorted((float(at), value) for at, value in self.quantiles.items())
        places, values = zip(*known, strict=True)
        return float(np.interp(fraction, places, values))


def load_statistics(path: str | os.PathLike[str]) -> dict[str, ColumnStatistics]:
    """By column name, what `forebay stats PATH --json` or `-o FILE` wrote.

    Raises:
        SourceError: the file cannot be read.
        ConfigError: it holds something else.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"the statistics {path} cannot be read: {error.strerror or error}", path=str(path)) from error
    try:
        saved = json.loads(text)
        if saved["version"] != STATISTICS_VERSION:
            raise ConfigError(
                f"{path}: statistics of version {saved['version']}, this forebay reads {STATISTICS_VERSION}"
            )
        known = ColumnStatistics.__dataclass_fields__
        return {
            one["name"]: ColumnStatistics(**{name: value for name, value in one.items() if name in known})
            for one in saved["columns"]
        }
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ConfigError(
            f"{path} holds no statistics ({error!r}); make some by `forebay stats PATH -o FILE`"
        ) from error
