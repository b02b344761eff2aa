"""How much memory worker processes take while a data set of many strings is read, epoch after epoch.

Proportional set sizes as Linux tells them: a page that several processes share counts in equal parts. It times nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from forebay.benchmarks.dropin_samples import Strings, arrow_strings, numpy_strings, python_strings
from forebay.benchmarks.turns import Ratio, take_turns

__all__ = ["EPOCHS", "STRINGS", "MemoryRow", "measure_memory", "workers_pss_mb"]

EPOCHS = 3
_MOST_ROUNDS = 3
"""Memory varies less than time."""
STRINGS: dict[str, Callable[[int], Any]] = {
    "a list of Python strings": python_strings,
    "a numpy array of StringDType": numpy_strings,
    "a pyarrow array": arrow_strings,
}
"""By name, what the data set holds its strings in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRow:
    """The workers' memory after the last epoch, of both loaders, by round."""

    name: str
    mb: tuple[float, ...]
    torch_mb: tuple[float, ...]
    asked: float
    """The largest ratio that is hoped for."""

    @property
    def ratio(self) -> Ratio:
        """What this loader's workers take, of what torch's take."""
        return Ratio.of(self.mb, self.torch_mb)


def measure_memory(
    make_loaders: Callable[..., tuple[Any, Any]],
    *,
    strings: int,
    batch_size: int,
    rounds: int,
    progress: Callable[[str], None],
) -> list[MemoryRow]:
    """Read every form of the strings with both loaders in turn, with new workers each time.

    Args:
        make_loaders: gives this loader and torch's, of a data set and a batch size.
        strings: of the data set.
        batch_size: strings a batch.
        rounds: measurements of each, after one that lets this process grow; at most 3.
        progress: told what is measured.
    """
    rows = []
    for name, make in STRINGS.items():
        mine, its = make_loaders(Strings(make(strings)), batch_size)
        rows.append(_row(name, mine, its, rounds=min(rounds, _MOST_ROUNDS), progress=progress))
    return rows


def _row(name: str, mine: Any, its: Any, *, rounds: int, progress: Callable[[str], None]) -> MemoryRow:
    sizes = take_turns(
        {"forebay": partial(_after_epochs, mine), "torch": partial(_after_epochs, its)},
        rounds=rounds,
        progress=lambda side: progress(f"memory of the workers, {name}: {side}"),
    )
    return MemoryRow(name=name, mb=tuple(sizes["forebay"][1:]), torch_mb=tuple(sizes["torch"][1:]), asked=1.0)


def _after_epochs(loader: Any) -> float:
    gc.collect()  # or a collection in a worker writes to pages that the other side's workers left alone
    try:
        for _ in range(EPOCHS):
            for _ in loader:
                pass
        return workers_pss_mb(worker.pid for worker in loader._iterator._workers)
    finally:
        loader._iterator._shutdown_workers()
        loader._iterator = None


def workers_pss_mb(pids: Iterable[int]) -> float:
    """Proportional set sizes of these processes together, in MB.

    Raises:
        OSError: this system does not tell, or one of them has ended.
    """
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6
