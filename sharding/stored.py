"""An opened data set: what it holds, where each sample lies, and its shards.

Opening reads the manifest and the index and checks them against each other; a shard's file is looked at when the shard
is opened.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from forebay.errors import ManifestError, ShardCorruptError, SourceError
from forebay.sharding.far import FarSource, bring_near
from forebay.sharding.index import ShardIndex, fingerprint_of
from forebay.sharding.journal import JOURNAL_NAME
from forebay.sharding.manifest import MANIFEST_LIMIT_NBYTES, MANIFEST_NAME, Manifest
from forebay.sharding.schema import Schema
from forebay.sharding.shard_file import ShardReader
from forebay.sharding.source import FolderSource, Source, SourceFile

__all__ = ["StoredDataset", "open_dataset"]

Int64s = npt.NDArray[np.int64]


def open_dataset(place: str | os.PathLike[str] | Source) -> StoredDataset:
    """Open a data set that `ShardWriter` or `forebay shard` wrote.

    Args:
        place: its folder, or a source that holds it.

    Raises:
        ManifestError: it is no finished data set, it is damaged, or it was written by a newer version; says what to do.
        SourceError: it cannot be read.
    """
    if isinstance(place, str | os.PathLike):
        if "://" in os.fspath(place):
            raise ManifestError(f"{place} is a URL, not a folder; open it by forebay.cache.open_place, or ShardDataset")
        _check_folder(Path(place))
        place = FolderSource(place)
    manifest = _read_manifest(place)
    return StoredDataset(place, manifest, _read_index(place, manifest))


class StoredDataset:
    """A data set as it lies in its source. Immutable and thread-safe; holds no open file.

    Make one with `open_dataset`.
    """

    def __init__(self, source: Source, manifest: Manifest, index: ShardIndex) -> None:
        self.source = source
        self.manifest = manifest
        self.index = index
        self.shard_starts: Int64s = np.zeros(len(index.rows) + 1, dtype=np.int64)
        """(shards + 1,) index of each shard's first sample, and the number of samples."""
        np.cumsum(index.rows, out=self.shard_starts[1:])
        self.shard_starts.flags.writeable = False
        self._check_totals()

    def _check_totals(self) -> None:
        found = {
            "rows": int(self.shard_starts[-1]),
            "shards": len(self.index.rows),
            "nbytes": int(self.index.nbytes.sum()),
            "fingerprint": fingerprint_of(self.schema, self.index.rows, self.index.checksums),
        }
        for key, value in found.items():
            if value != (claimed := getattr(self.manifest, key)):
                raise ManifestError(
                    f"{MANIFEST_NAME} of {self.name} claims {key} = {claimed}, and its index amounts to {value}; "
                    f"copy both again from where they came"
                )

    @property
    def name(self) -> str:
        """What messages call the data set: its folder or URL."""
        return self.source.name

    @property
    def schema(self) -> Schema:
        """Its columns."""
        return self.manifest.schema

    @property
    def fingerprint(self) -> str:
        """Its content, in 32 hexadecimal digits."""
        return self.manifest.fingerprint

    @property
    def rows(self) -> int:
        """How many samples it has."""
        return self.manifest.rows

    @property
    def num_shards(self) -> int:
        """How many shards it has."""
        return self.manifest.shards

    @property
    def shard_rows(self) -> Int64s:
        """(shards,) rows of each shard; some may be 0."""
        return self.index.rows

    @property
    def shard_nbytes(self) -> Int64s:
        """(shards,) size of each shard's file."""
        return self.index.nbytes

    @property
    def footer_nbytes(self) -> Int64s:
        """(shards,) length of the end of each shard's file that holds its footer."""
        return self.index.footer_nbytes

    @property
    def shard_checksums(self) -> npt.NDArray[np.uint8]:
        """(shards, 16) xxh3-128 of each shard's file, big-endian."""
        return self.index.checksums

    def shard_name(self, shard: int) -> str:
        """File name of a shard."""
        name: str = self.index.names[shard].as_py()
        return name

    def find(self, indices: Int64s) -> tuple[Int64s, Int64s]:
        """Where samples lie.

        Args:
            indices: (N,) from 0 to `rows`, in any order.

        Returns:
            (N,) shards and (N,) rows within them.

        Raises:
            IndexError: an index is out of range.
        """
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and not 0 <= indices.min() <= indices.max() < self.rows:
            bad = indices[(indices < 0) | (indices >= self.rows)][0]
            raise IndexError(f"sample {bad} of {self.name}, which has {self.rows} samples")
        shards = np.searchsorted(self.shard_starts, indices, side="right").astype(np.int64) - 1
        return shards, indices - self.shard_starts[shards]

    def open_shard(self, shard: int, columns: Sequence[str] | None = None) -> ShardReader:
        """Open a shard where it lies.

        Raises:
            ShardCorruptError: its size or footer differs from what the index says.
            SourceError: it cannot be opened or read.
        """
        return self.open_shards([shard], columns)[0]

    def open_shards(self, shards: Sequence[int], columns: Sequence[str] | None = None) -> list[ShardReader]:
        """Open shards where they lie; from a far source the footers come all at once.

        Raises:
            ShardCorruptError: the size or footer of one differs from what the index says.
            SourceError: one cannot be opened or read.
        """
        files: list[SourceFile] = []
        try:
            files.extend(self.open_file(shard) for shard in shards)
        except BaseException:
            for file in files:
                file.close()
            raise
        return self.readers(shards, files, columns)

    def open_file(self, shard: int, source: Source | None = None) -> SourceFile:
        """The file of a shard, without looking into it.

        Args:
            shard: which.
            source: where it lies, when not in the data set's own source.

        Raises:
            SourceError: it cannot be opened.
        """
        place = self.source if source is None else source
        name = self.shard_name(shard)
        return (
            place.open_sized(name, int(self.shard_nbytes[shard])) if isinstance(place, FarSource) else place.open(name)
        )

    def readers(
        self, shards: Sequence[int], files: Sequence[SourceFile], columns: Sequence[str] | None = None
    ) -> list[ShardReader]:
        """Readers over shards or copies of them, as `reader` makes one; the footers of far files come all at once."""
        made: list[ShardReader] = []
        try:
            bring_near(
                (file, file.nbytes - int(self.footer_nbytes[shard]), int(self.footer_nbytes[shard]))
                for shard, file in zip(shards, files, strict=True)
            )
            for shard, file in zip(shards, files, strict=True):
                made.append(self.reader(shard, file, columns))
        except BaseException:
            for reader in made:
                reader.close()
            for file in files:
                file.close()
            raise
        return made

    def reader(self, shard: int, file: SourceFile, columns: Sequence[str] | None = None) -> ShardReader:
        """A reader over a copy of a shard, such as the cache's. Owns `file`: closes it, also when this raises.

        Raises:
            ShardCorruptError: its size or footer differs from what the index says.
            SourceError: it cannot be read.
        """
        name = self.shard_name(shard)
        try:
            self._check_size(name, file.nbytes, int(self.index.nbytes[shard]))
            return ShardReader(
                file,
                dataset=self.name,
                shard=name,
                schema=self.schema,
                footer_nbytes=int(self.index.footer_nbytes[shard]),
                footer_checksum=int(self.index.footer_checksums[shard]),
                rows=int(self.index.rows[shard]),
                columns=columns,
            )
        except BaseException:
            file.close()
            raise

    def _check_size(self, name: str, found: int, written: int) -> None:
        if found != written:
            raise ShardCorruptError(
                f"shard {name} of {self.name} has {found} bytes, and the index says {written}: it was cut short or "
                f"replaced; copy it again from where it came",
                dataset=self.name,
                shard=name,
            )

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"StoredDataset({self.name!r}, rows={self.rows}, shards={self.num_shards})"


