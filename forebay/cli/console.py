"""Where the command line prints: results on standard output, progress and warnings on standard error."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn

__all__ = ["console", "counted", "error_console", "print_json", "progress_bar"]

console = Console(highlight=False)
"""Results: tables and text, or JSON."""
error_console = Console(stderr=True, highlight=False)
"""Progress bars, warnings, errors: never mixed into a result that is piped on."""


def progress_bar(title: str, *columns: ProgressColumn) -> Progress:
    """A bar on standard error that goes when it is done; nothing at all where that is no terminal."""
    return Progress(title, *columns, console=error_console, transient=True, disable=not error_console.is_terminal)


def counted(number: int, noun: str) -> str:
    """How many, in words: 1 image, 1,000 images."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_json(value: Any) -> None:
    """Print `value` as one JSON document on standard output, for programs."""
    console.out(json.dumps(value, indent=2))
