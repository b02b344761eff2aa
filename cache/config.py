"""Where the cache lies and how much of the disk it may take: a value, and its one-line form.

It touches no disk; `ShardCache` does, and refuses folders that cannot hold a cache.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from forebay.errors import ConfigError

__all__ = ["CacheConfig", "parse_size"]

UNITS = {
    "": 1,
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
}
"""Bytes in each unit: GB = 10^9 as disks are sold, GiB = 2^30 as memory is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """Where shards are kept on this machine, and how much of its disk they may take."""

    path: Path
    """Folder on a local disk, for the cache alone; made when missing. All processes of a machine may share it."""
    budget: int = 64 << 30
    """Bytes for shard files together, unfinished ones included. 64 GiB: about 5 % of a common NVMe."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, Path):
            raise ConfigError(
                f"path={self.path!r} is a {type(self.path).__name__}; give a pathlib.Path, or write "
                f"CacheConfig.parse('{self.path}:200GB')",
                path=self.path,
            )
        if isinstance(self.budget, bool) or not isinstance(self.budget, int):
            raise ConfigError(f"budget={self.budget!r} is no whole number of bytes; 200GB is 200 * 10**9")
        if self.budget <= 0:
            raise ConfigError(
                f"budget={self.budget} bytes; give a positive number, best at least 4 shards (268435456)",
                budget=self.budget,
            )

    @classmethod
    def parse(cls, text: str) -> CacheConfig:
        """Read `"/nvme/forebay:200GB"`: a folder and a size, split at the last colon. `~` is the home folder.

        Raises:
            ConfigError: there is no colon, no folder, or no size that `parse_size` reads.
        """
        folder, colon, size = text.rpartition(":")
        if not colon or not folder.strip():
            raise ConfigError(f"cache={text!r} is not FOLDER:SIZE; write it like '/nvme/forebay:200GB'", text=text)
        return cls(path=Path(folder).expanduser(), budget=parse_size(size))


def parse_size(text: str) -> int:
    """Bytes of `"200GB"` (10^9), `"1.5 TiB"` (2^40) or `"4096"`; a fraction of a byte is dropped.

    Raises:
        ConfigError: no number, an unknown unit (`200G` and `200gb` are not guessed at), or not positive.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    if match is None or match[2] not in UNITS:
        known = ", ".join(unit for unit in UNITS if unit)
        raise ConfigError(f"size {text!r} is not a number with a unit; write it like 200GB (units: {known})", text=text)
    nbytes = int(Decimal(match[1]) * UNITS[match[2]])
    if nbytes <= 0:
        raise ConfigError(f"size {text!r} is {nbytes} bytes; give a positive size such as 200GB", text=text)
    return nbytes
