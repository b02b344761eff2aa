"""Writing a data set: samples in, shards out, the manifest last.

A shard appears whole or not at all; a writer that is killed leaves no manifest, and a journal to go on from.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import xxhash

from forebay.errors import ClosedError, ConfigError, SourceError
from forebay.sharding.destination import Destination, FolderDestination, WriteJournal
from forebay.sharding.index import ShardEntry, encode_index, fingerprint_of
from forebay.sharding.manifest import INDEX_NAME, MANIFEST_NAME, FileEntry, Manifest
from forebay.sharding.schema import Schema
from forebay.sharding.shard_file import ShardReader
from forebay.sharding.shard_layout import BuiltBatch, build_batch, lay_out_shard, stored_nbytes
from forebay.sharding.values import EncodedSample, encode_sample

__all__ = ["ShardWriter"]

logger = logging.getLogger(__name__)

_OWN_FILE = re.compile(r"(\d{8,}\.arrow|index\.arrow|manifest\.json)(\.tmp)?")


class ShardWriter:
    """Writes samples into a new data set. One thread at a time.

        with ShardWriter("shards/train", {"image": "image", "label": "int64"}) as writer:
            writer.write({"image": jpeg_bytes, "label": 3})

    The same samples and settings give the same bytes and fingerprint, on any machine, whether the write was interrupted
    or not. Leaving the `with` block by an exception, or a kill, finishes nothing: the shards written so far stay, and
    `resume=True` goes on after them, with sample `rows_done`. Memory: about 3 times `shard_nbytes`.

    Args:
        path: folder of the data set; made when missing, and empty unless `resume`. Or another destination.
        columns: name to declaration of each column, see `Schema.from_spec`.
        classes: names of the classes that a label column numbers.
        shard_nbytes: size at which a shard is closed. 64 MiB: one read at full speed of any disk or bucket.
        batch_nbytes: size at which a record batch is closed, at least one row; None means 1 MiB, or a shard.
        settings: what else shaped the samples: kept in the manifest, and a write is resumed only with the same.
        resume: go on with an unfinished write of the same columns and settings; begin anew when there is none.

    Raises:
        ConfigError: the destination is not empty, another writer is at work there, or a setting cannot work.
        SchemaError: a declaration that does not hold.
        SourceError: the destination cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Destination,
        columns: Mapping[str, str],
        *,
        classes: Mapping[str, Sequence[str]] | None = None,
        shard_nbytes: int = 64 << 20,
        batch_nbytes: int | None = None,
        settings: Mapping[str, str] | None = None,
        resume: bool = False,
    ) -> None:
        if batch_nbytes is None:
            batch_nbytes = min(1 << 20, shard_nbytes)
        if not 1 <= batch_nbytes <= shard_nbytes:
            raise ConfigError(
                f"batch_nbytes={batch_nbytes}, shard_nbytes={shard_nbytes}: give 1 <= batch_nbytes <= shard_nbytes"
            )
        own = {"shard_nbytes": shard_nbytes, "batch_nbytes": batch_nbytes}
        self._settings: dict[str, Any] = own | _others(settings or {}, own)
        if isinstance(path, str) and "://" in path:
            raise ConfigError(f"{path} is a URL; give forebay.cache.BucketDestination({path!r}) in its place")
        self._place: Destination = FolderDestination(path) if isinstance(path, str | os.PathLike) else path
        self.schema = Schema.from_spec(columns, classes)
        self._shard_nbytes = shard_nbytes
        self._batch_nbytes = batch_nbytes
        self._samples: list[EncodedSample] = []
        self._samples_nbytes = 0
        self._batches: list[BuiltBatch] = []
        self._batches_nbytes = 0
        self._shards: list[ShardEntry] = []
        self._rows_done = 0
        header = {"settings": self._settings, "schema": self.schema.to_json()}
        self._journal: WriteJournal | None = self._place.begin(header, resume=resume)
        try:
            self._recover(self._journal)
        except BaseException:
            self._journal.close()
            raise
        self._row = self._rows_done

    @property
    def name(self) -> str:
        """What messages call the destination."""
        return self._place.name

    @property
    def rows_done(self) -> int:
        """How many samples are safe in whole shards; after `resume`, go on with the sample of this number."""
        return self._rows_done

    def read_done(self, column: str) -> Iterator[Any]:
        """The values of a column in the samples that are safe, in order: what tells a resumed write where it stands.

        Raises:
            ShardCorruptError, SourceError, SchemaError: as `ShardReader`.
        """
        for entry in self._shards:
            with ShardReader(
                self._place.open(entry.name, entry.nbytes),
                dataset=self._place.name,
                shard=entry.name,
                schema=self.schema,
                footer_nbytes=entry.footer_nbytes,
                footer_checksum=entry.footer_checksum,
                rows=entry.rows,
                columns=[column],
            ) as reader:
                yield from (reader.value(row, column) for row in range(reader.rows))

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample; may write a shard. A sample that is refused leaves the writer as it was.

        Args:
            sample: a value for each column: encoded bytes for image and mask, bytes, str, what JSON can say, numbers,
                arrays of exactly the declared dtype.

        Raises:
            SchemaError: a column is missing or unknown, or its value does not fit; names row and column.
            SourceError: the shard cannot be written (no room, a failing disk). The writer closes.
            ClosedError: the writer is closed.
        """
        if self._journal is None:
            raise ClosedError(f"write to {self._place.name} after the writer was closed, or had failed")
        encoded = encode_sample(self.schema, sample, self._row)
        nbytes = stored_nbytes(self.schema, encoded)
        held = self._samples_nbytes + self._batches_nbytes
        if self._samples and self._samples_nbytes + nbytes > self._batch_nbytes:
            self._close_batch()
        if held and held + nbytes > self._shard_nbytes:
            self._close_shard()
        self._samples.append(encoded)
        self._samples_nbytes += nbytes
        self._row += 1

    def close(self) -> None:
        """Write the last shard, the index and the manifest: the data set is finished. Calling it again does nothing.

        Raises:
            SourceError: they cannot be written; `resume=True` goes on.
        """
        if self._journal is None:
            return
        self._close_shard()
        with self._explaining_failure():
            self._write_manifest()
            self._journal.remove()
        self._journal = None

    def abort(self) -> None:
        """Finish nothing: keep the whole shards for `resume=True`, drop the samples in none, release the lock."""
        journal, self._journal = self._journal, None
        self._samples, self._batches = [], []
        if journal is None:
            return
        if self._shards:
            journal.close()
            return
        journal.remove()
        self._place.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _recover(self, journal: WriteJournal) -> None:
        """Take over the whole shards of an earlier writer and clear away what it left half done."""
        where = self._place.name
        listed = self._place.listed()
        if MANIFEST_NAME in listed:  # finished by another writer since we looked
            journal.remove()
            raise ConfigError(f"{where} already holds a finished data set; write to another folder, or remove it")
        whole = 0
        for number, shard in enumerate(journal.shards):
            if shard.name != _shard_name(number) or listed.get(shard.name) != shard.nbytes:
                logger.warning("shard %s of %s is not as it was written: writing goes on from there", shard.name, where)
                break
            whole += 1
        if whole < len(journal.shards):
            journal.keep(whole)
        self._shards = list(journal.shards)
        self._rows_done = sum(shard.rows for shard in self._shards)
        kept = {shard.name for shard in self._shards}
        for name in listed:
            if _OWN_FILE.fullmatch(name) and name not in kept:
                self._place.remove(name)

    def _close_batch(self) -> None:
        if self._samples:
            self._batches.append(build_batch(self.schema, self._samples))
            self._batches_nbytes += self._samples_nbytes
            self._samples, self._samples_nbytes = [], 0

    def _close_shard(self) -> None:
        self._close_batch()
        if not self._batches or self._journal is None:
            return
        laid = lay_out_shard(self.schema, self._batches)
        entry = ShardEntry(
            name=_shard_name(len(self._shards)),
            rows=laid.rows,
            nbytes=len(laid.data),
            footer_nbytes=laid.footer_nbytes,
            footer_checksum=laid.footer_checksum,
            checksum=xxhash.xxh3_128_digest(laid.data),
        )
        with self._explaining_failure():
            self._place.write(entry.name, laid.data)
            self._journal.append(entry)
        self._shards.append(entry)
        self._rows_done += entry.rows
        self._batches, self._batches_nbytes = [], 0

    def _write_manifest(self) -> None:
        index = encode_index(self._shards)
        rows = np.array([shard.rows for shard in self._shards], dtype=np.int64)
        checksums = np.frombuffer(b"".join(shard.checksum for shard in self._shards), dtype=np.uint8)
        self._place.write(INDEX_NAME, index)
        manifest = Manifest(
            schema=self.schema,
            fingerprint=fingerprint_of(self.schema, rows, checksums),
            rows=self._rows_done,
            shards=len(self._shards),
            nbytes=sum(shard.nbytes for shard in self._shards),
            parent=None,
            writer=self._settings,
            index=FileEntry(name=INDEX_NAME, nbytes=len(index), checksum=xxhash.xxh3_128_hexdigest(index)),
        )
        self._place.write(MANIFEST_NAME, manifest.encode())

    @contextlib.contextmanager
    def _explaining_failure(self) -> Iterator[None]:
        """Close the writer when the disk fails, and say what is safe and how to go on."""
        try:
            yield
        except SourceError as error:
            self.abort()
            raise SourceError(
                f"{error}; the first {self._rows_done} samples are safe: make room or mend the disk, then go on with "
                f"resume=True (`forebay shard ... --resume`)",
                rows_done=self._rows_done,
            ) from error


def _others(settings: Mapping[str, str], ours: Mapping[str, int]) -> dict[str, str]:
    """The settings that are not the writer's own, in one order whatever the caller's.

    Raises:
        ConfigError: one has a name of `ours`, or is no printable text, which the manifest keeps as it is.
    """
    for name, value in settings.items():
        if name in ours:
            raise ConfigError(f"settings={{{name!r}: ...}}: {name} is an argument of ShardWriter; give it there")
        if not all(isinstance(text, str) and text.isprintable() for text in (name, value)):
            raise ConfigError(f"settings={{{name!r}: {value!r}}}; give names and values as printable str")
    return dict(sorted(settings.items()))


def _shard_name(number: int) -> str:
    return f"{number:08d}.arrow"
