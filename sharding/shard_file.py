"""Reading one shard: any row of any column, as a view of the bytes, its checksum verified each time.

After the footer is parsed nothing calls Arrow: a sample is one ranged read and one hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import SchemaError, ShardCorruptError, SourceError
from forebay.sharding.addressable import JpegLayout, bands_of
from forebay.sharding.blocks import ReadMemory
from forebay.sharding.checksum import sample_checksum
from forebay.sharding.far import FarFile, FileRange, bring_near
from forebay.sharding.footer import FOOTER_METADATA_KEY, BatchPlaces, FooterError, SamplePlaces, ShardFooter
from forebay.sharding.jpeg_part import find_damage, read_part
from forebay.sharding.jpeg_places import JpegPlaces
from forebay.sharding.schema import Kind, Schema
from forebay.sharding.shard_layout import MAGIC
from forebay.sharding.source import SourceFile

__all__ = ["ShardReader"]

Bytes = TypeVar("Bytes")
TRIES_AGAIN = 3
"""How often bytes that came damaged over a network are asked for again."""


class ShardReader:
    """An open shard. Thread-safe; `close` when no read is under way.

    Views that were handed out stay valid as long as they are kept, also after `close`.

    Args:
        file: the shard's bytes; closed with the reader.
        dataset: name of the data set, for messages.
        shard: name of the shard, for messages.
        schema: of the data set.
        footer_nbytes: length of the file's end that holds the footer; the index tells it.
        footer_checksum: xxh3-64 of that end; the index tells it.
        rows: how many the index says there are.
        columns: those that will be read; all when None.

    Raises:
        ShardCorruptError: the footer is not the one that was written.
        SchemaError: a column that is not there.
        SourceError: the footer cannot be read.
    """

    def __init__(
        self,
        file: SourceFile,
        *,
        dataset: str,
        shard: str,
        schema: Schema,
        footer_nbytes: int,
        footer_checksum: int,
        rows: int,
        columns: Sequence[str] | None = None,
    ) -> None:
        self.dataset = dataset
        self.shard = shard
        self.rows = rows
        self._file = file
        self._columns = {column.name: column for column in schema.select(columns)}
        self._batched: dict[str, npt.NDArray[Any]] = {}
        self._single: dict[tuple[str, int], npt.NDArray[Any]] = {}  # of a far shard: by column and record batch
        value = self._read_footer(schema, footer_nbytes, footer_checksum)
        try:
            limit = file.nbytes - footer_nbytes
            self._footer = ShardFooter.decode(value, tuple(self._columns.values()), rows=rows, limit=limit)
        except FooterError as error:
            raise ShardCorruptError(f"shard {shard} of {dataset}: {error}", dataset=dataset, shard=shard) from error

    def _read_footer(self, schema: Schema, nbytes: int, checksum: int) -> bytes:
        if not 0 < nbytes <= self._file.nbytes:
            self._fail(f"its footer should be {nbytes} bytes, and the file has {self._file.nbytes}")
        start = self._file.nbytes - nbytes
        tail = self._read_right(
            lambda: self._file.read(start, nbytes), lambda data: sample_checksum(data) == checksum, start, nbytes
        )
        if (found := sample_checksum(tail)) != checksum:
            self._fail(f"its footer has checksum {found:#018x}, and the index says {checksum:#018x}")
        try:
            # Arrow wants room for the leading magic before the footer, and reads nothing else until asked for a batch.
            reader = pa.ipc.open_file(pa.py_buffer(MAGIC + b"\0\0" + bytes(tail)))
            value: bytes | None = (reader.metadata or {}).get(FOOTER_METADATA_KEY)
            same = reader.schema.equals(schema.arrow_schema)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            self._fail(f"Arrow cannot read its footer: {error}")
        if value is None or not same:
            self._fail("it is an Arrow file, but not of this data set: its schema differs or forebay did not write it")
        return value

    def read(self, row: int, column: str, memory: ReadMemory | None = None) -> memoryview:
        """The bytes of a sample in a placed column (image, mask, bytes, str, json, tensor), as stored.

        Reads just these bytes and verifies their checksum every time.

        Args:
            row: the sample's.
            column: which.
            memory: where the bytes may lie, for whoever lets go of them soon; see `SourceFile.read`.

        Returns:
            A read-only view; of a mapped file, a view of the map.

        Raises:
            ShardCorruptError: the bytes differ from those written; names data set, shard, row and column.
            SourceError: the bytes cannot be read; names the same.
            SchemaError: the column was not opened, or holds scalars.
            IndexError: there is no such row.
        """
        places = self._placed(row, column, "read")
        offset, nbytes, written = places.offsets.item(row), places.nbytes.item(row), places.checksums.item(row)
        view = self._read_right(
            lambda: self._read_file(row, column, offset, nbytes, memory),
            lambda data: sample_checksum(data) == written,
            offset,
            nbytes,
        )
        if (found := sample_checksum(view)) != written:
            self._fail(f"it has checksum {found:#018x}, and {written:#018x} was written", row=row, column=column)
        return view

    def fileno(self) -> int:
        """The descriptor that `offset` counts in, for whoever reads many ranges at once; -1: `read` is the only way."""
        return self._file.fileno()

    @property
    def far(self) -> bool:
        """Whether each read takes a round trip: then `bring_near` first what is to be read."""
        return isinstance(self._file, FarFile) and self._file.fileno() == -1

    def range_of(self, offset: int, nbytes: int) -> FileRange:
        """Bytes of the shard, for `bring_near`."""
        return self._file, offset, nbytes

    def ranges_of(self, row: int, column: str) -> list[FileRange]:
        """What `value` of a sample would read: its bytes, the record batch of its scalar or of its shape.

        Raises:
            SchemaError, IndexError: as `value`.
        """
        declared = self._columns.get(column)
        ranges: list[FileRange] = []
        if declared is None or declared.kind is not Kind.SCALAR:
            offset, nbytes, _ = self.places(row, column)
            ranges.append(self.range_of(offset, nbytes))
        self._check_row(row)
        if column in self._footer.batched and column not in self._batched:
            batch = self._batch_of(row)
            if (column, batch) not in self._single:
                places = self._footer.batched[column]
                ranges.append(self.range_of(places.starts.item(batch), places.nbytes.item(batch)))
        return ranges

    def places(self, row: int, column: str) -> tuple[int, int, int]:
        """Where a sample of a placed column lies: offset in the file, bytes, and the xxh3-64 that they have to have.

        Raises:
            SchemaError, IndexError: as `read`.
        """
        places = self._placed(row, column, "places")
        return places.offsets.item(row), places.nbytes.item(row), places.checksums.item(row)

    def read_unverified(self, row: int, column: str, begin: int, nbytes: int, memory: ReadMemory) -> memoryview:
        """Some bytes of a sample of a placed column, for whoever verifies them.

        Raises:
            SourceError, SchemaError, IndexError: as `read`.
        """
        return self._read_file(row, column, self.places(row, column)[0] + begin, nbytes, memory)

    def jpeg_places(self, column: str) -> JpegPlaces | None:
        """Where the parts of the column's crop-addressable JPEGs lie; None when it has none."""
        return self._footer.jpegs.get(column)

    def jpeg_layout(self, row: int, column: str) -> JpegLayout | None:
        """How a sample can be read in part by `read_jpeg`; None when it is no crop-addressable JPEG.

        Raises:
            SchemaError: the column was not opened, or holds scalars.
            IndexError: there is no such row.
        """
        self._placed(row, column, "jpeg_layout")
        jpegs = self._footer.jpegs.get(column)
        return None if jpegs is None else jpegs.layout(row)

    def read_jpeg(
        self, row: int, column: str, top: int, height: int, memory: ReadMemory | None = None
    ) -> tuple[memoryview, memoryview, int]:
        """The part of a crop-addressable JPEG that holds some rows of its pixels, for `sub_jpeg`.

        Reads and verifies just the header and these bands every time, in one read or two.

        Args:
            row: the sample's, of an image column.
            column: that column.
            top: first row of pixels wanted, as stored: before EXIF orientation.
            height: how many are wanted, at least 1.
            memory: as with `read`.

        Returns:
            The header; the bands that hold the rows and their neighbours; the number of the first row of MCUs in them.
            Both are read-only views, as those of `read`.

        Raises:
            ShardCorruptError, SourceError: as `read`.
            SchemaError: the sample has no `jpeg_layout`.
            IndexError: there is no such row, or the picture has no such rows of pixels.
        """
        layout = self.jpeg_layout(row, column)
        if layout is None:
            raise SchemaError(f"{self._place(row, column)} is no crop-addressable JPEG: use read()")
        if not 0 <= top < top + height <= layout.height:
            raise IndexError(
                f"pixel rows {top} to {top + height} of {self._place(row, column)}, which has {layout.height} of them"
            )
        first, end = bands_of(layout, top, height)
        start = int(self._footer.placed[column].offsets[row])

        def read(offset: int, nbytes: int) -> memoryview:
            return self._read_file(row, column, start + offset, nbytes, memory)

        header, bands = self._read_right(
            lambda: read_part(read, layout, first, end),
            lambda parts: find_damage(layout, *parts, first) is None,
            start,
            self._footer.placed[column].nbytes.item(row),
        )
        if (damage := find_damage(layout, header, bands, first)) is not None:
            self._fail(damage, row=row, column=column)
        return header, bands, sum(layout.band_rows[:first])

    def scalars(self, column: str) -> npt.NDArray[Any]:
        """The values of a scalar column: read-only, (rows,), of the column's dtype. Read and verified once, then kept.

        Raises:
            ShardCorruptError: the bytes differ from those written; names the first row of the record batch.
            SourceError: the bytes cannot be read.
            SchemaError: the column was not opened, or holds no scalars.
        """
        kept = self._batched.get(column)
        if kept is not None and self._columns[column].kind is Kind.SCALAR:
            return kept
        declared = self._columns.get(column)
        if declared is None or declared.kind is not Kind.SCALAR:
            self._refuse(column, "scalars", None)
        return self._keep(column)

    def scalar(self, row: int, column: str) -> Any:
        """The value of a sample in a scalar column, a numpy scalar. Of a far shard, reads only its record batch.

        Raises:
            ShardCorruptError, SourceError, SchemaError: as `scalars`.
            IndexError: there is no such row.
        """
        declared = self._columns.get(column)
        if declared is None or declared.kind is not Kind.SCALAR:
            self._refuse(column, "scalar", None)
        self._check_row(row)
        if not self.far:
            return self.scalars(column)[row]
        values, first = self._batch_values(row, column)
        return values[row - first]

    def _batch_of(self, row: int) -> int:
        return int(np.searchsorted(np.cumsum(self._footer.batch_rows), row, side="right"))

    def _batch_values(self, row: int, column: str) -> tuple[npt.NDArray[Any], int]:
        """The values of the record batch that a row lies in, and the batch's first row; kept for later rows."""
        batch = self._batch_of(row)
        first = int(self._footer.batch_rows[:batch].sum())
        kept = self._single.get((column, batch))
        if kept is None:
            kept = self._decode_batch(column, self._read_batch(column, batch, first), batch)
            self._single[column, batch] = kept  # two threads may both come here: they keep equal arrays
        return kept, first

    def _decode_batch(self, column: str, view: memoryview, batch: int) -> npt.NDArray[Any]:
        declared = self._columns[column]
        if declared.kind is not Kind.SCALAR:
            return np.frombuffer(view, dtype="<i4")  # shapes
        if declared.dtype == "bool":
            rows = int(self._footer.batch_rows[batch])
            return np.unpackbits(np.frombuffer(view, "u1"), count=rows, bitorder="little").view(np.bool_)
        return np.frombuffer(view, dtype=np.dtype(declared.dtype).newbyteorder("<"))

    def shape(self, row: int, column: str) -> tuple[int, ...]:
        """Shape of a sample in a tensor column.

        Raises:
            ShardCorruptError: the shapes differ from those written.
            SourceError: they cannot be read.
            SchemaError: the column was not opened, or holds no tensors.
        """
        declared = self._columns.get(column)
        if declared is None or declared.shape is None:
            self._refuse(column, "shape", None)
        self._check_row(row)
        fixed = tuple(size for size in declared.shape if size is not None)
        if len(fixed) == len(declared.shape):
            return fixed
        if self.far:
            shapes, first = self._batch_values(row, column)
        else:
            kept, first = self._batched.get(column), 0
            shapes = self._keep(column) if kept is None else kept
        found = tuple(shapes.reshape(-1, len(declared.shape))[row - first].tolist())
        if any(want not in (None, have) or have < 0 for want, have in zip(declared.shape, found, strict=True)):
            self._fail(f"its shape is {found}, and the column is {declared.spec}", row=row, column=column)
        return found

    def value(self, row: int, column: str) -> Any:
        """A sample's value as Python has it.

        Returns:
            bytes for image, mask and bytes; str; what JSON says; a read-only numpy array for tensors, a view of the
            bytes; a numpy scalar for scalar columns.

        Raises:
            ShardCorruptError, SourceError, SchemaError, IndexError: as `read`.
        """
        declared = self._columns.get(column)
        if declared is not None and declared.kind is Kind.SCALAR:
            self._check_row(row)
            return self.scalar(row, column)
        view = self.read(row, column)
        try:
            match self._columns[column].kind:
                case Kind.STR:
                    return str(view, "utf-8")
                case Kind.JSON:
                    return json.loads(bytes(view))
                case Kind.TENSOR:
                    dtype = np.dtype(self._columns[column].dtype).newbyteorder("<")
                    return np.frombuffer(view, dtype=dtype).reshape(self.shape(row, column))
                case _:
                    return bytes(view)
        except (ValueError, RecursionError) as error:
            self._fail(f"its bytes are not of the column's type: {error}", row=row, column=column)

    def close(self) -> None:
        """Close the file. Calling it again does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _placed(self, row: int, column: str, method: str) -> SamplePlaces:
        places = self._footer.placed.get(column)
        if places is None:
            self._refuse(column, method, Kind.SCALAR)
        self._check_row(row)
        return places

    def _check_row(self, row: int) -> None:
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} of shard {self.shard} of {self.dataset}, which has {self.rows} rows")

    def _read_file(self, row: int, column: str, offset: int, nbytes: int, memory: ReadMemory | None) -> memoryview:
        try:
            return self._file.read(offset, nbytes, memory)
        except SourceError as error:
            raise SourceError(
                f"{self._place(row, column)}: {error}",
                dataset=self.dataset,
                shard=self.shard,
                row=row,
                column=column,
            ) from error

    def _read_batch(self, column: str, batch: int, first: int) -> memoryview:
        places: BatchPlaces = self._footer.batched[column]
        start, nbytes, written = places.starts.item(batch), places.nbytes.item(batch), places.checksums.item(batch)
        view = self._read_right(
            lambda: self._file.read(start, nbytes), lambda data: sample_checksum(data) == written, start, nbytes
        )
        if (found := sample_checksum(view)) != written:
            reason = f"its record batch has checksum {found:#018x}, and {written:#018x} was written"
            self._fail(reason, row=first, column=column)
        return view

    def _keep(self, column: str) -> npt.NDArray[Any]:
        """All values of a column that lies in record batches; read and verified once, then kept."""
        places: BatchPlaces = self._footer.batched[column]
        firsts = (np.cumsum(self._footer.batch_rows) - self._footer.batch_rows).tolist()
        if self.far:
            ranges = zip(places.starts.tolist(), places.nbytes.tolist(), strict=True)
            bring_near([self.range_of(start, nbytes) for start, nbytes in ranges])
        pieces = [
            self._decode_batch(column, self._read_batch(column, batch, first), batch)
            for batch, first in enumerate(firsts)
        ]
        dtype = "<i4" if self._columns[column].kind is Kind.TENSOR else self._columns[column].dtype
        values = np.concatenate(pieces) if pieces else np.empty(0, dtype=dtype)
        values.flags.writeable = False
        self._batched[column] = values  # two threads may both come here: they keep equal arrays
        return values

    def _read_right(
        self, read: Callable[[], Bytes], is_right: Callable[[Bytes], bool], offset: int, nbytes: int
    ) -> Bytes:
        """What `read` gives; read again where it is wrong and came over a network, which may have damaged it.

        Args:
            read: reads it.
            is_right: by its checksum.
            offset: where in the file it lies.
            nbytes: how many bytes it is.
        """
        found, file = read(), self._file
        if isinstance(file, FarFile):
            for _ in range(TRIES_AGAIN):
                if is_right(found):
                    break
                file.distrust(offset, nbytes)
                found = read()
        return found

    def _place(self, row: int, column: str) -> str:
        return f"shard {self.shard} of {self.dataset}, row {row}, column {column!r}"

    def _refuse(self, column: str, method: str, other: Kind | None) -> NoReturn:
        if column not in self._columns:
            opened = ", ".join(map(repr, self._columns))
            raise SchemaError(
                f"column {column!r} was not opened in shard {self.shard} of {self.dataset}; opened: {opened}"
            )
        instead = "use scalars() or value()" if other is Kind.SCALAR else "use read() or value()"
        raise SchemaError(f"column {column!r} is {self._columns[column].spec!r}: {method}() is not for it; {instead}")

    def _fail(self, reason: str, *, row: int | None = None, column: str | None = None) -> NoReturn:
        place = "" if row is None else f", row {row}, column {column!r}"
        raise ShardCorruptError(
            f"shard {self.shard} of {self.dataset}{place}: {reason}; `forebay verify` lists what else is damaged: "
            f"copy the shard again from where it came",
            dataset=self.dataset,
            shard=self.shard,
            row=row,
            column=column,
        )
