"""The images that a benchmark works on: chosen from any folder or from shards, and laid out for each side to read."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import simplejpeg

from forebay.benchmarks.torch_peer import Pixels, decode_file
from forebay.errors import ConfigError
from forebay.sharding import (
    Kind,
    ShardWriter,
    TranscodeError,
    can_transcode,
    describe_jpeg,
    make_addressable,
    open_dataset,
)
from forebay.sharding.image_folder import IMAGE_SUFFIXES

__all__ = ["Gathered", "Photograph", "choose_images", "gather", "write_files", "write_shards"]

_PASS_PIXELS = 1_200_000_000
"""What one pass decodes at most, when it may choose: seven seconds of two cores."""
_MOST_IMAGES = 2048
_LOOKED_AT = 32
"""Images whose mean size decides how many make a pass."""


@dataclass(frozen=True, slots=True)
class Photograph:
    """One encoded image."""

    data: bytes
    label: int
    """Of its class folder, or the label column; 0 where there is neither."""
    height: int
    width: int
    """As stored, before any EXIF orientation."""
    addressable: bytes | None = None
    """The same picture as crop-addressable JPEG; None where it cannot be one, or was not asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """The images of one pass: different ones, repeated until there are enough."""

    distinct: Sequence[Photograph]
    images: int
    """Of a pass, repetitions included."""
    addressable_before: int
    """How many of the different ones were crop-addressable as they came."""

    def all(self) -> Iterator[Photograph]:
        """Every image of a pass."""
        return itertools.islice(itertools.cycle(self.distinct), self.images)

    @property
    def nbytes(self) -> float:
        """Mean size of an encoded image."""
        return sum(len(photograph.data) for photograph in self.all()) / self.images

    @property
    def num_addressable(self) -> int:
        """How many of the different ones have an addressable form."""
        return sum(photograph.addressable is not None for photograph in self.distinct)


def gather(
    source: Path, *, images: int | None, multiple: int, addressable: bool, seed: int, common_jpeg: bool = False
) -> Gathered:
    """Choose images at random and keep those that decode, in memory.

    Args:
        source: a folder of images, flat, nested or one folder a class; or shards with an image column.
        images: of a pass; None chooses 2048, fewer where they are large.
        multiple: of what number they are when chosen: batch size times workers, so that every worker has as many.
        addressable: also make the crop-addressable form, where this build can.
        seed: of the choice.
        common_jpeg: leave out what is no JPEG, grey or in three colours.

    Raises:
        ConfigError: no such images there.
    """
    good = _good(_read(source, seed), _decode_common_jpeg if common_jpeg else decode_file)
    head = list(itertools.islice(good, _LOOKED_AT))
    if not head:
        kind = "JPEG" if common_jpeg else "image"
        raise ConfigError(f"{source} has no {kind} that can be decoded; give a folder of {kind}s, or shards of them")
    if images is None:
        mean_pixels = sum(photograph.height * photograph.width for photograph in head) / len(head)
        images = choose_images(mean_pixels, multiple)
    distinct = list(itertools.islice(itertools.chain(head, good), images))
    addressable_before = sum(describe_jpeg(photograph.data) is not None for photograph in distinct)
    if addressable and can_transcode():
        distinct = [_with_addressable(photograph) for photograph in distinct]
    return Gathered(distinct=distinct, images=images, addressable_before=addressable_before)


def choose_images(mean_pixels: float, multiple: int) -> int:
    """How many images make a pass that is long enough to measure and short enough to wait for; see `gather`."""
    wanted = min(_PASS_PIXELS / mean_pixels, _MOST_IMAGES)
    return max(int(wanted) // multiple, 1) * multiple


def write_files(gathered: Gathered, folder: Path) -> list[tuple[str, int]]:
    """Write the images as files of `folder`; return path and label of each of the pass, in order."""
    folder.mkdir()
    files = []
    for number, photograph in enumerate(gathered.distinct):
        path = folder / f"{number:07d}"
        path.write_bytes(photograph.data)
        files.append((str(path), photograph.label))
    return list(itertools.islice(itertools.cycle(files), gathered.images))


def write_shards(gathered: Gathered, folder: Path, *, addressable: bool) -> None:
    """Write the images of the pass as shards, in order: as they came, or addressable where they can be."""
    with ShardWriter(folder, {"image": "image", "label": "int64"}) as writer:
        for photograph in gathered.all():
            data = photograph.addressable if addressable else None
            writer.write({"image": photograph.data if data is None else data, "label": photograph.label})


def _read(source: Path, seed: int) -> Iterator[tuple[bytes, int]]:
    """Encoded images and labels, in a random order."""
    return _read_shards(source, seed) if (source / "manifest.json").is_file() else _read_folder(source, seed)


def _read_folder(source: Path, seed: int) -> Iterator[tuple[bytes, int]]:
    paths = [path.relative_to(source) for path in source.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES]
    paths = sorted(path for path in paths if not any(part.startswith(".") for part in path.parts))
    folders = sorted({path.parts[0] for path in paths if len(path.parts) > 1})
    labels = {name: label for label, name in enumerate(folders)}
    random.Random(seed).shuffle(paths)
    for path in paths:
        if (source / path).is_file():
            yield (source / path).read_bytes(), labels.get(path.parts[0], 0)


def _read_shards(source: Path, seed: int) -> Iterator[tuple[bytes, int]]:
    data = open_dataset(source)
    names = [column.name for column in data.schema]
    column = next((column.name for column in data.schema if column.kind is Kind.IMAGE), None)
    if column is None:
        raise ConfigError(f"{source} has no image column among {names}; give shards of images")
    for shard in random.Random(seed).sample(range(data.num_shards), data.num_shards):
        with data.open_shard(shard) as reader:
            for row in range(reader.rows):
                label = int(reader.scalars("label")[row]) if "label" in names else 0
                yield bytes(reader.read(row, column)), label


def _good(images: Iterator[tuple[bytes, int]], decode: Callable[[bytes], Pixels]) -> Iterator[Photograph]:
    """Those that every side can decode."""
    for data, label in images:
        try:
            height, width, _ = decode(data).shape
        except (ValueError, OSError, SyntaxError):
            continue
        yield Photograph(data, label, height, width)


def _decode_common_jpeg(data: bytes) -> Pixels:
    """A JPEG, grey or in three colours, as uint8 (H, W, 3), by libjpeg-turbo.

    Raises:
        ValueError: it is something else, or damaged.
    """
    colours = simplejpeg.decode_jpeg_header(data)[2]
    if colours in ("CMYK", "YCCK"):
        raise ValueError(f"a JPEG in {colours}")
    return simplejpeg.decode_jpeg(data)  # type: ignore[no-any-return]


def _with_addressable(photograph: Photograph) -> Photograph:
    try:
        addressable = make_addressable(photograph.data)
    except TranscodeError:
        return photograph
    if describe_jpeg(addressable) is None:  # CMYK: nobody decodes parts of it
        return photograph
    return Photograph(photograph.data, photograph.label, photograph.height, photograph.width, addressable)
