"""The decoded cache in the loader: a hit and a miss have the same bits, which are those of the library backend."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.errors import ConfigError, SampleError
from forebay.loader.kernel import why_not
from forebay.sharding import ShardWriter

MakeJpeg = Callable[..., bytes]

HEADS: dict[str, list[Any]] = {
    "resized, then a random part": [T.Resize(shorter=40), T.RandomResizedCrop(24), T.RandomHorizontalFlip()],
    "whole, then a random part": [T.RandomResizedCrop(24), T.RandomHorizontalFlip()],
    "resized to a fixed size": [T.Resize((33, 47)), T.RandomHorizontalFlip()],
    "as for validation": [T.Resize(shorter=40), T.CenterCrop(32), T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))],
    "a crop larger than the picture": [T.CenterCrop(80)],
    "resized twice": [T.Resize(shorter=50), T.CenterCrop(44), T.Resize((20, 30))],
    "random crops with edges": [T.Resize(shorter=40), T.RandomCrop(32, padding=4)],
    "then a callable": [T.Resize(shorter=40), T.RandomResizedCrop(24), lambda x: x // 2],
    "a callable at once": [T.Resize((40, 40)), lambda x: 255 - x],
    "table values": [T.Resize(shorter=40), T.RandomResizedCrop(24), T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))],
}
DECODERS = ["library", *([] if why_not() else ["native"])]


def batches(
    path: Path, transforms: list[Any], *, epochs: int = 1, decode: str = "library", **options: Any
) -> tuple[list[Tensor], DataLoader]:
    """All batches of some epochs, one after the other, and the loader that made them."""
    dataset = ShardDataset(path, transforms={"image": transforms}, **options)
    with DataLoader(
        dataset,
        16,
        shuffle=True,
        seed=3,
        num_workers=2,
        decode=decode,  # type: ignore[arg-type]
        workers="thread",
    ) as loader:
        found = [batch["image"].clone() for _ in range(epochs) for batch in loader]
    return found, loader


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.fixture
def cache(tmp_path: Path) -> str:
    return f"{tmp_path / 'cache'}:1GB"


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("name", HEADS)
def test_hits_and_misses_have_the_bits_of_the_library_backend(
    name: str, decode: str, pictures: Path, cache: str
) -> None:
    expected, _ = batches(pictures, HEADS[name], epochs=2)
    first, loader = batches(pictures, HEADS[name], epochs=2, decode=decode, cache=cache, decoded=True)
    counts = loader.stats().decoded
    assert same(first, expected)
    assert counts["misses"] + counts["hits"] == 2 * 97  # type: ignore[operator]
    assert counts["stored"] >= 0.5 * 97  # type: ignore[operator]
    again, loader = batches(pictures, HEADS[name], epochs=2, decode=decode, cache=cache, decoded=True)
    assert same(again, expected)
    assert loader.stats().decoded["damaged"] == 0
    assert loader.stats().decoded["hits"] >= 97 + 0.5 * 97  # type: ignore[operator]


def encode(height: int, width: int, kind: str, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **({"lossless": True} if kind == "WebP" else {}))
    return file.getvalue()


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory, make_jpeg: MakeJpeg) -> Path:
    """Formats that the kernel takes and others, lying and upright, large and small, in two shards."""
    path = tmp_path_factory.mktemp("mixed") / "train"
    with ShardWriter(path, {"image": "image", "label": "int64"}, shard_nbytes=200_000) as writer:
        for i in range(64):
            size = 40 + 7 * (i % 9), 90 - 5 * (i % 7)
            kinds = [
                make_jpeg(*size),
                make_jpeg(*size, orientation=1 + i // 8),
                make_jpeg(*size, "L"),
                make_jpeg(*size, "CMYK"),
                encode(*size, "PNG", i),
                encode(*size, "WebP", i),
                make_jpeg(10 * size[0], 10 * size[1], progressive=True),
                make_jpeg(*size, restart_marker_rows=1, orientation=6),
            ]
            writer.write({"image": kinds[i % 8], "label": i})
    return path


@pytest.mark.parametrize("orientation", ["apply", "ignore"])
@pytest.mark.parametrize("decode", DECODERS)
def test_all_formats_and_orientations_are_stored_with_the_same_bits(
    decode: str, orientation: str, mixed: Path, cache: str
) -> None:
    head = HEADS["resized, then a random part"]
    expected, _ = batches(mixed, head, epochs=3, orientation=orientation)
    options: dict[str, Any] = {"decode": decode, "cache": cache, "decoded": True, "orientation": orientation}
    found, loader = batches(mixed, head, epochs=3, **options)
    assert same(found, expected)
    told = loader.stats().decoded
    assert (told["hits"], told["stored"], told["damaged"]) == (128, 64, 0)


def test_hits_read_no_encoded_picture(pictures: Path, cache: str) -> None:
    head = HEADS["resized, then a random part"]
    batches(pictures, head, epochs=2, cache=cache, decoded=True)
    _, loader = batches(pictures, head, cache=cache, decoded=True, columns=["image", "label"])
    stats = loader.stats()
    assert stats.decoded["misses"] == 0
    assert stats.read_nbytes == 0
    assert loader.stats().to_dict()["decoded"]["hits"] == 97


def test_two_views_of_a_picture_share_what_is_stored(pictures: Path, cache: str) -> None:
    chain = [T.Resize(shorter=40), T.RandomResizedCrop(24)]
    views: Any = {"one": T.From("image", chain), "two": T.From("image", chain)}
    plain = ShardDataset(pictures, transforms=views)
    stored = ShardDataset(pictures, transforms=views, cache=cache, decoded=True)
    with (
        DataLoader(plain, 16, shuffle=True, seed=1, decode="library") as expected,
        DataLoader(stored, 16, shuffle=True, seed=1) as found,
    ):
        for _ in range(2):
            for a, b in zip(expected, found, strict=True):
                assert torch.equal(a["one"], b["one"])
                assert torch.equal(a["two"], b["two"])
                assert not torch.equal(a["one"], a["two"])
                assert torch.equal(a["label"], b["label"])
    assert len({path.name.split(".")[-2] for path in Path(cache.rpartition(":")[0]).rglob("*.decoded")}) == 1


def test_a_picture_that_also_goes_with_a_mask_is_read_for_it(tmp_path: Path, cache: str, make_jpeg: MakeJpeg) -> None:
    mask = io.BytesIO()
    Image.fromarray(np.arange(50 * 60, dtype=np.uint8).reshape(50, 60)).save(mask, "PNG")
    with ShardWriter(tmp_path / "data", {"image": "image", "mask": "mask"}) as writer:
        for _ in range(20):
            writer.write({"image": make_jpeg(50, 60), "mask": mask.getvalue()})
    chain = [T.Resize(shorter=40), T.RandomResizedCrop(24)]
    both: Any = {("image", "mask"): chain, "view": T.From("image", chain)}
    plain = ShardDataset(tmp_path / "data", transforms=both)
    stored = ShardDataset(tmp_path / "data", transforms=both, cache=cache, decoded=True)
    with (
        DataLoader(plain, 8, seed=1, decode="library") as expected,
        DataLoader(stored, 8, seed=1) as found,
    ):
        for _ in range(2):
            for a, b in zip(expected, found, strict=True):
                assert all(torch.equal(a[name], b[name]) for name in ("image", "mask", "view"))
    assert found.stats().decoded["hits"] == 20


def test_worker_processes_take_stored_pixels_as_well(pictures: Path, cache: str) -> None:
    head = [T.Resize(shorter=40), T.RandomResizedCrop(24), T.Seeded(_negative)]
    expected = ShardDataset(pictures, transforms={"image": head})
    stored = ShardDataset(pictures, transforms={"image": head}, cache=cache, decoded=True)
    with (
        DataLoader(expected, 16, shuffle=True, seed=1, num_workers=1) as plain,
        DataLoader(stored, 16, shuffle=True, seed=1, num_workers=1) as loader,
    ):
        for _ in range(2):
            for a, b in zip(plain, loader, strict=True):
                assert torch.equal(a["image"], b["image"])
    assert list(Path(cache.rpartition(":")[0]).rglob("*.decoded"))


def _negative(picture: Tensor) -> Tensor:
    return 255 - picture


def test_bad_samples_fail_as_without_it(make_pictures: Callable[..., Path], tmp_path: Path, cache: str) -> None:
    path = make_pictures(tmp_path / "bad", 40, broken=(7,))
    head = HEADS["resized, then a random part"]
    dataset = ShardDataset(path, transforms={"image": head}, cache=cache, decoded=True)
    with DataLoader(dataset, 8, num_workers=2) as loader, pytest.raises(SampleError, match="row 7"):
        list(loader)
    for _ in range(2):
        with DataLoader(dataset, 8, seed=1, num_workers=2, on_error="skip") as loader:
            found = [batch["image"].clone() for batch in loader]
        plain = ShardDataset(path, transforms={"image": head})
        with DataLoader(plain, 8, seed=1, num_workers=2, on_error="skip", decode="library") as loader:
            assert same(found, [batch["image"].clone() for batch in loader])


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("name", ["resized, then a random part", "whole, then a random part"])
def test_auto_has_the_same_bits_whatever_it_chooses(name: str, decode: str, mixed: Path, cache: str) -> None:
    expected, _ = batches(mixed, HEADS[name], epochs=2)
    found, loader = batches(mixed, HEADS[name], epochs=2, decode=decode, cache=cache, decoded="auto")
    assert same(found, expected)
    assert "being measured" in str(loader.stats().decoded["choice"])
    batches(mixed, HEADS[name], decode=decode, cache=cache, decoded=True)
    found, loader = batches(mixed, HEADS[name], epochs=2, decode=decode, cache=cache, decoded="auto")
    assert same(found, expected)
    assert loader.stats().decoded["hits"] == 128  # what is there is taken in any case


def test_auto_stores_when_training_waits(mixed: Path, cache: str) -> None:
    dataset = ShardDataset(
        mixed, transforms={"image": HEADS["resized, then a random part"]}, cache=cache, decoded="auto"
    )
    with DataLoader(dataset, 64, num_workers=1) as loader:
        for _ in range(24):  # 1536 samples, taken as fast as they come
            list(loader)
        told = loader.stats().decoded
    assert str(told["choice"]).startswith("stored: training waits")
    assert told["stored"] == 64


def test_settings_that_cannot_work_are_refused(pictures: Path, tmp_path: Path, cache: str) -> None:
    with pytest.raises(ConfigError, match="without a cache"):
        ShardDataset(pictures, decoded=True)
    with pytest.raises(ConfigError, match='give True, False or "auto"'):
        ShardDataset(pictures, cache=cache, decoded="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no output comes from one image column"):
        ShardDataset(pictures, cache=cache, decoded=True, columns=["label"])
