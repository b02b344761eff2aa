"""The command line: `forebay --help`."""

from __future__ import annotations

from forebay.cli.app import main

__all__ = ["main"]
