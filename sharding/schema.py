"""What the samples of a data set are: named columns with kinds, dtypes and shapes, as Python values, JSON and Arrow.

It describes; it reads and writes no sample.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.errors import SchemaError

__all__ = ["SCHEMA_METADATA_KEY", "Column", "Kind", "Schema"]

SCHEMA_METADATA_KEY = b"forebay"
"""Key of an Arrow schema's metadata under which the schema stands as JSON."""

DTYPES = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
)
MAX_DIMENSIONS = 32
MAX_DIMENSION = (1 << 31) - 1  # Arrow keeps the shape of a tensor in int32
_TENSOR = re.compile(r"(?P<dtype>[a-z]+\d+)\[(?P<shape>[0-9*, ]*)\]")
_HINTS = {
    "int": "int64",
    "float": "float32",
    "double": "float64",
    "string": "str",
    "label": "int64",
    "jpeg": "image",
    "wav": "audio",
    "mp4": "video",
}


class Kind(StrEnum):
    """What a column holds."""

    IMAGE = "image"
    """An encoded image (JPEG, PNG, ...), stored as it came."""
    MASK = "mask"
    """An encoded image whose pixels are class numbers: resized by nearest neighbour, never normalised."""
    AUDIO = "audio"
    """An encoded recording (WAV, FLAC, Ogg, MP3), stored as it came."""
    VIDEO = "video"
    """An encoded video (MP4, Matroska, ...), stored as it came."""
    BYTES = "bytes"
    STR = "str"
    JSON = "json"
    SCALAR = "scalar"
    """One number or truth value; `Column.dtype` says which."""
    TENSOR = "tensor"
    """An array; `Column.dtype` and `Column.shape` say which."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of a schema."""

    name: str
    kind: Kind
    dtype: str | None = None
    """numpy's name of the dtype of a scalar or tensor, else None."""
    shape: tuple[int | None, ...] | None = None
    """Shape of a tensor, None where a dimension varies from sample to sample; None for other kinds."""
    classes: tuple[str, ...] | None = None
    """Names of the classes that an integer column numbers from 0, when it is a label."""

    def __post_init__(self) -> None:
        if not self.name or self.name.startswith("__"):
            raise SchemaError(
                f"column name {self.name!r}: names are not empty and do not begin with '__', which is ours"
            )
        if not _is_text(self.name):
            raise SchemaError(f"column name {self.name!r} is not valid Unicode; rename the column")
        if self.classes is not None:
            self._check_classes(self.classes)

    def _check_classes(self, classes: tuple[str, ...]) -> None:
        if self.kind is not Kind.SCALAR or self.dtype is None or "int" not in self.dtype:
            raise SchemaError(f"column {self.name!r} is {self.spec!r}: only an integer column has class names")
        if not classes or len(set(classes)) != len(classes) or not all(_is_text(name) for name in classes):
            raise SchemaError(
                f"column {self.name!r}: class names are one or more different, valid strings: {classes!r}"
            )
        if len(classes) - 1 > np.iinfo(self.dtype).max:
            raise SchemaError(f"column {self.name!r}: {self.dtype} cannot number {len(classes)} classes; use int64")

    @classmethod
    def from_spec(cls, name: str, spec: str, classes: Sequence[str] | None = None) -> Column:
        """The column that `spec` declares: `image`, `int64`, `float32[3,4]`, `uint8[*,80]` ...

        Raises:
            SchemaError: the name is reserved, or no column is declared like this; lists what can be declared.
        """
        chosen = None if classes is None else tuple(classes)
        if spec == "bool" or spec in DTYPES:
            return cls(name=name, kind=Kind.SCALAR, dtype=spec, classes=chosen)
        if spec in set(Kind) - {Kind.SCALAR, Kind.TENSOR}:
            return cls(name=name, kind=Kind(spec), classes=chosen)
        tensor = _TENSOR.fullmatch(spec) if isinstance(spec, str) else None
        if tensor is not None and tensor["dtype"] in DTYPES:
            shape = _parse_shape(name, spec, tensor["shape"])
            return cls(name=name, kind=Kind.TENSOR, dtype=tensor["dtype"], shape=shape, classes=chosen)
        hint = f" (did you mean {_HINTS[spec]!r}?)" if spec in _HINTS else ""
        raise SchemaError(
            f"column {name!r}: {spec!r} is no column type{hint}; there are image, mask, audio, video, bytes, str, "
            f"json, bool, {', '.join(DTYPES)}, and tensors such as 'float32[3,4]' or, with a dimension that varies, "
            "'uint8[*,80]'"
        )

    @property
    def spec(self) -> str:
        """The declaration that `from_spec` reads."""
        if self.kind is Kind.SCALAR:
            return str(self.dtype)
        if self.kind is Kind.TENSOR:
            return f"{self.dtype}[{','.join('*' if size is None else str(size) for size in self.shape or ())}]"
        return self.kind.value

    @property
    def is_variable(self) -> bool:
        """Whether it is a tensor whose shape varies from sample to sample."""
        return self.shape is not None and None in self.shape

    @property
    def arrow_type(self) -> pa.DataType:
        """How the column lies in a shard: media as large_binary, variable tensors as a struct of data and shape."""
        if self.kind is Kind.SCALAR:
            return pa.bool_() if self.dtype == "bool" else pa.from_numpy_dtype(np.dtype(self.dtype))
        if self.kind is Kind.TENSOR:
            value = pa.from_numpy_dtype(np.dtype(self.dtype))
            if not self.is_variable:
                return pa.fixed_shape_tensor(value, self.shape)
            data = pa.large_list(pa.field("item", value, nullable=False))
            shape = pa.list_(pa.field("item", pa.int32(), nullable=False), len(self.shape or ()))
            return pa.struct([pa.field("data", data, nullable=False), pa.field("shape", shape, nullable=False)])
        return pa.large_string() if self.kind in (Kind.STR, Kind.JSON) else pa.large_binary()


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a data set, in order."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        if not self.columns:
            raise SchemaError("a data set has at least one column; declare columns={'image': 'image', ...}")
        if len(set(self.names)) != len(self.columns):
            raise SchemaError(f"two columns have one name: {self.names}")

    @classmethod
    def from_spec(cls, columns: Mapping[str, str], classes: Mapping[str, Sequence[str]] | None = None) -> Schema:
        """The schema of `{"image": "image", "label": "int64"}`, with class names for the columns that have them.

        Raises:
            SchemaError: a declaration that does not hold, named.
        """
        classes = classes or {}
        unknown = sorted(set(classes) - set(columns))
        if unknown:
            raise SchemaError(f"class names for {unknown}, which are no columns; there are {list(columns)}")
        return cls(tuple(Column.from_spec(name, spec, classes.get(name)) for name, spec in columns.items()))

    @classmethod
    def from_json(cls, value: Any) -> Schema:
        """The schema that `to_json` wrote.

        Raises:
            SchemaError: `value` is not of that form.
        """
        try:
            return cls(
                tuple(
                    Column.from_spec(entry["name"], entry["type"], entry.get("classes")) for entry in value["columns"]
                )
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise SchemaError(f"this is no schema: {str(value)[:200]!r}") from error

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts and strings, the same for equal schemas."""
        return {
            "columns": [
                {"name": column.name, "type": column.spec}
                | ({} if column.classes is None else {"classes": list(column.classes)})
                for column in self.columns
            ]
        }

    def canonical(self) -> bytes:
        """JSON in one spelling only: what fingerprints are made of."""
        return json.dumps(self.to_json(), ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def arrow_schema(self) -> pa.Schema:
        """Arrow's schema of a shard; no column holds nulls, and the metadata holds this schema as JSON."""
        return _arrow_schema(self)

    def select(self, names: Sequence[str] | None) -> tuple[Column, ...]:
        """The columns named, in the order of `names`; all of them when None.

        Raises:
            SchemaError: a name that is no column; lists those there are.
        """
        return self.columns if names is None else tuple(self[name] for name in names)

    def __getitem__(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise SchemaError(f"there is no column {name!r}; there are {', '.join(map(repr, self.names))}", column=name)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


@functools.lru_cache(maxsize=64)
def _arrow_schema(schema: Schema) -> pa.Schema:  # asked for at each shard's opening
    fields = [pa.field(column.name, column.arrow_type, nullable=False) for column in schema.columns]
    return pa.schema(fields, metadata={SCHEMA_METADATA_KEY: schema.canonical()})


def _parse_shape(name: str, spec: str, text: str) -> tuple[int | None, ...]:
    parts = [part.strip() for part in text.split(",")]
    shape = tuple(None if part == "*" else int(part) if part.isdigit() else -1 for part in parts)
    if not 1 <= len(shape) <= MAX_DIMENSIONS or any(
        size is not None and not 0 < size <= MAX_DIMENSION for size in shape
    ):
        raise SchemaError(
            f"column {name!r}: {spec!r} needs 1 to {MAX_DIMENSIONS} dimensions, each '*' or 1 to {MAX_DIMENSION}; "
            f"a single number is declared without brackets"
        )
    if math.prod(size or 1 for size in shape) > MAX_DIMENSION:
        raise SchemaError(f"column {name!r}: {spec!r} is more than {MAX_DIMENSION} elements a sample")
    return shape


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any(0xD800 <= ord(letter) <= 0xDFFF for letter in value)
