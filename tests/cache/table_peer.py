"""Reads Parquet files by forebay and by pyarrow, each in a process of its own, and tells what came of it.

A program, so that a file that kills its reader kills nothing else: paths come on standard input, one JSON object a
line goes out. It imports no torch, and forks once a file.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.cache import open_table
from forebay.errors import ForebayError
from forebay.sharding import ParquetDataset, UnitReader


def read_ours(path: str) -> pa.Table:
    table = open_table(path, None)
    data = ParquetDataset(table, columns=table.schema.names)
    reader = UnitReader(data)
    units = [reader.read(unit) for unit in range(data.num_shards)]
    return pa.concat_tables(units) if units else table.schema.empty_table()


def read_theirs(path: str) -> pa.Table:
    return pq.ParquetFile(path, page_checksum_verification=True).read(use_threads=False)


def outcome(path: str, side: str) -> dict[str, Any]:
    try:
        table = read_ours(path) if side == "ours" else read_theirs(path)
    except ForebayError as error:
        return {"refused": str(error)}
    except Exception as error:  # noqa: BLE001 - what the peer raises, and what we should not
        return {"raised": f"{type(error).__name__}: {error}"}
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata(None).combine_chunks()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return {"rows": table.num_rows, "table": sink.getvalue().to_pybytes()}


def in_a_child(path: str, side: str) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        found = outcome(path, side)
        with open(writing, "wb") as pipe:
            table = found.pop("table", b"")
            pipe.write(json.dumps(found).encode() + b"\n" + table)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said, _, table = pipe.read().partition(b"\n")
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status):
        return {"died": os.waitstatus_to_exitcode(status)}
    found = dict(json.loads(said))
    return found | {"table": table} if table else found


def equal(ours: bytes, theirs: bytes) -> bool:
    one, other = (pa.ipc.open_stream(content).read_all() for content in (ours, theirs))
    if one.schema.names != other.schema.names or one.schema.types != other.schema.types:
        return False
    return one.num_rows == other.num_rows and all(_same(a, b) for a, b in zip(one.columns, other.columns, strict=True))


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    return bool(one.equals(other)) or repr(one.to_pylist()) == repr(other.to_pylist())  # NaN is not NaN to Arrow


def main() -> None:
    for line in sys.stdin:
        path = line.rstrip("\n")
        ours, theirs = in_a_child(path, "ours"), in_a_child(path, "theirs")
        tables = ours.pop("table", None), theirs.pop("table", None)
        said = {"path": path, "ours": ours, "theirs": theirs}
        if tables[0] is not None and tables[1] is not None:
            said["equal"] = equal(tables[0], tables[1])
        print(json.dumps(said), flush=True)  # noqa: T201 - this is its output


if __name__ == "__main__":
    main()
