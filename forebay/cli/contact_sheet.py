"""The contact sheet of `forebay inspect --sheet`: the first pictures of a data set as one, drawn with Pillow.

It reads and decodes those pictures, nothing else, one after the other.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from forebay.cli.verify import picture_columns
from forebay.errors import ConfigError, DecodeError
from forebay.sharding import Column, Kind, StoredDataset, printable

__all__ = ["colour_mask", "draw_sheet", "sheet_column"]

_Font = ImageFont.ImageFont | ImageFont.FreeTypeFont
_Rgb = tuple[int, int, int]

_TILE = 200
"""Side of the square that a picture is fitted into, in pixels."""
_GAP, _MARGIN, _CAPTION, _TITLE_SIZE = 20, 32, 32, 22
_LEAST_COLUMNS, _MOST_COLUMNS = 3, 8
_PAPER: _Rgb = (247, 246, 243)
_INK: _Rgb = (38, 38, 36)
_FAINT: _Rgb = (128, 126, 121)
_BLANK: _Rgb = (222, 220, 215)
_CLASSES_OF_A_MASK = 64
"""A mask of more different values is a measurement, and shown in grey."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tile:
    index: int
    picture: Image.Image | None
    """Fits into the tile; None when it does not decode."""
    label: str


def sheet_column(data: StoredDataset, name: str | None) -> Column:
    """The column to show: that of this name, or the first of images, or else of masks.

    Raises:
        ConfigError: there is none; names those that there are.
    """
    columns = picture_columns(data)
    if name is None and columns:
        return min(columns, key=lambda column: column.kind is Kind.MASK)
    for column in columns:
        if column.name == name:
            return column
    there = ", ".join(column.name for column in columns) or "none"
    wanted = "" if name is None else f" called {name}"
    raise ConfigError(f"{data.name} has no column of images or masks{wanted} to draw a sheet of; it has {there}")


def draw_sheet(data: StoredDataset, column: Column, images: int) -> Image.Image:
    """Draw the first pictures of a column, upright, each with its index and label under it.

    Args:
        data: an opened data set.
        column: of images or masks; see `sheet_column`.
        images: how many, at most.

    Raises:
        ShardCorruptError, SourceError: the bytes are damaged or cannot be read.
    """
    tiles = list(_tiles(data, column, images))
    across = min(_MOST_COLUMNS, max(1, math.ceil(math.sqrt(1.5 * len(tiles)))))
    rows = [tiles[start : start + across] for start in range(0, len(tiles), across)]
    heights = [max(_TILE if tile.picture is None else tile.picture.height for tile in row) for row in rows]
    head = 2 * _MARGIN + _TITLE_SIZE
    width = 2 * _MARGIN + max(across, _LEAST_COLUMNS) * (_TILE + _GAP) - _GAP
    sheet = Image.new("RGB", (width, head + sum(heights) + len(rows) * (_CAPTION + _GAP) + _MARGIN - _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(_TITLE_SIZE)
    shown = f"the first {len(tiles):,} of {data.rows:,}" if len(tiles) < data.rows else f"all {data.rows:,}"
    title = _fitted(printable(f"{data.name} · {column.name} · {shown}"), font, width - 2 * _MARGIN)
    draw.text((_MARGIN, _MARGIN - 6), title, _INK, font)
    bottom = head
    for row, height in zip(rows, heights, strict=True):
        bottom += height
        for place, tile in enumerate(row):
            _draw_tile(sheet, draw, tile, _MARGIN + place * (_TILE + _GAP), bottom)
        bottom += _CAPTION + _GAP
    return sheet


def _draw_tile(sheet: Image.Image, draw: ImageDraw.ImageDraw, tile: _Tile, left: int, bottom: int) -> None:
    """A picture that stands on its caption."""
    name, number = ImageFont.load_default(15), ImageFont.load_default(13)
    picture = tile.picture
    if picture is None:
        draw.rectangle((left, bottom - _TILE, left + _TILE - 1, bottom - 1), fill=_BLANK)
        draw.text((left + _TILE // 2, bottom - _TILE // 2), "does not decode", _FAINT, name, anchor="mm")
    else:
        top = bottom - picture.height
        draw.rectangle((left - 1, top - 1, left + picture.width, bottom), outline=_BLANK)
        sheet.paste(picture, (left, top))
    index = f"{tile.index:,}"
    draw.text((left, bottom + 8), index, _FAINT, number)
    indent = round(number.getlength(index)) + 8
    draw.text((left + indent, bottom + 6), _fitted(tile.label, name, _TILE - indent), _INK, name)


def _tiles(data: StoredDataset, column: Column, images: int) -> Iterator[_Tile]:
    labels = next((other for other in data.schema if other.classes is not None), None)
    if labels is None:
        labels = next((other for other in data.schema if other.name == "label" and other.kind is Kind.SCALAR), None)
    opened = [column.name] if labels is None else [column.name, labels.name]
    index = 0
    for shard in range(data.num_shards):
        if index >= images:
            return
        with data.open_shard(shard, opened) as reader:
            for row in range(min(reader.rows, images - index)):
                label = "" if labels is None else _label(labels, reader.value(row, labels.name))
                yield _Tile(index=index, picture=_picture(reader.read(row, column.name), column), label=label)
                index += 1


def _label(column: Column, value: int) -> str:
    if column.classes is None:
        return f"{column.name} {value}"
    return printable(column.classes[value]) if 0 <= value < len(column.classes) else f"{column.name} {value}, no class"


def _picture(data: memoryview, column: Column) -> Image.Image | None:
    from forebay.loader import decode_image, decode_mask  # imports torch

    try:
        pixels = decode_image(data) if column.kind is Kind.IMAGE else colour_mask(decode_mask(data))
    except DecodeError:
        return None
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    scale = _TILE / max(picture.size)
    size = max(1, round(scale * picture.width)), max(1, round(scale * picture.height))
    # Masks, and pictures that are smaller than a tile, keep their pixels as they are.
    smooth = column.kind is Kind.IMAGE and scale < 1
    return picture.resize(size, Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST)


def colour_mask(mask: npt.NDArray[np.uint8] | npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """Colours for the numbers of a mask (H, W), as (H, W, 3): the same number has the same colour in every mask.

    0 is dark, 255 (the usual "ignore") nearly white, others are told apart by hue. A mask of many different values is a
    measurement, such as a depth, and becomes grey, from its smallest value to its largest.
    """
    values, places = np.unique(mask, return_inverse=True)
    if len(values) > _CLASSES_OF_A_MASK:
        spread = int(values[-1]) - int(values[0])
        grey = ((mask.astype(np.int64) - int(values[0])) * 255 // spread).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    colours = np.array([_mask_colour(value) for value in values.tolist()], dtype=np.uint8)
    return colours[places.reshape(mask.shape)]


def _mask_colour(value: int) -> _Rgb:
    if value in (0, 255):
        return (44, 46, 54) if value == 0 else (240, 240, 236)
    hue = 0.55 + value * 0.6180339887  # the golden section: neighbours are far apart, and none comes again soon
    lightness, saturation = (0.62, 0.60) if value % 2 else (0.50, 0.70)
    red, green, blue = colorsys.hls_to_rgb(hue % 1, lightness, saturation)
    return round(255 * red), round(255 * green), round(255 * blue)


def _fitted(text: str, font: _Font, width: int) -> str:
    """The text, shortened in its end until it fits."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
