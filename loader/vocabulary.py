"""A vocabulary: a column's values in a fixed order, and the code of each. `forebay vocab` makes one.

Code 0 is every value that is not in it; the values follow from 1. How values are counted stands in `value_counts.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyarrow import types

from forebay.errors import ConfigError, SchemaError, SourceError
from forebay.loader.table_columns import plain_type
from forebay.loader.table_values import Array, as_numbers

__all__ = ["UNKNOWN", "Vocabulary"]

UNKNOWN = 0
"""The code of values that are not in a vocabulary."""
_VERSION = 1


class Vocabulary:
    """Values and their codes. Immutable, picklable.

    Args:
        values: texts, bytes or whole numbers, each once, none null, in the order of their codes from 1 on.
        counts: how often each was seen, when known.
        counts_short_by: by how much a count may be too small; 0: they are exact.
        unknown: "code" gives other values the code 0; "error" refuses them by name.
    """

    def __init__(
        self,
        values: pa.Array | Sequence[Any],
        *,
        counts: Sequence[int] | None = None,
        counts_short_by: int = 0,
        unknown: Literal["code", "error"] = "code",
    ) -> None:
        if unknown not in ("code", "error"):
            raise ConfigError(f'Vocabulary(unknown={unknown!r}): give "code" or "error"')
        array = values if isinstance(values, pa.Array) else pa.array(list(values))
        if types.is_null(array.type):
            array = array.cast(pa.large_string())
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        kind = plain_type(array.type)
        if not (types.is_large_string(kind) or types.is_large_binary(kind) or types.is_integer(kind)):
            raise ConfigError(f"Vocabulary of {array.type}: give texts, bytes or whole numbers")
        if types.is_integer(kind):
            kind = pa.uint64() if (pc.max(array).as_py() or 0) >= 1 << 63 else pa.int64()  # one type for all of them
        array = array.cast(kind)
        if array.null_count or len(array.unique()) != len(array):
            raise ConfigError("Vocabulary: a value is null or there twice; give each once")
        if counts is not None and len(counts) != len(array):
            raise ConfigError(f"Vocabulary: {len(counts)} counts of {len(array)} values; give one each")
        self.values = array
        self.counts = None if counts is None else [int(count) for count in counts]
        self.counts_short_by = counts_short_by
        self.unknown = unknown

    def __len__(self) -> int:
        """The number of codes, the unknown one's included: rows of an embedding."""
        return len(self.values) + 1

    @cached_property
    def identity(self) -> str:
        """Of all that changes codes."""
        hashed = xxhash.xxh3_128(f"{self.values.type} {len(self.values)} {self.unknown}".encode())
        if types.is_integer(self.values.type):
            hashed.update(as_numbers(self.values).tobytes())
        elif len(self.values):
            _, bounds, data = self.values.buffers()
            offsets = np.frombuffer(bounds, np.int64, len(self.values) + 1, self.values.offset * 8)
            hashed.update(np.diff(offsets).tobytes())
            hashed.update(memoryview(b"" if data is None else data)[offsets[0] : offsets[-1]])
        return hashed.hexdigest()

    def result(self, kind: pa.DataType) -> pa.DataType:
        """The type of codes.

        Raises:
            ConfigError: values of type `kind` are never in it.
        """
        kind = plain_type(kind)
        if kind == self.values.type or (types.is_integer(kind) and types.is_integer(self.values.type)):
            return pa.int64()
        raise ConfigError(
            f"this vocabulary holds {self.values.type}, and the column {kind}; give one made of the column"
        )

    def apply(self, values: Array | pa.Array) -> Array:
        """The codes of values, int64 (n,); a null's is `UNKNOWN`.

        Raises:
            SchemaError: a value that is not in it, where `unknown="error"`.
        """
        if isinstance(values, pa.DictionaryArray):
            codes = self.apply(values.dictionary)
            if not len(codes):
                return np.zeros(len(values), np.int64)
            places = as_numbers(pc.fill_null(pc.cast(values.indices, pa.int64()), 0))
            return codes[places]
        array = values if isinstance(values, pa.Array) else pa.array(values)
        kind = self.values.type
        alike = _whole(array, kind) if types.is_integer(kind) else array.cast(kind)
        found = pc.index_in(alike, value_set=self.values, skip_nulls=True)
        codes = as_numbers(pc.cast(pc.fill_null(found, -1), pa.int64())) + 1
        if self.unknown == "error":
            missing = (codes == UNKNOWN) & array.is_valid().to_numpy(zero_copy_only=False)
            if missing.any():
                value = array[int(np.argmax(missing))].as_py()
                raise SchemaError(
                    f"{value!r} is not in the vocabulary of {len(self.values)} values; make one by `forebay vocab`, "
                    'or give unknown="code", which makes it 0',
                    value=value,
                )
        return codes

    def __call__(self, values: pa.Array | Sequence[Any]) -> Array:
        """The same for a model that serves: the codes of a list or array of values."""
        array = values if isinstance(values, pa.Array) else pa.array(list(values), self.values.type)
        self.result(array.type.value_type if types.is_dictionary(array.type) else array.type)
        return self.apply(array)

    def decode(self, codes: Sequence[int]) -> list[Any]:
        """The values of codes; None of `UNKNOWN`."""
        return [None if code == UNKNOWN else self.values[int(code) - 1].as_py() for code in codes]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it.

        Raises:
            ConfigError: it holds bytes, which JSON does not.
        """
        if types.is_large_binary(self.values.type):
            raise ConfigError("a vocabulary of bytes is no JSON; save it with a name that ends in .arrow")
        saved: dict[str, Any] = {"version": _VERSION, "type": str(self.values.type), "unknown": self.unknown}
        return {
            **saved,
            "counts_short_by": self.counts_short_by,
            "values": self.values.to_pylist(),
            "counts": self.counts,
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Vocabulary:
        """What `to_dict` gave.

        Raises:
            ConfigError: it is of another version, or none.
        """
        try:
            if saved["version"] != _VERSION:
                raise ConfigError(f"a vocabulary of version {saved['version']}; this forebay reads {_VERSION}")
            values = pa.array(saved["values"], pa.type_for_alias(saved["type"]))
            short = saved["counts_short_by"]
            return cls(values, counts=saved["counts"], counts_short_by=short, unknown=saved["unknown"])
        except (KeyError, TypeError, pa.ArrowException) as error:
            raise ConfigError(f"this is no vocabulary: {error!r}; make one by `forebay vocab`") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file that ends in .json or .arrow.

        Raises:
            SourceError: the file cannot be written.
        """
        path = _suffixed(path)
        try:
            if path.suffix == ".json":
                path.write_text(json.dumps(self.to_dict(), ensure_ascii=False, indent=1), encoding="utf-8")
                return
            table = pa.table({"value": self.values} | ({} if self.counts is None else {"count": self.counts}))
            facts = {"version": _VERSION, "unknown": self.unknown, "counts_short_by": self.counts_short_by}
            table = table.replace_schema_metadata({"forebay.vocabulary": json.dumps(facts)})
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        except OSError as error:
            raise SourceError(f"the vocabulary cannot be written to {path}: {error}", path=str(path)) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """What `save` wrote.

        Raises:
            SourceError: the file cannot be read.
            ConfigError: it holds something else.
        """
        path = _suffixed(path)
        try:
            if path.suffix == ".json":
                return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
            with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
                table = reader.read_all()
            facts = json.loads((table.schema.metadata or {})[b"forebay.vocabulary"])
            counts = table["count"].to_pylist() if "count" in table.column_names else None
            return cls.from_dict({**facts, "type": "string", "values": [], "counts": None})._with_values(
                table["value"].combine_chunks(), counts
            )
        except OSError as error:
            raise SourceError(f"the vocabulary {path} cannot be read: {error}", path=str(path)) from error
        except (KeyError, UnicodeDecodeError, json.JSONDecodeError, pa.ArrowException) as error:
            raise ConfigError(f"{path} holds no vocabulary ({error!r}); make one by `forebay vocab`") from error

    def _with_values(self, values: pa.Array, counts: list[int] | None) -> Vocabulary:
        return Vocabulary(values, counts=counts, counts_short_by=self.counts_short_by, unknown=self.unknown)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self.values):,} values of {self.values.type}, unknown={self.unknown!r})"


def _whole(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Whole numbers as `kind`, int64 or uint64; those that it does not hold are null, which nothing equals."""
    if kind == pa.int64() and array.type == pa.uint64():
        array = pc.if_else(pc.less_equal(array, pa.scalar((1 << 63) - 1, pa.uint64())), array, None)
    elif kind == pa.uint64() and types.is_signed_integer(array.type):
        array = pc.if_else(pc.greater_equal(array, 0), array, None)
    return array.cast(kind)


def _suffixed(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.suffix not in (".json", ".arrow"):
        raise ConfigError(f"{path}: a vocabulary is kept in a file that ends in .json or .arrow")
    return path
