"""Which files of a tree are a table's, and the columns that the names of its folders hold (`year=2024/`).

Pure functions of relative paths; nothing is listed or opened here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa

from forebay.errors import SchemaError

__all__ = ["Partitions", "is_hidden", "parse_partitions", "sort_key"]

NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})", re.ASCII)
_INT32, _INT64 = 1 << 31, 1 << 63


def is_hidden(path: str) -> bool:
    """Whether a file is no data: its name, or that of a folder on the way to it, begins with `.` or `_`.

    As pyarrow has it: `_SUCCESS`, `_metadata`, `.part-0.crc`. A folder `_year=2024` is a partition all the same.
    """
    *folders, name = path.split("/")
    return name.startswith((".", "_")) or any(
        folder.startswith(".") or (folder.startswith("_") and "=" not in folder) for folder in folders
    )


def sort_key(path: str) -> bytes:
    """By the bytes of the path, so that every machine has the files in one order."""
    return path.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Partitions:
    """Columns that folders are named after, and each file's values of them."""

    fields: tuple[pa.Field, ...]
    values: tuple[tuple[int | str | None, ...], ...]
    """By file."""


def parse_partitions(paths: Sequence[str], where: str) -> Partitions:
    """Read `key=value` folders: a column is int32 or int64 where all its values are such numbers, else string.

    Args:
        paths: relative, `/` between folders.
        where: the table, for messages.

    Raises:
        SchemaError: some files lie under a key that others do not lie under.
    """
    keys: list[str] | None = None
    first = ""
    rows: list[list[str | None]] = []
    for path in paths:
        parts = [part.split("=", 1) for part in path.split("/")[:-1] if "=" in part]
        names = [name for name, _ in parts]
        if keys is None:
            keys, first = names, path
        elif names != keys:
            raise SchemaError(
                f"{where}: {path} lies in folders named after {names}, and {first} after {keys}; give the files of one "
                f"kind by a glob or a list",
                path=path,
            )
        rows.append([None if value == NULL else unquote(value) for _, value in parts])
    fields: list[pa.Field] = []
    columns: list[list[int | str | None]] = []
    for k, name in enumerate(keys or []):
        texts = [row[k] for row in rows]
        numbers = _as_integers(texts)
        if numbers is None:
            fields.append(pa.field(name, pa.string()))
            columns.append(list(texts))
        else:
            small = all(number is None or -_INT32 <= number < _INT32 for number in numbers)
            fields.append(pa.field(name, pa.int32() if small else pa.int64()))
            columns.append(list(numbers))
    return Partitions(tuple(fields), tuple(zip(*columns, strict=True)) if columns else tuple(() for _ in rows))


def _as_integers(texts: Sequence[str | None]) -> list[int | None] | None:
    if all(text is None for text in texts) or not all(text is None or _INTEGER.fullmatch(text) for text in texts):
        return None
    numbers = [None if text is None else int(text) for text in texts]
    return numbers if all(number is None or -_INT64 <= number < _INT64 for number in numbers) else None
