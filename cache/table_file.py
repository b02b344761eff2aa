"""One record batch as a file of the cache: an Arrow IPC stream, and behind its end the checksum of all of it.

Anything that reads Arrow streams reads it and does not look behind the end. It is written once and mapped.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import xxhash

from forebay.errors import ShardCorruptError
from forebay.sharding import READ_NBYTES, MappedFile

__all__ = ["file_nbytes", "read_batch", "write_batch"]

MAGIC = b"forebay unit 1\n\0"
TAIL_NBYTES = len(MAGIC) + 16


def file_nbytes(batch: pa.RecordBatch) -> int:
    """Bytes of the file that `write_batch` would write."""
    sink = pa.MockOutputStream()
    _write_stream(batch, sink)
    return int(sink.size()) + TAIL_NBYTES


def write_batch(batch: pa.RecordBatch, sink: Any) -> None:
    """Write the file.

    Args:
        batch: of one piece.
        sink: a file of pyarrow, or a function that takes an offset and bytes.
    """
    if callable(sink):
        _through(_Checked(sink), batch)
    else:
        _through(_Checked(lambda _, data: sink.write(data)), batch)


def _through(file: _Checked, batch: pa.RecordBatch) -> None:
    with pa.PythonFile(file, mode="w") as stream:
        _write_stream(batch, stream)
        stream.flush()
    file.finish()


def _write_stream(batch: pa.RecordBatch, sink: Any) -> None:
    options = pa.ipc.IpcWriteOptions(use_threads=False, emit_dictionary_deltas=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)


class _Checked(io.RawIOBase):
    """A file that is written from its beginning, and its checksum meanwhile."""

    def __init__(self, write_at: Callable[[int, memoryview], object]) -> None:
        self._write_at = write_at
        self._state = xxhash.xxh3_128()
        self._nbytes = 0

    def write(self, data: Any, /) -> int:
        """All of it."""
        view = memoryview(data).cast("B")
        self._state.update(view)
        self._write_at(self._nbytes, view)
        self._nbytes += len(view)
        return len(view)

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Bytes so far."""
        return self._nbytes

    def finish(self) -> None:
        """Write what stands behind the end."""
        self._write_at(self._nbytes, memoryview(MAGIC + self._state.digest()))


def read_batch(file: MappedFile, *, verify: bool) -> pa.RecordBatch:
    """The batch of a file, a view of its map, which it keeps.

    Args:
        file: that `write_batch` wrote, or claims so.
        verify: compare the checksum: 5 ms for 64 MiB in memory.

    Raises:
        ShardCorruptError: it is damaged.
    """
    body = file.nbytes - TAIL_NBYTES
    if body < 0 or bytes(file.read(body, len(MAGIC))) != MAGIC:
        raise ShardCorruptError(f"{file.name} is cut short or of another version; delete it to have it made again")
    if verify:
        state = xxhash.xxh3_128()
        for offset in range(0, body, READ_NBYTES):
            state.update(file.read(offset, min(READ_NBYTES, body - offset)))
        wanted = bytes(file.read(body + len(MAGIC), 16))
        if state.digest() != wanted:
            raise ShardCorruptError(
                f"{file.name} has checksum {state.hexdigest()}, and carries {wanted.hex()}; delete it to have it made "
                f"again"
            )
    try:
        with pa.ipc.open_stream(pa.py_buffer(file.read(0, body))) as reader:
            return reader.read_next_batch()
    except (pa.ArrowException, OSError, StopIteration, ValueError) as error:
        raise ShardCorruptError(f"{file.name} is no Arrow stream of a batch: {error}; delete it") from error
