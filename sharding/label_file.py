"""Label files: a CSV or JSONL file that names images and what belongs to each.

It reads the file and finds the types; it looks at no image.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from forebay.errors import ConfigError, SourceError

__all__ = ["LabelFile", "read_label_file"]

_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})", re.ASCII)  # int64; leading zeros mean a name such as a ZIP code
_FLOAT = re.compile(r"-?(0|[1-9]\d*)(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
_RESERVED = {"image", "name"}
Row = tuple[int, dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelFile:
    """What a label file says."""

    files: Sequence[str]
    """Paths of images, relative to their folder, each once."""
    columns: Mapping[str, str]
    """Declarations of the other columns."""
    classes: Mapping[str, Sequence[str]]
    """Class names of the label column, sorted, when labels are names."""
    values: Sequence[Mapping[str, Any]]
    """For each file, the value of each column."""


def read_label_file(path: Path) -> LabelFile:
    """Read a `.csv` file with a header line, or a `.jsonl` file of one object a line.

    The columns `file` and `label` are needed; further ones are kept. A column is int64, float64 or bool when all its
    values are, else str; in JSONL, lists and objects make it json. Labels are integers, or names that are numbered in
    sorted order.

    Raises:
        ConfigError: the file is not of that form; names the line.
        SourceError: it cannot be read.
    """
    rows = list(_read_rows(path))
    if not rows:
        raise ConfigError(f"{path} labels no image: it has no lines")
    names = list(rows[0][1])
    _check_names(path, names)
    for line, row in rows:
        if list(row) != names and set(row) != set(names):
            raise ConfigError(f"{path}, line {line}: the columns are {list(row)}, and line {rows[0][0]} has {names}")
    files = [_image_path(path, line, row["file"]) for line, row in rows]
    if len(set(files)) != len(files):
        twice = Counter(files).most_common(1)[0][0]
        raise ConfigError(f"{path} names {twice!r} twice; a file has one label")
    columns: dict[str, str] = {}
    typed: dict[str, list[Any]] = {}
    for name in names:
        if name != "file":
            columns[name], typed[name] = _typed([row[name] for _, row in rows], is_text=path.suffix.lower() == ".csv")
    classes: dict[str, list[str]] = {}
    if columns["label"] == "str":
        classes["label"] = sorted(set(typed["label"]))
        numbers = {label: number for number, label in enumerate(classes["label"])}
        columns["label"], typed["label"] = "int64", [numbers[label] for label in typed["label"]]
    elif columns["label"] != "int64":
        raise ConfigError(f"{path}: labels are {columns['label']}; give integers, or names that are numbered")
    values = [dict(zip(typed, row, strict=True)) for row in zip(*typed.values(), strict=True)]
    return LabelFile(files=files, columns=columns, classes=classes, values=values)


def _read_rows(path: Path) -> Iterator[Row]:
    kind = path.suffix.lower()
    if kind not in (".csv", ".jsonl"):
        raise ConfigError(f"{path}: a label file is called .csv (with a header line) or .jsonl (an object a line)")
    try:
        # File names may hold any bytes: surrogateescape brings them through.
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            yield from _csv_rows(path, file) if kind == ".csv" else _jsonl_rows(path, file)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}", path=str(path)) from error


def _csv_rows(path: Path, file: Iterator[str]) -> Iterator[Row]:
    reader = csv.DictReader(file, strict=True)
    try:
        _check_different(path, reader.fieldnames or ())
        for row in reader:
            if None in row or None in row.values():
                raise ConfigError(f"{path}, line {reader.line_num}: it has more or fewer fields than the header")
            yield reader.line_num, row
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: this is no CSV: {error}") from error


def _jsonl_rows(path: Path, file: Iterator[str]) -> Iterator[Row]:
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {line}: this is no JSON: {error}") from error
        if not isinstance(row, dict) or None in row.values():
            raise ConfigError(
                f'{path}, line {line}: each line is an object without nulls, such as {{"file": "a.jpg", "label": 3}}'
            )
        yield line, row


def _check_names(path: Path, names: Sequence[str]) -> None:
    missing = {"file", "label"} - set(names)
    if missing:
        raise ConfigError(f"{path} has the columns {list(names)}; {sorted(missing)} are needed")
    taken = _RESERVED & set(names)
    if taken:
        raise ConfigError(f"{path} has columns called {sorted(taken)}, which forebay writes itself; rename them")


def _check_different(path: Path, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise ConfigError(f"{path} has two columns of one name: {list(names)}")


def _image_path(path: Path, line: int, value: Any) -> str:
    parts = PurePosixPath(value).parts if isinstance(value, str) else ()
    if not parts or value.startswith("/") or ".." in parts or "\0" in value:
        raise ConfigError(f"{path}, line {line}: {value!r} is no path within the folder of images")
    return str(PurePosixPath(value))


def _typed(values: Sequence[Any], *, is_text: bool) -> tuple[str, list[Any]]:
    """The narrowest declaration that holds all values, and the values as it has them."""
    if is_text:
        if all(_INTEGER.fullmatch(value) for value in values):
            return "int64", [int(value) for value in values]
        if all(_FLOAT.fullmatch(value) for value in values):
            return "float64", [float(value) for value in values]
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return "bool", list(values)
    if kinds == {int} and all(-(1 << 63) <= value < 1 << 63 for value in values):
        return "int64", list(values)
    if kinds <= {int, float}:
        return "float64", [float(value) for value in values]
    if kinds == {str}:
        return "str", [value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for value in values]
    return "json", list(values)
