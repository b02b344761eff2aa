"""Whose folder it is: the marker file that a cache folder carries, so that nobody else's files are ever evicted."""

from __future__ import annotations

import json
import os
from pathlib import Path

from forebay.cache.reservation import PART
from forebay.errors import CacheError

__all__ = ["LOCK", "MARKER", "mark", "refuse_strangers"]

MARKER = "forebay-cache.json"
MARKER_VERSION = 1
LOCK = "forebay-cache.lock"
HARMLESS = frozenset({LOCK, MARKER + PART, "lost+found"})
"""What an otherwise empty folder may hold: a marker in the making, and what mkfs puts at the root of a disk."""
OURS = frozenset({"datasets", "readers"})
"""What it may hold beside a marker in the making: a full disk had no room for the marker, and some for these."""


def refuse_strangers(folder: Path) -> None:
    """Raise when a folder holds files and no marker.

    Raises:
        CacheError: names some of the files.
    """
    names = set(os.listdir(folder))
    strangers = names - HARMLESS - (OURS if MARKER + PART in names else frozenset())
    if strangers and not (folder / MARKER).exists():  # asked last: another process may be making the cache
        some = ", ".join(repr(name) for name in sorted(strangers)[:3])
        raise CacheError(
            f"the cache folder {folder} is not empty and was not made by the cache (it holds {some}); files in it "
            f"could be evicted, so give an empty folder or a name that does not exist yet",
            path=folder,
        )


def mark(folder: Path, *, ours: bool = False) -> None:
    """Write the marker, whole or not at all, or check the one there. Called under the folder's lock.

    Args:
        folder: exists.
        ours: this process has used the folder before: what lies there is no stranger's.

    Raises:
        CacheError: the folder is not the cache's, or belongs to a newer version.
    """
    marker = folder / MARKER
    if not marker.exists():
        if not ours:
            refuse_strangers(folder)
        aside = folder / (MARKER + PART)
        aside.write_text(json.dumps({"format": "forebay-cache", "version": MARKER_VERSION}) + "\n")
        aside.replace(marker)
    try:
        said = json.loads(marker.read_text())
        ours = said["format"] == "forebay-cache" and isinstance(said["version"], int)
    except (ValueError, TypeError, KeyError):
        ours = False
    if not ours:
        raise CacheError(f"{marker} is not the marker of a cache; give another folder", path=folder)
    if said["version"] > MARKER_VERSION:
        raise CacheError(
            f"the cache folder {folder} has version {said['version']}, and this forebay knows {MARKER_VERSION}: "
            f"upgrade forebay, or give another folder",
            path=folder,
        )
