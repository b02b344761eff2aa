"""The manifest: the small file that makes a folder a data set. It names the index and says what the whole amounts to.

`manifest.json` is written last and atomically. It carries a checksum of itself, so that no flipped byte passes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import xxhash

from forebay.errors import ManifestError, SchemaError
from forebay.sharding.schema import Schema

__all__ = ["INDEX_NAME", "MANIFEST_LIMIT_NBYTES", "MANIFEST_NAME", "MANIFEST_VERSION", "FileEntry", "Manifest"]

MANIFEST_NAME = "manifest.json"
INDEX_NAME = "index.arrow"
MANIFEST_VERSION = 1
MANIFEST_LIMIT_NBYTES = 64 << 20
"""A larger file is no manifest: 64 MiB hold the names of a million classes."""
FILE_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"
"""What index and shards may be called: no folder, no hidden file, nothing that a shell or a bucket would misread."""
_HEX_128 = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """What the manifest knows of the index."""

    name: str
    nbytes: int
    checksum: str
    """xxh3-128 of the file, 32 hexadecimal digits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """A data set, in short."""

    schema: Schema
    fingerprint: str
    """32 hexadecimal digits; see `index.fingerprint_of`."""
    rows: int
    shards: int
    nbytes: int
    """Bytes of all shard files."""
    parent: str | None
    """Fingerprint of the data set that this one was appended to."""
    writer: dict[str, Any]
    """The writer's settings."""
    index: FileEntry

    def encode(self) -> bytes:
        """The content of `manifest.json`: the same bytes for equal manifests."""
        content = {
            "format": "forebay",
            "version": MANIFEST_VERSION,
            "schema": self.schema.to_json(),
            "fingerprint": self.fingerprint,
            "rows": self.rows,
            "shards": self.shards,
            "nbytes": self.nbytes,
            "parent": self.parent,
            "writer": self.writer,
            "index": {"name": self.index.name, "nbytes": self.index.nbytes, "checksum": self.index.checksum},
        }
        return json.dumps(content | {"checksum": _checksum(content)}, indent=2, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes | memoryview, where: str) -> Manifest:
        """Read what `encode` wrote, believing none of it.

        Args:
            data: the content of `manifest.json`.
            where: name of the data set, for messages.

        Raises:
            ManifestError: from a newer version, or damaged, or not a manifest; says which and what to do.
        """
        content = _load(data, where)
        _check_version(content, where)
        if _checksum({key: value for key, value in content.items() if key != "checksum"}) != content.get("checksum"):
            raise ManifestError(
                f"{MANIFEST_NAME} of {where} does not have the checksum it carries: it was damaged or edited; "
                f"copy it again from where it came"
            )
        try:
            return cls._from_content(content)
        except (KeyError, TypeError, ValueError) as error:  # SchemaError is a ValueError
            what = error if isinstance(error, ManifestError | SchemaError) else f"{type(error).__name__}: {error}"
            raise ManifestError(f"{MANIFEST_NAME} of {where} does not hold: {what}") from error

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> Manifest:
        index = content["index"]
        if re.fullmatch(FILE_NAME, _typed(index, "name", str)) is None:
            raise ManifestError(f"the index is called {index['name']!r}, which is not a plain file name in its folder")
        parent = None if content["parent"] is None else _digest(content, "parent")
        return cls(
            schema=Schema.from_json(content["schema"]),
            fingerprint=_digest(content, "fingerprint"),
            rows=_count(content, "rows"),
            shards=_count(content, "shards"),
            nbytes=_count(content, "nbytes"),
            parent=parent,
            writer=_typed(content, "writer", dict),
            index=FileEntry(name=index["name"], nbytes=_count(index, "nbytes"), checksum=_digest(index, "checksum")),
        )


def _load(data: bytes | memoryview, where: str) -> dict[str, Any]:
    try:
        content = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise ManifestError(
            f"{MANIFEST_NAME} of {where} is damaged or was not written by forebay ({error}); "
            f"copy it again from where it came"
        ) from error
    if not isinstance(content, dict) or content.get("format") != "forebay":
        raise ManifestError(f"{MANIFEST_NAME} of {where} was not written by forebay: 'format' is not 'forebay'")
    return content


def _check_version(content: dict[str, Any], where: str) -> None:
    version = content.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ManifestError(f"{MANIFEST_NAME} of {where} has version {version!r}, which was never written")
    if version > MANIFEST_VERSION:
        raise ManifestError(
            f"{where} was written in version {version} of the format, and this forebay reads up to {MANIFEST_VERSION}; "
            f"upgrade with `pip install -U forebay`",
            version=version,
        )


def _checksum(content: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _typed(content: dict[str, Any], key: str, kind: type) -> Any:
    if type(content[key]) is not kind:
        raise ManifestError(f"{key!r} is {content[key]!r}, not a {kind.__name__}")
    return content[key]


def _count(content: dict[str, Any], key: str) -> int:
    value: int = _typed(content, key, int)
    if not 0 <= value < 1 << 62:
        raise ManifestError(f"{key!r} is {value}, which is no count")
    return value


def _digest(content: dict[str, Any], key: str) -> str:
    value: str = _typed(content, key, str)
    if _HEX_128.fullmatch(value) is None:
        raise ManifestError(f"{key!r} is {value!r}, not 32 hexadecimal digits")
    return value
