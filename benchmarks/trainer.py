"""What the trainer hides and what it costs: steps beside loading, emulated and real, and its own work a step."""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forebay.benchmarks.gathered import gather
from forebay.benchmarks.machine import describe_machine
from forebay.benchmarks.turns import take_turns
from forebay.benchmarks.work import LoaderWork, shard_loader, write_both_shards
from forebay.errors import ConfigError
from forebay.loader import DataLoader, ShardDataset
from forebay.sharding import ShardWriter
from forebay.trainers import DataParallelTrainer, NoProgress, overlap_efficiency

__all__ = ["OverlapRow", "TrainerReport", "measure_trainer"]

_RATIOS = {"a load of half a step": 0.5, "a load of one step": 1.0, "a load of two steps": 2.0}
_STALL_RATIO = 1 / 1.2
_FEATURES = 8
_MATRIX = 192


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapRow:
    """Steps of one length beside a loader with one decode thread; figures by round."""

    name: str
    load_s: tuple[float, ...]
    """An epoch of the loader alone."""
    step_s: tuple[float, ...]
    """The steps of an epoch alone."""
    seconds: tuple[float, ...]
    """The epoch of the trainer."""
    stall_share: tuple[float, ...]
    """Of the trainer, the share of time that it waited for data."""

    @property
    def overlap(self) -> tuple[float, ...]:
        """(load + step - time) / min(load, step), by round."""
        return tuple(
            overlap_efficiency(load_s=load, step_s=step, seconds=seconds)
            for load, step, seconds in zip(self.load_s, self.step_s, self.seconds, strict=True)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerReport:
    """Overlap by situation, and the trainer's own time a step, by round."""

    batches: int
    rows: tuple[OverlapRow, ...]
    overhead_us: tuple[float, ...]
    """Microseconds a step that the training thread works more than in a loop by hand over the same loader."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, with medians, and what machine it was."""
        values = dataclasses.asdict(self)
        for told, row in zip(values["rows"], self.rows, strict=True):
            told["overlap"] = row.overlap
            told["median_overlap"] = statistics.median(row.overlap)
            told["median_stall_share"] = statistics.median(row.stall_share)
        return values | {"median_overhead_us": statistics.median(self.overhead_us), "machine": describe_machine()}


def measure_trainer(
    source: str | os.PathLike[str],
    work: LoaderWork,
    *,
    rounds: int = 3,
    steps: int = 1000,
    progress: Callable[[str], None] = lambda _: None,
) -> TrainerReport:
    """Measure overlap, stalls and overhead, with one thread of torch, as a step on a core of its own has.

    Args:
        source: a folder of images, or shards with an image column.
        work: what the loader does with an image, and how many it does an epoch.
        rounds: epochs of each situation, in turn.
        steps: of each pass that measures the overhead.
        progress: told the name of a situation before each of its epochs.
    """
    if rounds < 1 or steps < 1:
        raise ConfigError(f"rounds={rounds}, steps={steps}; give at least 1 of each")
    gathered = gather(
        Path(source), images=work.images, multiple=work.batch_size, addressable=False, seed=work.seed, common_jpeg=True
    )
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as temporary, _one_torch_thread():
        shards = next(iter(write_both_shards(gathered, Path(temporary), addressable=False).values()))
        with shard_loader(shards, work, threads=1) as loader:
            rows = _overlaps(loader, rounds, progress)
            batches = len(loader)
        overhead_us = _overhead(Path(temporary) / "numbers", steps, rounds, progress)
    return TrainerReport(batches=batches, rows=rows, overhead_us=overhead_us)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -- overlap -----------------------------------------------------------------------------------------------------------


def _wait(seconds: float) -> None:
    time.sleep(seconds)


def _multiply(matrix: Tensor, times: int) -> None:
    for _ in range(times):
        torch.mm(matrix, matrix)


def _overlaps(loader: DataLoader, rounds: int, progress: Callable[[str], None]) -> tuple[OverlapRow, ...]:
    _load(loader)
    batches, load_s = len(loader), statistics.median(_load(loader) for _ in range(2))
    per_batch_s = load_s / batches
    matrix = torch.rand(_MATRIX, _MATRIX)
    per_product_s = min(_timed(partial(_multiply, matrix, 50)) for _ in range(3)) / 50
    products = max(round(per_batch_s / _STALL_RATIO / per_product_s), 1)
    steps: dict[str, Callable[[], None]] = {
        **{f"waiting: {name}": partial(_wait, per_batch_s / ratio) for name, ratio in _RATIOS.items()},
        "waiting: steps of 1.2 loads": partial(_wait, per_batch_s / _STALL_RATIO),
        "computing: steps of 1.2 loads": partial(_multiply, matrix, products),
    }
    sides = {name: partial(_overlap, loader, step, batches) for name, step in steps.items()}
    told = take_turns(sides, rounds=rounds, progress=progress)
    return tuple(
        OverlapRow(
            name=name,
            load_s=tuple(each[0] for each in passes[1:]),
            step_s=tuple(each[1] for each in passes[1:]),
            seconds=tuple(each[2] for each in passes[1:]),
            stall_share=tuple(each[3] for each in passes[1:]),
        )
        for name, passes in told.items()
    )


def _overlap(loader: DataLoader, step: Callable[[], None], batches: int) -> tuple[float, float, float, float]:
    """Loading alone, the steps alone, and both: seconds of each, and the share that the trainer waited."""
    load_s = _load(loader)
    step_s = _timed(partial(_repeat, step, batches))

    def loss(outputs: Tensor, _batch: dict[str, Any]) -> Tensor:
        step()
        return outputs

    model = _Nothing()
    trainer = DataParallelTrainer(
        model, torch.optim.SGD(model.parameters(), 0.1), loss, loader, epochs=1, device="cpu", progress=NoProgress()
    )
    rank = trainer.fit().epochs[0].ranks[0]
    return load_s, step_s, rank.seconds, rank.stall_share


class _Nothing(nn.Module):
    """A model that takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, _: Tensor) -> Tensor:
        return self.weight * 1.0


def _repeat(step: Callable[[], None], times: int) -> None:
    for _ in range(times):
        step()


def _load(loader: DataLoader) -> float:
    loader.set_epoch(0)
    return _timed(lambda: sum(1 for _ in loader))


def _timed(act: Callable[[], object]) -> float:
    started = time.monotonic()
    act()
    return time.monotonic() - started


# -- overhead ----------------------------------------------------------------------------------------------------------


def _overhead(folder: Path, steps: int, rounds: int, progress: Callable[[str], None]) -> tuple[float, ...]:
    """In time of the thread, that of the processor: so waits for a batch do not count on either side."""
    rng = np.random.default_rng(0)
    with ShardWriter(folder, {"x": f"float32[{_FEATURES}]"}) as writer:
        for _ in range(steps):
            writer.write({"x": rng.normal(size=_FEATURES).astype(np.float32)})
    with DataLoader(ShardDataset(folder), 1, shuffle=True, seed=0, num_workers=1) as loader:
        sides = {"by hand": partial(_by_hand, loader), "the trainer": partial(_by_trainer, loader)}
        told = take_turns(sides, rounds=rounds, progress=progress)
    pairs = zip(told["the trainer"][1:], told["by hand"][1:], strict=True)
    return tuple((ours - theirs) / steps * 1e6 for ours, theirs in pairs)


def _mean_square(outputs: Tensor, _batch: dict[str, Any]) -> Tensor:
    return outputs.square().mean()


def _by_hand(loader: DataLoader) -> float:
    model = nn.Linear(_FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    losses = []

    def run() -> None:
        for batch in loader:
            loss = _mean_square(model(batch["x"]), batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())

    loader.set_epoch(0)
    return _thread_time(run)


def _thread_time(act: Callable[[], object]) -> float:
    started = time.thread_time()
    act()
    return time.thread_time() - started


def _by_trainer(loader: DataLoader) -> float:
    model = nn.Linear(_FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    trainer = DataParallelTrainer(
        model, optimizer, _mean_square, loader, epochs=1, inputs="x", device="cpu", progress=NoProgress()
    )
    return _thread_time(trainer.fit)
