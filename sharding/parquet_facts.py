"""What the footers of all files of a table say, column by column, so that 10,000 files are a few arrays.

It is made from footers or from the Arrow batch that the cache keeps of them; it opens nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import ManifestError
from forebay.sharding.parquet_footer import FileFacts

__all__ = ["TableFacts"]

Int64s = npt.NDArray[np.int64]
_INTS = pa.list_(pa.field("item", pa.int64(), nullable=False))
_ARROW_SCHEMA = pa.schema(
    [
        pa.field("path", pa.binary(), nullable=False),
        pa.field("nbytes", pa.int64(), nullable=False),
        pa.field("mtime_ns", pa.int64(), nullable=False),
        pa.field("checksum", pa.binary(16), nullable=False),
        pa.field("schema", pa.int64(), nullable=False),
        pa.field("group_rows", _INTS, nullable=False),
        pa.field("group_nbytes", _INTS, nullable=False),
    ]
)
_SCHEMA_KEY = b"schema-%d"


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One row a file, in the order of the paths."""

    paths: tuple[str, ...]
    nbytes: Int64s
    mtimes_ns: Int64s
    checksums: tuple[bytes, ...]
    """xxh3-128 of each footer."""
    schema_ids: Int64s
    """Which of `schemas` each file has."""
    schemas: tuple[bytes, ...]
    """Arrow's, serialised, each once."""
    group_starts: Int64s
    """(files + 1,) where the row groups of each file begin in the next two."""
    group_rows: Int64s
    group_nbytes: Int64s

    def __len__(self) -> int:
        return len(self.paths)

    @classmethod
    def of(cls, paths: Sequence[str], files: Sequence[FileFacts]) -> TableFacts:
        """Put together what was read of each file."""
        known: dict[bytes, int] = {}
        ids = [known.setdefault(file.schema, len(known)) for file in files]
        starts = np.zeros(len(files) + 1, np.int64)
        np.cumsum([len(file.group_rows) for file in files], out=starts[1:])
        return cls(
            paths=tuple(paths),
            nbytes=np.array([file.nbytes for file in files], np.int64),
            mtimes_ns=np.array([file.mtime_ns for file in files], np.int64),
            checksums=tuple(file.checksum for file in files),
            schema_ids=np.array(ids, np.int64),
            schemas=tuple(known),
            group_starts=starts,
            group_rows=np.array([count for file in files for count in file.group_rows], np.int64),
            group_nbytes=np.array([size for file in files for size in file.group_nbytes], np.int64),
        )

    def file(self, place: int) -> FileFacts:
        """One file of them."""
        groups = slice(int(self.group_starts[place]), int(self.group_starts[place + 1]))
        return FileFacts(
            nbytes=int(self.nbytes[place]),
            mtime_ns=int(self.mtimes_ns[place]),
            checksum=self.checksums[place],
            schema=self.schemas[int(self.schema_ids[place])],
            group_rows=tuple(self.group_rows[groups].tolist()),
            group_nbytes=tuple(self.group_nbytes[groups].tolist()),
        )

    def to_arrow(self) -> pa.RecordBatch:
        """As the cache keeps it."""
        starts = pa.array(self.group_starts, pa.int32())
        rows = pa.ListArray.from_arrays(starts, pa.array(self.group_rows), type=_INTS)
        nbytes = pa.ListArray.from_arrays(starts, pa.array(self.group_nbytes), type=_INTS)
        columns = [
            pa.array([path.encode("utf-8", "surrogateescape") for path in self.paths], pa.binary()),
            pa.array(self.nbytes),
            pa.array(self.mtimes_ns),
            pa.array(self.checksums, pa.binary(16)),
            pa.array(self.schema_ids),
            rows,
            nbytes,
        ]
        metadata = {_SCHEMA_KEY % k: schema for k, schema in enumerate(self.schemas)}
        return pa.RecordBatch.from_arrays(columns, schema=_ARROW_SCHEMA.with_metadata(metadata))

    @classmethod
    def from_arrow(cls, batch: pa.RecordBatch) -> TableFacts:
        """Read what `to_arrow` gave, believing none of it.

        Raises:
            ManifestError: it does not hold.
        """
        try:
            batch.validate(full=True)
            facts = cls._decoded(batch)
        except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"what the cache keeps of a table's footers does not hold: {error}") from error
        counts = np.concatenate((facts.group_rows, facts.group_nbytes, facts.nbytes, facts.schema_ids))
        if len(counts) and (counts.min() < 0 or (len(facts) and facts.schema_ids.max() >= len(facts.schemas))):
            raise ManifestError("what the cache keeps of a table's footers has counts that cannot be")
        return facts

    @classmethod
    def _decoded(cls, batch: pa.RecordBatch) -> TableFacts:
        metadata = batch.schema.metadata or {}
        rows, sizes = batch["group_rows"], batch["group_nbytes"]
        if (
            not batch.schema.equals(_ARROW_SCHEMA)
            or any(column.null_count for column in batch.columns)
            or not rows.offsets.equals(sizes.offsets)
        ):
            raise ValueError("other columns, nulls, or counts that do not agree")
        return cls(
            paths=tuple(path.decode("utf-8", "surrogateescape") for path in batch["path"].to_pylist()),
            nbytes=batch["nbytes"].to_numpy(),
            mtimes_ns=batch["mtime_ns"].to_numpy(),
            checksums=tuple(batch["checksum"].to_pylist()),
            schema_ids=batch["schema"].to_numpy(),
            schemas=tuple(metadata[_SCHEMA_KEY % k] for k in range(len(metadata))),
            group_starts=rows.offsets.to_numpy().astype(np.int64) - rows.offsets[0].as_py(),
            group_rows=rows.flatten().to_numpy(),
            group_nbytes=sizes.flatten().to_numpy(),
        )
