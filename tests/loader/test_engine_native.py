"""The loader with the native kernel, and with DALI: the batches that the libraries give, and the same errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.errors import SampleError
from forebay.loader.kernel import native_version, why_not
from forebay.sharding import ShardWriter, make_addressable

pytestmark = pytest.mark.skipif(why_not() is not None, reason="forebay was installed without its native parts")

SAMPLES = 60
COLUMNS = {"image": "image", "mask": "mask", "label": "int64"}
CROP, FLIP, NORMALIZE = T.RandomResizedCrop(32, scale=(0.3, 1.0)), T.RandomHorizontalFlip(), T.Normalize()
Batches = list[dict[str, Any]]


def as_png(pixels: np.ndarray[Any, Any], path: Path) -> bytes:
    Image.fromarray(pixels).save(path, "PNG")
    return path.read_bytes()


def write(path: Path, images: Iterable[bytes], folder: Path) -> Path:
    with ShardWriter(path, COLUMNS, shard_nbytes=150_000, batch_nbytes=20_000) as writer:
        for i, image in enumerate(images):
            mask = as_png(np.full((64, 80), i, np.uint8) + np.arange(80, dtype=np.uint8) // 8, folder / "mask.png")
            writer.write({"image": image, "mask": mask, "label": i})
    return path


@pytest.fixture(scope="module")
def pictures_of_all_kinds(jpeg_kinds: Callable[..., dict[str, bytes]], tmp_path_factory: Any) -> list[bytes]:
    """Every kind of upright JPEG, and one PNG in five."""
    folder = tmp_path_factory.mktemp("png")
    kinds = [data for kind, data in jpeg_kinds(64, 80).items() if kind != "lying on its side"]
    noise = np.random.default_rng(1).integers(0, 256, (64, 80, 3), dtype=np.uint8)
    png = as_png(noise, folder / "noise.png")
    return [png if i % 5 == 4 else kinds[i % len(kinds)] for i in range(SAMPLES)]


@pytest.fixture(scope="module")
def original(pictures_of_all_kinds: list[bytes], tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("original")
    return write(folder / "train", pictures_of_all_kinds, folder)


@pytest.fixture(scope="module")
def addressable(pictures_of_all_kinds: list[bytes], tmp_path_factory: Any) -> Path:
    """The same pictures; one in seven is kept as it was."""
    folder: Path = tmp_path_factory.mktemp("addressable")
    transcoded = (
        data if data[:2] != b"\xff\xd8" or i % 7 == 6 else make_addressable(data, segment_pixels=16)
        for i, data in enumerate(pictures_of_all_kinds)
    )
    return write(folder / "train", transcoded, folder)


def loader(path: Path, transforms: Mapping[Any, Any], **settings: Any) -> DataLoader:
    columns = [*dict.fromkeys(name for name in ("image", "mask", "label", "__index__", "__valid__"))]
    if not any("mask" in key for key in transforms):
        columns.remove("mask")
    given = {"batch_size": 16, "seed": 3, "num_workers": 2, **settings}
    return DataLoader(ShardDataset(path, transforms=transforms, columns=columns), **given)


def same(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


def invert(image: Tensor) -> Tensor:
    return 255 - image


def add_noise(image: Tensor, rng: np.random.Generator) -> Tensor:
    return image.float() + float(rng.random())


WORK: dict[str, dict[Any, Any]] = {
    "crop": {"image": [CROP]},
    "crop, flip": {"image": [CROP, FLIP]},
    "flip, crop": {"image": [FLIP, CROP]},
    "normalized": {"image": [CROP, FLIP, NORMALIZE]},
    "bfloat16": {"image": [CROP, NORMALIZE, T.ToDtype(torch.bfloat16)]},
    "float16": {"image": [CROP, T.ToDtype(torch.float16, scale=True)]},
    "float64": {"image": [CROP, T.ToDtype(torch.float64)]},
    "complex128": {"image": [CROP, T.ToDtype(torch.complex128)]},
    "validation": {"image": [T.Resize(shorter=40), T.CenterCrop(32), NORMALIZE]},
    "enlarged": {"image": [T.RandomCrop(20), T.Resize((50, 60))]},
    "with edges": {"image": [T.CenterCrop(70), FLIP]},
    "resized twice": {"image": [T.Resize((50, 50)), CROP]},
    "a callable after the head": {"image": [CROP, invert]},
    "callables, and more after them": {"image": [CROP, FLIP, invert, T.CenterCrop(16), NORMALIZE]},
    "a callable that draws": {"image": [CROP, add_noise]},
    "a callable first": {"image": [invert, CROP]},
    "two views": {"a": T.From("image", [CROP, FLIP]), "b": T.From("image", [T.CenterCrop(16), NORMALIZE])},
    "two views, one with a callable": {"a": T.From("image", [CROP, Tensor.zero_]), "b": T.From("image", [CROP])},
    "two views, one whole": {"a": T.From("image", [CROP]), "b": T.From("image", [])},
    "three views": {name: T.From("image", [CROP]) for name in "abc"},
    "with masks": {("image", "mask"): [CROP, FLIP, NORMALIZE]},
    "masks alone": {"image": [CROP], "mask": [T.CenterCrop(16)]},
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_batches_are_those_of_the_libraries(work: dict[Any, Any], original: Path, addressable: Path) -> None:
    expected: Batches = list(loader(original, work, decode="library"))
    assert sum(len(batch["label"]) for batch in expected) == SAMPLES
    for path in (original, addressable):
        for decode in ("native", "auto", "library"):
            found: Batches = list(loader(path, work, decode=decode))
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                assert list(one) == list(other)
                for name in one:
                    assert one[name].dtype == other[name].dtype
                    assert torch.equal(one[name], other[name]), (path.parent.name, decode, name)


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_dali_gives_these_windows_to_a_grey_level_on_average(
    work: dict[Any, Any], original: Path, addressable: Path
) -> None:
    for path in (original, addressable):
        expected: Batches = list(loader(path, work, decode="library", shuffle=True))
        found: Batches = list(loader(path, work, decode="dali", shuffle=True))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert list(one) == list(other)
            for name in one:
                assert (one[name].dtype, one[name].shape) == (other[name].dtype, other[name].shape)
                assert one[name].stride() == other[name].stride()
                if name in ("mask", "label", "__index__", "__valid__"):
                    assert torch.equal(one[name], other[name])
                    continue
                span = (other[name].to(torch.complex128).abs().max() / 255).item()
                difference = (one[name].to(torch.complex128) - other[name].to(torch.complex128)).abs()
                assert difference.mean() <= span, (path.parent.name, name)


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_any_number_of_threads_gives_the_same_batches_in_every_epoch(threads: int, addressable: Path) -> None:
    work = {"image": [CROP, FLIP, invert]}
    one = loader(addressable, work, shuffle=True, num_workers=1, decode="library")
    many = loader(addressable, work, shuffle=True, num_workers=threads, decode="native")
    for left, right in itertools.chain.from_iterable(zip(one, many, strict=True) for _ in range(2)):
        assert same(left, right)


@pytest.mark.parametrize("decode", ["native", "library"])
def test_a_resumed_run_goes_on_with_the_same_batches_whoever_decodes(decode: str, addressable: Path) -> None:
    work = {"image": [CROP, FLIP, NORMALIZE]}
    whole: Batches = list(loader(addressable, work, shuffle=True, decode="native"))
    begun = loader(addressable, work, shuffle=True, decode="native")
    iterator = iter(begun)
    next(iterator), next(iterator)
    state = begun.state_dict()
    begun.close()
    resumed = loader(addressable, work, shuffle=True, decode=decode)
    resumed.load_state_dict(state)
    rest: Batches = list(resumed)
    assert len(rest) == len(whole) - 2
    assert all(same(left, right) for left, right in zip(rest, whole[2:], strict=True))


def test_the_kernel_says_that_it_is_in_use(original: Path) -> None:
    work = {"image": [CROP]}
    version = native_version()
    assert version is not None
    for decode, used in (("native", True), ("auto", True), ("library", False)):
        told = loader(original, work, decode=decode).stats().decoder
        assert (version in told) == used
        assert "simplejpeg" in told


@pytest.mark.parametrize("orientation", ["apply", "ignore"])
def test_turned_pictures_differ_by_a_grey_level_at_most_between_decoders(
    orientation: str, make_jpeg: Callable[..., bytes], make_shards: Callable[..., Path], tmp_path: Path
) -> None:
    """The kernel resizes a picture that lies on its side along its other side first."""
    turned = [make_jpeg(64, 80, subsampling="4:2:0", orientation=k) for k in range(1, 9)]
    paths = [make_shards(tmp_path / "old", turned), make_shards(tmp_path / "new", map(make_addressable, turned))]
    found = []
    for path, decode in itertools.product(paths, ("native", "library")):
        data = ShardDataset(path, transforms={"image": [CROP, FLIP]}, orientation=orientation)  # type: ignore[arg-type]
        batches = DataLoader(data, batch_size=8, seed=1, decode=decode)  # type: ignore[arg-type]
        found += [batch["image"].int() for batch in batches]
        assert batches.stats().stages["decode"].samples == 8
    exact = [0, 1, 2, 3] if orientation == "apply" else list(range(8))
    assert len(found) == 4
    for images in found[1:]:
        assert torch.equal(images[exact], found[0][exact])
        assert (images - found[0]).abs().max() <= 1


# -- bad samples -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damaged(pictures_of_all_kinds: list[bytes], tmp_path_factory: Any) -> Path:
    """Addressable, with every tenth sample cut short and one that is no picture."""
    folder: Path = tmp_path_factory.mktemp("damaged")
    images = [make_addressable(data) if data[:2] == b"\xff\xd8" else data for data in pictures_of_all_kinds]
    for i in range(3, SAMPLES, 10):
        images[i] = images[i][: len(images[i]) // 2]
    images[7] = b"not an image " * 30
    return write(folder / "train", images, folder)


def test_bad_samples_are_replaced_by_the_same_ones(damaged: Path) -> None:
    work = {"image": [CROP, FLIP]}
    settings: dict[str, Any] = {"on_error": "skip", "max_bad": 100, "shuffle": True}
    expected: Batches = list(loader(damaged, work, decode="library", **settings))
    for threads in (1, 4):
        native = loader(damaged, work, decode="native", num_workers=threads, **settings)
        found: Batches = list(native)
        assert all(same(left, right) for left, right in zip(found, expected, strict=True))
        assert native.stats().bad_count == 7
        assert sum(int((~batch["__valid__"]).sum()) for batch in found) == 7


def test_a_bad_sample_is_raised_with_shard_and_row_after_the_batches_before_it(damaged: Path) -> None:
    seen: list[list[int]] = []
    with pytest.raises(SampleError) as caught:
        seen.extend(
            batch["__index__"].tolist() for batch in loader(damaged, {"image": [CROP]}, batch_size=2, decode="native")
        )
    assert seen == [[0, 1]]
    assert (caught.value.row, caught.value.stage) == (3, "decode")
    assert str(caught.value.shard) in str(caught.value)
