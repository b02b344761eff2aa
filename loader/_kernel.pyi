from collections.abc import Sequence
from typing import Any

JOB_FIELDS: int

def decode(
    heads: Sequence[Any],
    bodies: Sequence[Any],
    jobs: Any,
    out: Any,
    height: int,
    width: int,
    table: Any,
    itemsize: int,
    status: Any,
    max_pixels: int,
    threads: int,
    gate: object | None,
    exact: bool = ...,
    head_jobs: Any = ...,
    stored: Any = ...,
    /,
) -> None: ...
def gate() -> object: ...
def cancel(gate: object, /) -> None: ...
def frames(pictures: list[Any], max_pixels: int, found: Any, /) -> None: ...
def version() -> str: ...
def use_vectors(most: int, /) -> int: ...