def _read_manifest(source: Source) -> Manifest:
    limit = MANIFEST_LIMIT_NBYTES
    if isinstance(source, FarSource):
        data = source.read_start(MANIFEST_NAME, limit + 1)
    else:
        file = source.open(MANIFEST_NAME)
        try:
            data = file.read(0, min(file.nbytes, limit + 1))
        finally:
            file.close()
    if len(data) > limit:
        raise ManifestError(f"{MANIFEST_NAME} of {source.name} has more than {limit} bytes: no manifest is that long")
    return Manifest.decode(data, source.name)


def _read_index(source: Source, manifest: Manifest) -> ShardIndex:
    entry = manifest.index
    # Of a far source, a wrong size shows as a short or a wrong index.
    far = source if isinstance(source, FarSource) else None
    file = source.open(entry.name) if far is None else far.open_sized(entry.name, entry.nbytes)
    try:
        if file.nbytes != entry.nbytes:
            raise ManifestError(
                f"{entry.name} of {source.name} has {file.nbytes} bytes, and {MANIFEST_NAME} says {entry.nbytes}"
            )
        data = file.read(0, file.nbytes)
    finally:
        file.close()
    if (found := xxhash.xxh3_128_hexdigest(data)) != entry.checksum:
        raise ManifestError(
            f"{entry.name} of {source.name} has checksum {found}, and {MANIFEST_NAME} says {entry.checksum}: "
            f"it was damaged or replaced; copy it again from where it came"
        )
    return ShardIndex.decode(data, source.name)


def _check_folder(folder: Path) -> None:
    """Say what a folder is that is no data set, and which command makes it one."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError as error:
        raise ManifestError(
            f"there is no folder {folder}; `forebay shard SRC {folder}` makes a data set there"
        ) from error
    except NotADirectoryError as error:
        raise ManifestError(f"{folder} is a file; a data set is the folder that `forebay shard` wrote") from error
    except OSError as error:
        raise SourceError(f"{folder} cannot be listed: {error.strerror or error}") from error
    if MANIFEST_NAME in names:
        return
    if JOURNAL_NAME in names:
        raise ManifestError(
            f"{folder} is the unfinished write of a data set: the writer is still at work or was stopped; go on with "
            f"`forebay shard SRC {folder} --resume`, or ShardWriter(..., resume=True)"
        )
    if not names:
        raise ManifestError(f"{folder} is empty; `forebay shard SRC {folder}` makes a data set there")
    raise ManifestError(
        f"{folder} is no data set: it has no {MANIFEST_NAME}; if it holds images or folders of images, "
        f"`forebay shard {folder} DST` makes a data set of them in another folder DST"
    )
