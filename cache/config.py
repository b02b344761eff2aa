"""Where the cache lies and how much of the disk it may take: a value, and its one-line form.

It touches no disk; `ShardCache` does, and refuses folders that cannot hold a cache.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal, get_args

from forebay.errors import ConfigError

__all__ = ["ENVIRONMENT", "CacheConfig", "Verify", "parse_size"]

ENVIRONMENT = "FOREBAY_CACHE"
"""The environment variable that gives the cache where the program gives none."""

Verify = Literal["arrival", "first_use", "always"]

DEFAULT_BUDGET = 64 << 30

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
    more_paths: tuple[Path, ...] = ()
    """Further such folders, each on a drive of its own: every shard has its home in one of them, by its name."""
    budget: int = DEFAULT_BUDGET
    """Bytes for shard files together, unfinished ones and the data sets' indexes included, divided evenly among several
    folders. 64 GiB: about 5 % of a common NVMe."""
    disk_share: float | None = None
    """In place of `budget`: a share of each folder's disk, 0.5 for half of it."""
    min_free: int | None = None
    """Bytes of each disk that the cache leaves free, whatever the budget. None: a fiftieth, at most 1 GiB; a disk that
    others fill to the brim breaks more than a data loader."""
    verify: Verify = "arrival"
    """When the checksum of a whole shard is compared: on "arrival" alone; also on "first_use" by each process, which
    finds what the disk has lost since; or "always", at each opening. Samples are checked whenever they are read."""

    def __post_init__(self) -> None:
        for path in self.folders:
            if not isinstance(path, Path):
                raise ConfigError(
                    f"path={path!r} is a {type(path).__name__}; give a pathlib.Path, or write "
                    f"CacheConfig.parse('{path}:200GB')",
                    path=path,
                )
        if len(set(self.folders)) < len(self.folders):
            raise ConfigError(f"the cache folders {', '.join(map(str, self.folders))}: one is given twice")
        if isinstance(self.budget, bool) or not isinstance(self.budget, int):
            raise ConfigError(f"budget={self.budget!r} is no whole number of bytes; 200GB is 200 * 10**9")
        if self.budget < len(self.folders):
            raise ConfigError(
                f"budget={self.budget} bytes; give a positive number, best at least 4 shards (268435456)",
                budget=self.budget,
            )
        self._check_limits()
        if self.verify not in get_args(Verify):
            raise ConfigError(f'verify={self.verify!r}; give "arrival", "first_use" or "always"', verify=self.verify)

    def _check_limits(self) -> None:
        share = self.disk_share
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1):
            raise ConfigError(f"disk_share={share!r}; give a share of the disk such as 0.5", disk_share=share)
        if share is not None and self.budget != DEFAULT_BUDGET:
            raise ConfigError(f"budget={self.budget} and disk_share={share}: give one of the two", disk_share=share)
        least = self.min_free
        if least is not None and (isinstance(least, bool) or not isinstance(least, int) or least < 0):
            raise ConfigError(f"min_free={least!r}; give the bytes of the disk that stay free", min_free=least)

    @property
    def folders(self) -> tuple[Path, ...]:
        """All folders of the cache."""
        return (self.path, *self.more_paths)

    @classmethod
    def parse(cls, text: str) -> CacheConfig:
        """Read `"/nvme/forebay:200GB"`: a folder and a size or share of its disk (`50%`), split at the last colon.

        Several folders are divided by commas: `"/nvme0/forebay,/nvme1/forebay:2TB"`; a name with a comma is given to
        the constructor. `~` is the home folder.

        Raises:
            ConfigError: there is no colon, no folder, or no size that `parse_size` reads.
        """
        folders, colon, size = text.rpartition(":")
        paths = [Path(folder.strip()).expanduser() for folder in folders.split(",") if folder.strip()]
        if any(re.search(r":\s*\d[^/]*$", str(path)) for path in paths):
            raise ConfigError(
                f"cache={text!r} gives a size to each folder; give one for all, at the end, which they share: "
                f"'/nvme0/forebay,/nvme1/forebay:2TB'",
                text=text,
            )
        if not colon or len(paths) != folders.count(",") + 1:
            raise ConfigError(f"cache={text!r} is not FOLDER:SIZE; write it like '/nvme/forebay:200GB'", text=text)
        share = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", size, re.ASCII)
        if share is None:
            return cls(path=paths[0], more_paths=tuple(paths[1:]), budget=parse_size(size))
        return cls(path=paths[0], more_paths=tuple(paths[1:]), disk_share=float(share[1]) / 100)

    @classmethod
    def choose(cls, given: str | CacheConfig | None) -> CacheConfig | None:
        """The cache that a program gives, or else the one of the environment variable `FOREBAY_CACHE`.

        Args:
            given: `"/nvme/forebay:200GB"` or a configuration; "" for no cache whatever the environment says; None when
                the program leaves it to the environment.

        Returns:
            None for no cache.

        Raises:
            ConfigError: as `parse`; says when the text came from the environment.
        """
        if isinstance(given, CacheConfig):
            return given
        if given is not None:
            if not isinstance(given, str):
                raise ConfigError(f"cache={given!r}; give '/nvme/forebay:200GB' or a CacheConfig", given=given)
            return cls.parse(given) if given else None
        text = os.environ.get(ENVIRONMENT, "").strip()
        if not text:
            return None
        try:
            return cls.parse(text)
        except ConfigError as error:
            raise ConfigError(f"the environment variable {ENVIRONMENT}: {error}", text=text) from error


def parse_size(text: str) -> int:
    """Bytes of `"200GB"` (10^9), `"1.5 TiB"` (2^40) or `"4096"`; a fraction of a byte is dropped.

    Raises:
        ConfigError: no number, an unknown unit (`200G` and `200gb` are not guessed at), or not positive.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    if match is None or match[2] not in UNITS:
        known = ", ".join(unit for unit in UNITS if unit)
        raise ConfigError(
            f"size {text!r} is not a number with a unit; write it like 200GB (units: {known}), or 50% of the disk",
            text=text,
        )
    nbytes = int(Decimal(match[1]) * UNITS[match[2]])
    if nbytes <= 0:
        raise ConfigError(f"size {text!r} is {nbytes} bytes; give a positive size such as 200GB", text=text)
    return nbytes
