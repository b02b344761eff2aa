"""A bad sample moves nothing: its place is filled from its shard, everything else stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.errors import BadSampleBudgetError, SampleError, ShardCorruptError, SourceError
from forebay.loader.bad_samples import BadSampleLog, replacement_rows

COLUMNS = ["image", "label", "__index__", "__valid__"]
BROKEN = (3, 40, 41)


def dataset(path: Path, transform: Any = None) -> ShardDataset:
    steps: list[Any] = [T.RandomResizedCrop(16), *([transform] if transform else [])]
    return ShardDataset(path, transforms={"image": steps}, columns=COLUMNS)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory, make_pictures: Callable[..., Path]) -> Path:
    return make_pictures(tmp_path_factory.mktemp("damaged") / "train", 96, broken=BROKEN)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, make_pictures: Callable[..., Path]) -> Path:
    return make_pictures(tmp_path_factory.mktemp("whole") / "train")


def test_a_bad_sample_is_raised_with_its_place(damaged: Path) -> None:
    with pytest.raises(SampleError) as caught:
        list(DataLoader(dataset(damaged), batch_size=8))
    error = caught.value
    assert (error.row, error.stage) == (3, "decode")
    assert error.shard in str(error)
    assert str(damaged) in str(error)
    assert "skip" in str(error)


def test_batches_before_the_bad_one_are_delivered(damaged: Path) -> None:
    seen: list[list[int]] = []
    loader = DataLoader(dataset(damaged), batch_size=2, num_workers=4)
    with pytest.raises(SampleError):
        seen.extend(batch["__index__"].tolist() for batch in loader)
    assert seen == [[0, 1]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_skipping_fills_the_place_from_the_shard_and_touches_no_other(damaged: Path, ranks: int) -> None:
    def batches(threads: int) -> list[dict[str, Any]]:
        parts = [
            list(
                DataLoader(
                    dataset(damaged),
                    global_batch_size=8,
                    shuffle=True,
                    seed=1,
                    num_workers=threads,
                    on_error="skip",
                    rank=r,
                    world_size=ranks,
                )
            )
            for r in range(ranks)
        ]
        return [{k: torch.cat([part[k] for part in split]) for k in COLUMNS} for split in zip(*parts, strict=True)]

    data = dataset(damaged)
    undecoded = ShardDataset(damaged, columns=["label", "__index__"])
    order = [batch["__index__"] for batch in DataLoader(undecoded, batch_size=8, shuffle=True, seed=1)]
    first = batches(1)
    for batch, expected, again in zip(first, order, batches(3), strict=True):
        valid = batch["__valid__"]
        assert torch.equal(batch["__index__"][valid], expected[valid])
        assert set(expected[~valid].tolist()) <= set(BROKEN)
        for bad, filler in zip(expected[~valid].tolist(), batch["__index__"][~valid].tolist(), strict=True):
            assert filler not in BROKEN
            assert (
                data.data.find(torch.tensor([bad, filler]).numpy())[0].tolist()[0]
                == data.data.find(torch.tensor([filler]).numpy())[0].tolist()[0]
            )
        for name in COLUMNS:
            assert torch.equal(batch[name], again[name])
    assert sum(int((~batch["__valid__"]).sum()) for batch in first) == len(BROKEN)


def test_good_samples_are_the_same_as_without_the_bad_ones(damaged: Path) -> None:
    loader = DataLoader(dataset(damaged), batch_size=8, seed=1, on_error="skip")
    pixels = {
        i: image
        for batch in loader
        for i, image, ok in zip(batch["__index__"].tolist(), batch["image"], batch["__valid__"], strict=True)
        if ok
    }
    data = dataset(damaged)
    data.set_epoch(0, seed=1)
    assert all(torch.equal(data[i]["image"], pixels[i]) for i in range(96) if i not in BROKEN)
    data.close()
    assert loader.stats().bad_count == len(BROKEN)
    assert len(loader.stats().bad) == len(BROKEN)
    assert "DecodeError" in loader.stats().bad[0].reason


def test_a_transform_that_raises_is_a_bad_sample_too(whole: Path) -> None:
    def picky(image: torch.Tensor) -> torch.Tensor:
        if int(image.sum()) % 7 == 0:
            raise ValueError("a seventh is refused")
        return image

    with pytest.raises(SampleError, match=r"transform failed.*a seventh is refused"):
        list(DataLoader(dataset(whole, picky), batch_size=8))
    loader = DataLoader(dataset(whole, picky), batch_size=8, on_error="skip", max_bad=40)
    assert sum(len(batch["label"]) for batch in loader) == 97
    assert loader.stats().bad_count > 3


def test_too_many_bad_samples_end_the_run(tmp_path: Path, make_pictures: Callable[..., Path]) -> None:
    path = make_pictures(tmp_path / "many", 60, broken=tuple(range(0, 60, 3)))
    with pytest.raises(BadSampleBudgetError, match="and 10 are allowed") as caught:
        list(DataLoader(dataset(path), batch_size=8, on_error="skip"))
    assert caught.value.bad == 11
    with pytest.raises(BadSampleBudgetError):
        list(DataLoader(dataset(path), batch_size=8, on_error="skip", max_bad=3))
    assert len(list(DataLoader(dataset(path), batch_size=8, on_error="skip", max_bad=1000))) == 8


def test_a_shard_without_a_good_sample_is_refused(tmp_path: Path, make_pictures: Callable[..., Path]) -> None:
    path = make_pictures(tmp_path / "none", 8, broken=tuple(range(8)), shard_nbytes=1 << 20)
    with pytest.raises(SampleError, match="the shard is refused"):
        list(DataLoader(dataset(path), batch_size=8, on_error="skip"))


def test_flipped_bytes_are_never_skipped(tmp_path: Path, make_pictures: Callable[..., Path]) -> None:
    path = make_pictures(tmp_path / "flipped", 30)
    shard = next(p for p in sorted(path.glob("*.arrow")) if p.name != "index.arrow")
    content = bytearray(shard.read_bytes())
    content[len(content) // 3] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ShardCorruptError, match=shard.name):
        list(DataLoader(dataset(path), batch_size=8, on_error="skip"))


def test_a_shard_that_is_cut_short_while_it_is_read_is_an_error_with_its_name(
    tmp_path: Path, make_pictures: Callable[..., Path]
) -> None:
    path = make_pictures(tmp_path / "cut", 60, shard_nbytes=1 << 20)
    loader = DataLoader(dataset(path), batch_size=2, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    shard = next(p for p in sorted(path.glob("*.arrow")) if p.name != "index.arrow")
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size // 8)
    with pytest.raises(SourceError, match=shard.name):
        list(iterator)


def test_replacements_are_drawn_by_the_bad_samples_own_counter() -> None:
    rows = list(replacement_rows(seed=1, epoch=2, index=3, rows=50))
    assert len(rows) == 16
    assert all(0 <= row < 50 for row in rows)
    assert rows == list(replacement_rows(seed=1, epoch=2, index=3, rows=50))
    assert rows != list(replacement_rows(seed=1, epoch=2, index=4, rows=50))
    assert rows != list(replacement_rows(seed=1, epoch=3, index=3, rows=50))
    assert rows != list(replacement_rows(seed=2, epoch=2, index=3, rows=50))


@pytest.mark.parametrize(
    ("max_bad", "seen", "limit"),
    [(None, 100, 10), (None, 50_000, 50), (0.01, 10_000, 100), (0.01, 10, 10), (0, 100, 0), (3, 9, 3)],
)
def test_the_budget_is_a_count_or_a_rate(max_bad: float | None, seen: int, limit: float) -> None:
    assert BadSampleLog(max_bad).limit(seen) == limit
