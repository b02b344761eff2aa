"""What lies in a cache folder, looked at while others change it."""

from __future__ import annotations

from pathlib import Path

SHARD_FILES = f"{'[0-9a-f]' * 32}/*"


def shard_files(cache: Path) -> list[Path]:
    """Shard files, whole or not."""
    return list(cache.glob(SHARD_FILES))


def used_nbytes(cache: Path) -> int:
    """Bytes of shard files, unfinished ones included. One that moves meanwhile may be missed; none counts twice."""
    total = 0
    seen = set()
    for file in cache.glob(SHARD_FILES):
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        if status.st_ino not in seen:
            seen.add(status.st_ino)
            total += status.st_size
    return total


def leftovers(cache: Path) -> list[Path]:
    """Unfinished shard files."""
    return [file for file in shard_files(cache) if file.name.endswith(".part")]
