"""Of crop-addressable JPEGs only what a window needs is read, verified and decoded; and closing waits for nothing."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.errors import ShardCorruptError
from forebay.loader.kernel import why_not
from forebay.sharding import JpegLayout, make_addressable, open_dataset

pytestmark = pytest.mark.skipif(why_not() is not None, reason="forebay was installed without its native parts")

Batches = list[dict[str, Any]]
Steps = list[T.Transform]


def loader(path: Path, transforms: Mapping[str, Any], **settings: Any) -> DataLoader:
    data = ShardDataset(path, transforms=transforms)
    return DataLoader(data, **{"batch_size": 4, "seed": 3, "num_workers": 2, "decode": "native", **settings})


def invert(image: Tensor) -> Tensor:
    return 255 - image


@pytest.fixture(scope="module")
def large(
    make_jpeg: Callable[..., bytes], make_shards: Callable[..., Path], tmp_path_factory: Any
) -> tuple[Path, Path]:
    """Eight pictures of many bands, as they were and addressable."""
    folder: Path = tmp_path_factory.mktemp("large")
    images = [make_jpeg(900 + i, 700, subsampling="4:2:0") for i in range(8)]
    return make_shards(folder / "original", images), make_shards(folder / "new", map(make_addressable, images))


SMALL: dict[str, Steps] = {
    "small crops": [T.RandomResizedCrop(32, scale=(0.01, 0.02)), T.RandomHorizontalFlip()],
    "the middle": [T.CenterCrop(100)],
    "the middle of what is resized": [T.Resize((450, 350)), T.CenterCrop(50), T.Normalize()],
    "a small crop for a callable": [T.RandomCrop(60), invert],
}


@pytest.mark.parametrize("steps", SMALL.values(), ids=SMALL)
def test_of_an_addressable_jpeg_only_the_bands_of_the_window_are_read(steps: Steps, large: tuple[Path, Path]) -> None:
    read = {}
    for path in large:
        batches = loader(path, {"image": steps})
        assert sum(len(batch["image"]) for batch in batches) == 8
        read[path.name] = batches.stats().read_nbytes
        assert batches.stats().stages["decode"].samples == 8
    assert read["new"] < read["original"] / 3


def test_two_views_share_the_bands_that_they_need(large: tuple[Path, Path]) -> None:
    crop = T.RandomResizedCrop(32, scale=(0.01, 0.02))
    one = loader(large[1], {"a": T.From("image", [crop])})
    two = loader(large[1], {"a": T.From("image", [crop]), "b": T.From("image", [crop])})
    whole = loader(large[1], {"a": T.From("image", [crop]), "b": T.From("image", [])}, batch_size=1)
    for batches in (one, two, whole):
        assert sum(len(batch["a"]) for batch in batches) == 8
    assert one.stats().read_nbytes < two.stats().read_nbytes <= whole.stats().read_nbytes


def layout_of(path: Path, row: int) -> tuple[Path, int, JpegLayout]:
    """The first shard, where sample `row` begins in it, and how that is laid out."""
    data = open_dataset(path)
    with data.open_shard(0) as reader:
        layout, content = reader.jpeg_layout(row, "image"), bytes(reader.read(row, "image"))
    assert layout is not None
    shard = path / data.shard_name(0)
    return shard, shard.read_bytes().index(content), layout


def flip_byte(shard: Path, at: int) -> None:
    content = bytearray(shard.read_bytes())
    content[at] ^= 1
    shard.write_bytes(content)


@pytest.mark.parametrize("decode", ["native", "library"])
@pytest.mark.parametrize("part", ["header", "band"])
def test_a_byte_that_differs_on_disk_is_an_error_with_shard_and_row(
    part: str, decode: str, large: tuple[Path, Path], tmp_path: Path
) -> None:
    path = Path(shutil.copytree(large[1], tmp_path / "flipped"))
    shard, begin, layout = layout_of(path, 0)
    middle = layout.header_nbytes + sum(layout.band_nbytes) // 2
    flip_byte(shard, begin + (20 if part == "header" else middle))
    for on_error in ("raise", "skip"):
        with pytest.raises(ShardCorruptError) as caught:
            list(loader(path, {"image": [T.CenterCrop(200)]}, batch_size=1, decode=decode, on_error=on_error))
        assert (caught.value.shard, caught.value.row, caught.value.column) == (shard.name, 0, "image")


@pytest.mark.parametrize("kind", ["original", "new"])
def test_a_damaged_copy_in_the_cache_is_read_from_the_source(
    kind: str, large: tuple[Path, Path], tmp_path: Path
) -> None:
    path = large[kind == "new"]
    data = ShardDataset(path, cache=f"{tmp_path / 'cache'}:1GB", transforms={"image": [T.CenterCrop(200)]})
    batches = DataLoader(data, batch_size=8, seed=3, decode="native")
    (expected,) = batches
    stored = open_dataset(path)
    copies = sorted((tmp_path / "cache").rglob("*.arrow"))
    assert len(copies) == len(stored.shard_rows)
    for number, copy in enumerate(copies):
        with stored.open_shard(number) as reader:
            for row in range(reader.rows):
                offset, nbytes, _ = reader.places(row, "image")
                flip_byte(copy, offset + nbytes // 2)
    batches.set_epoch(0)
    (healed,) = batches
    assert torch.equal(healed["image"], expected["image"])


def test_more_shards_than_may_be_open_at_once_are_read_in_turn(
    make_jpeg: Callable[..., bytes], make_shards: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [make_addressable(make_jpeg(300 + i, 200)) for i in range(12)]
    path = make_shards(tmp_path / "many", images, shard_nbytes=1)  # one in each
    expected = list(loader(path, {"image": [T.RandomResizedCrop(40)]}, shuffle=True))
    monkeypatch.setattr("forebay.loader.readers.OPEN_SHARDS", 2)
    batches = list(loader(path, {"image": [T.RandomResizedCrop(40)]}, shuffle=True))
    assert all(torch.equal(a["image"], b["image"]) for a, b in zip(batches, expected, strict=True))


def test_a_byte_that_no_window_needs_is_not_looked_at(large: tuple[Path, Path], tmp_path: Path) -> None:
    path = Path(shutil.copytree(large[1], tmp_path / "flipped"))
    shard, begin, layout = layout_of(path, 0)
    flip_byte(shard, begin + layout.header_nbytes + 10)
    batches: Batches = list(loader(path, {"image": [T.CenterCrop(100)]}))
    expected: Batches = list(loader(large[0], {"image": [T.CenterCrop(100)]}, decode="library"))
    assert all(torch.equal(left["image"], right["image"]) for left, right in zip(batches, expected, strict=True))


def test_closing_in_the_middle_of_a_batch_leaves_no_thread(large: tuple[Path, Path]) -> None:
    rng = random.Random(1)
    for _ in range(20):
        batches = loader(large[rng.randrange(2)], {"image": [T.RandomResizedCrop(224)]}, batch_size=8)
        iterator = iter(batches)
        if rng.random() < 0.5:
            next(iterator)
        batches.close()
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("forebay")]


def test_closing_does_not_wait_for_the_batches_that_are_begun(
    data_dir: Path, tmp_path: Path, make_shards: Callable[..., Path]
) -> None:
    """Of 40 pictures of five megapixels each: a thread finishes the picture in hand and no other."""
    paths = sorted(path for path in (data_dir / "large").rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    images = [path.read_bytes() for path in paths]
    path = make_shards(tmp_path / "large", itertools.islice(itertools.cycle(images), 120), shard_nbytes=1 << 28)
    work = {"image": [T.RandomResizedCrop(800, scale=(0.5, 1.0))]}
    batches = loader(path, work, batch_size=40, num_workers=1)
    iterator = iter(batches)
    next(iterator)
    batches.close()
    assert batches.stats().samples == 40
    assert 40 <= batches.stats().stages["decode"].samples < 80
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("forebay")]
