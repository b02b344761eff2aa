from typing import Any

def hash(data: Any, offsets: Any, out: Any, seed: int, /) -> None: ...  # noqa: A001
def lengths(offsets: Any, sizes: Any, which: Any, rows: Any, out: Any, /) -> None: ...
def take(addresses: Any, sizes: Any, widths: Any, outs: Any, which: Any, rows: Any, /) -> None: ...
def take_lists(
    offsets: Any,
    values: Any,
    sizes: Any,
    which: Any,
    rows: Any,
    begins: Any,
    counts: Any,
    out: Any,
    width: int,
    from_end: bool,
    /,
) -> None: ...
