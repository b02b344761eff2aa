"""What files of decoded samples are called in a cache folder: the shard's name, and which pixels they are.

Names only; a file with such a name lies beside the shard and is kept or evicted by the shard's next use.
"""

from __future__ import annotations

import re

import xxhash

__all__ = ["decoded_key", "decoded_name", "is_decoded", "key_of", "shard_of"]

_NAME = re.compile(r"(.+)\.([0-9a-f]{16})\.decoded", re.DOTALL)


def decoded_key(what: str) -> str:
    """16 hexadecimal digits for a description of the pixels: column, head, and what decodes it in which version."""
    return xxhash.xxh3_64_hexdigest(what.encode())


def decoded_name(shard_name: str, key: str) -> str:
    """The file of a shard's samples, decoded as the key says."""
    return f"{shard_name}.{key}.decoded"


def is_decoded(name: str) -> bool:
    """Whether a file of the cache holds decoded samples."""
    return _NAME.fullmatch(name) is not None


def key_of(name: str) -> str | None:
    """Of which kind a file's decoded samples are; None of a whole shard."""
    found = _NAME.fullmatch(name)
    return None if found is None else found[2]


def shard_of(name: str) -> str:
    """The shard that a file of the cache belongs to: of a whole shard, its own name."""
    found = _NAME.fullmatch(name)
    return name if found is None else found[1]
