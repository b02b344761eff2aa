"""Which data sets the cache holds shards of: a copy of each one's manifest and index, beside its shards.

So whoever evicts knows the shards of other jobs' data sets, and `forebay cache` can list and verify what is kept
without the source. It holds no shards and decides nothing.

    datasets/<fingerprint>/manifest, index     as in the data set
    datasets/<fingerprint>/origin              where it was read from, for people
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from forebay.cache.reservation import PART
from forebay.errors import ForebayError
from forebay.sharding import FolderSource, LocalFile, StoredDataset, open_dataset

__all__ = ["Catalogue", "is_fingerprint"]

FOLDER = "datasets"
MANIFEST, INDEX = "manifest", "index"
ORIGIN = "origin"
ORIGIN_LIMIT_NBYTES = 4096
SHARE = 1000

log = logging.getLogger(__name__)


def is_fingerprint(name: str) -> bool:
    """Whether a name is 32 hexadecimal digits, as the folders of data sets are called."""
    return re.fullmatch(r"[0-9a-f]{32}", name) is not None


class Catalogue:
    """The data sets known in one cache folder. What is written there is checked like any data set when it is read."""

    def __init__(self, cache_folder: Path) -> None:
        self._folder = cache_folder / FOLDER
        self._opened: dict[str, StoredDataset] = {}
        self._mine: dict[str, StoredDataset] = {}

    def keep(self, data: StoredDataset, *, budget: int) -> None:
        """Write a data set down, unless it is there. A failure is no error.

        Args:
            data: to write down.
            budget: of the cache folder. A data set of which a thousandth of it would be taken is not written down.
        """
        self._opened[data.fingerprint] = self._mine[data.fingerprint] = data
        folder = self._folder / data.fingerprint
        manifest = data.manifest.encode()
        if (folder / MANIFEST).exists() or data.manifest.index.nbytes + len(manifest) > budget // SHARE:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            place = str(data.source.root.absolute()) if isinstance(data.source, FolderSource) else data.name
            _write(folder / ORIGIN, place.encode(errors="replace")[:ORIGIN_LIMIT_NBYTES])
            _write(folder / INDEX, data.index.encoded)
            _write(folder / MANIFEST, manifest)  # last: it makes the folder a data set
        except OSError as error:  # other jobs know less of this one's shards, no more
            log.debug("%s is not written down in %s: %s", data.name, self._folder, str(error))

    def keep_all(self, *, budget: int) -> None:
        """Write the data sets of this process down again: the folder was removed and made again."""
        for data in list(self._mine.values()):
            self.keep(data, budget=budget)

    def nbytes(self) -> int:
        """Bytes of all that is written down: they count towards the budget."""
        total = 0
        with suppress(FileNotFoundError):
            for name in os.listdir(self._folder):
                with suppress(FileNotFoundError), os.scandir(self._folder / name) as files:
                    total += sum(file.stat().st_size for file in files)
        return total

    def get(self, fingerprint: str) -> StoredDataset | None:
        """The data set of a fingerprint, without its shards; None when it is not known, or not what it says."""
        data = self._opened.get(fingerprint)
        if data is None and (data := self._open(fingerprint)) is not None:
            self._opened[fingerprint] = data
        return data

    def _open(self, fingerprint: str) -> StoredDataset | None:
        if not is_fingerprint(fingerprint):
            return None
        try:
            data = open_dataset(_WrittenDown(self._folder / fingerprint))
        except ForebayError as error:
            log.debug("data set %s of the cache %s is not known: %s", fingerprint, self._folder.parent, str(error))
            return None
        return data if data.fingerprint == fingerprint else None

    def origin(self, fingerprint: str) -> str | None:
        """Where a data set was read from, as whoever read it first called it; None when that is not known."""
        try:
            with open(self._folder / fingerprint / ORIGIN, "rb") as file:
                return file.read(ORIGIN_LIMIT_NBYTES).decode(errors="replace")
        except OSError:
            return None

    def forget_all_but(self, fingerprints: Iterable[str]) -> None:
        """Remove what is written of all other data sets. Called under the folder's lock."""
        kept = set(fingerprints)
        try:
            known = os.listdir(self._folder)
        except FileNotFoundError:
            return
        for name in known:
            if is_fingerprint(name) and name not in kept:
                shutil.rmtree(self._folder / name, ignore_errors=True)
                self._opened.pop(name, None)


class _WrittenDown:
    """A data set without shards, under the catalogue's names. Conforms to `Source`."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder

    def open(self, path: str) -> LocalFile:
        """See `Source.open`: the manifest, or else the index, whatever the manifest calls it."""
        return LocalFile(self._folder / (MANIFEST if path == "manifest.json" else INDEX), name=f"{path} of {self.name}")


def _write(path: Path, content: bytes | memoryview) -> None:
    """Write a file, seen whole or not at all. Two who write the same file write the same bytes."""
    aside = path.with_name(f"{path.name}{PART}-{os.getpid()}")
    try:
        aside.write_bytes(content)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
