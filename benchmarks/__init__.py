"""benchmarks: what the numbers in the README were measured with, and the photographs that stand in for real ones."""

from __future__ import annotations

from forebay.benchmarks.loader import LoaderComparison, LoaderWork, SideResult, compare
from forebay.benchmarks.order import measure
from forebay.benchmarks.photographs import CLASSES, draw_folder, draw_photograph

__all__ = [
    "CLASSES",
    "LoaderComparison",
    "LoaderWork",
    "SideResult",
    "compare",
    "draw_folder",
    "draw_photograph",
    "measure",
]
