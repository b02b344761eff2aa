"""Cells, captions and tables that the benchmarks' reports have in common."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import rich.box
from rich.table import Table

if TYPE_CHECKING:
    from forebay.benchmarks.turns import Ratio

__all__ = ["bench_table", "images_words", "machine_words", "rounds_words", "speed_cell", "times_cell"]


def bench_table(first: str, *headings: str) -> Table:
    """An empty table, a column for what was measured and right-aligned ones for the numbers."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def speed_cell(images_per_s: tuple[float, ...]) -> str:
    """Images a second: the median, and below it the slowest and the fastest round."""
    return f"{statistics.median(images_per_s):,.0f}\n[dim]{min(images_per_s):,.0f}–{max(images_per_s):,.0f}[/]"


def times_cell(ratio: Ratio) -> str:
    """How many times as fast: the median, and below it the smallest and the largest."""
    return f"[bold]{ratio.median:.2f} ×[/]\n[dim]{ratio.smallest:.2f}–{ratio.largest:.2f}[/]"


def images_words(images: int, distinct: int) -> str:
    """How many images a pass has."""
    return f"{images:,} images" + ("" if distinct == images else f" ({distinct:,} different ones)")


def rounds_words(images_per_s: tuple[float, ...]) -> str:
    """What the numbers in a table are."""
    return (
        f"medians of {len(images_per_s)} rounds of each in turn, after one to warm up, and of the ratios of paired "
        "rounds; below them the lowest and the highest"
    )


def machine_words(values: dict[str, Any]) -> str:
    """What machine it was, of a report's plain values."""
    machine = values["machine"]
    return f"{machine['cores']} cores of {machine['processor']}, Python {machine['python']}, torch {machine['torch']}."
