"""Where the command line prints: results on standard output, progress and warnings on standard error."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

__all__ = ["console", "error_console", "print_json"]

console = Console(highlight=False)
"""Results: tables and text, or JSON."""
error_console = Console(stderr=True, highlight=False)
"""Progress bars, warnings, errors: never mixed into a result that is piped on."""


def print_json(value: Any) -> None:
    """Print `value` as one JSON document on standard output, for programs."""
    console.out(json.dumps(value, indent=2))
