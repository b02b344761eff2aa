"""`forebay inspect --sheet`: what the picture shows, found again in its pixels."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner, Result

from forebay.cli.contact_sheet import colour_mask
from forebay.cli.inspect import inspect
from forebay.cli.verify import verify
from forebay.errors import ConfigError, ForebayError, SourceError
from forebay.sharding import ShardWriter

app = typer.Typer()
for command in (inspect, verify):
    app.command()(command)

Pixels = npt.NDArray[np.uint8]


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, ForebayError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def encoded(pixels: Pixels, kind: str = "PNG", orientation: int = 1) -> bytes:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(file, kind, exif=exif)
    return file.getvalue()


def plain(colour: tuple[int, int, int], height: int, width: int) -> Pixels:
    return np.broadcast_to(np.array(colour, np.uint8), (height, width, 3)).copy()


def place_of(sheet: Pixels, colour: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Top, left, height and width of the pixels of a colour."""
    rows, columns = np.nonzero((sheet == np.array(colour, np.uint8)).all(axis=2))
    assert rows.size, f"{colour} is not on the sheet"
    top, left = int(rows.min()), int(columns.min())
    return top, left, int(rows.max()) + 1 - top, int(columns.max()) + 1 - left


def draw(data: Path, *arguments: object) -> Pixels:
    out = data.with_suffix(".png")
    run("inspect", data, "--sheet", out, *arguments)
    with Image.open(out) as picture:
        assert (picture.format, picture.mode) == ("PNG", "RGB")
        return np.asarray(picture)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Red, green (on its side), blue, one that does not decode, then yellow ones; with labels."""
    path = tmp_path / "pictures"
    classes = {"label": ["cat", "a dog with a name that is much too long to stand below any picture at all"]}
    with ShardWriter(path, {"image": "image", "label": "int64"}, classes=classes, shard_nbytes=4096) as writer:
        writer.write({"image": encoded(plain((255, 0, 0), 300, 400)), "label": 0})
        writer.write({"image": encoded(plain((0, 255, 0), 100, 400), orientation=6), "label": 1})
        writer.write({"image": encoded(plain((0, 0, 255), 10, 20)), "label": 0})
        writer.write({"image": b"no picture", "label": 1})
        for _ in range(26):
            writer.write({"image": encoded(plain((255, 255, 0), 30, 30)), "label": 0})
    return path


def test_pictures_stand_upright_in_order_with_their_shape_kept(pictures: Path) -> None:
    sheet = draw(pictures)
    red, green, blue = (place_of(sheet, colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255)))
    assert red[2:] == (150, 200)
    assert green[2:] == (200, 50)  # lies on its side in the file
    assert blue[2:] == (100, 200)
    assert red[1] < green[1] < blue[1]
    assert red[0] + red[2] == green[0] + green[2] == blue[0] + blue[2]  # all stand on one line


def test_each_picture_has_its_index_and_label_below_it(pictures: Path) -> None:
    sheet = draw(pictures).astype(int).sum(axis=2)
    top, left, height, _ = place_of(draw(pictures), (0, 255, 0))
    caption = sheet[top + height + 2 : top + height + 32, left : left + 200]
    assert (caption < 300).any()
    assert (sheet[top + height + 2 : top + height + 32, left + 201 : left + 219] > 700).all()  # a long name is cut
    unlabelled = pictures.with_name("unlabelled")
    with ShardWriter(unlabelled, {"image": "image"}) as writer:
        writer.write({"image": encoded(plain((0, 255, 0), 400, 100))})
    bare = draw(unlabelled)
    top, left, height, _ = place_of(bare, (0, 255, 0))
    caption = bare[top + height + 2 : top + height + 32, left : left + 200].astype(int).sum(axis=2)
    assert (caption < 600).any()
    assert (caption[:, 20:] > 700).all()  # an index and nothing else


def test_the_first_24_are_shown_or_as_many_as_are_wanted(pictures: Path) -> None:
    assert draw(pictures).shape[1] == 6 * 220 + 44
    assert draw(pictures).shape[0] > draw(pictures, "--images", 12).shape[0]
    one = draw(pictures, "--images", 1)
    assert place_of(one, (255, 0, 0))[2:] == (150, 200)
    assert not (one == np.array((0, 0, 255), np.uint8)).all(axis=2).any()
    assert draw(pictures, "--images", 1000).shape[1] == 7 * 220 + 44


def test_what_does_not_decode_is_a_grey_tile_that_says_so(pictures: Path) -> None:
    sheet = draw(pictures, "--images", 4)
    blue = place_of(sheet, (0, 0, 255))
    tile = sheet[blue[0] + blue[2] - 200 : blue[0] + blue[2], blue[1] + 220 : blue[1] + 420]
    if blue[1] + 220 > sheet.shape[1] - 200:  # it stands in the next row
        tile = sheet[-(32 + 32 + 200) : -(32 + 32), 32:232]
    colours, counts = np.unique(tile.reshape(-1, 3), axis=0, return_counts=True)
    grey = colours[counts.argmax()].astype(int)
    assert np.ptp(grey) < 12
    assert 180 < grey.mean() < 235
    assert len(colours) > 3  # words


def test_masks_are_coloured_by_their_values(tmp_path: Path) -> None:
    mask = np.zeros((40, 60), np.uint8)
    mask[:10], mask[10:20], mask[20:30] = 1, 2, 255
    with ShardWriter(tmp_path / "out", {"mask": "mask"}) as writer:
        writer.write({"mask": encoded(mask)})
    sheet = draw(tmp_path / "out")
    colours = [tuple(colour) for colour in colour_mask(np.array([[1, 2, 255, 0]], np.uint8))[0].tolist()]
    assert len(set(colours)) == 4
    places = [place_of(sheet, colour) for colour in colours[:2]]
    assert all(place[3] == 200 for place in places)
    assert places[0][0] < places[1][0]


def test_a_value_has_one_colour_in_every_mask_and_measurements_are_grey() -> None:
    few, more = np.array([[0, 7]], np.uint8), np.array([[7, 3, 9, 0]], np.int32)
    assert np.array_equal(colour_mask(few)[0, 1], colour_mask(more)[0, 0])
    classes = colour_mask(np.arange(40, dtype=np.uint8)[None])
    assert len(np.unique(classes[0], axis=0)) == 40
    depth = colour_mask(np.arange(0, 60000, 100, dtype=np.int32)[None])
    assert (depth[..., 0] == depth[..., 1]).all()
    assert (int(depth.min()), int(depth.max())) == (0, 255)


def test_the_column_can_be_chosen_and_must_hold_pictures(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "out", {"n": "int64", "mask": "mask", "a": "image", "b": "image"}) as writer:
        red, blue = encoded(plain((255, 0, 0), 4, 4)), encoded(plain((0, 0, 255), 4, 4))
        writer.write({"n": 1, "mask": encoded(np.zeros((4, 4), np.uint8)), "a": red, "b": blue})
    place_of(draw(tmp_path / "out"), (255, 0, 0))
    place_of(draw(tmp_path / "out", "--column", "b"), (0, 0, 255))
    place_of(draw(tmp_path / "out", "--column", "mask"), (44, 46, 54))
    for wrong in ("n", "c"):
        with pytest.raises(ConfigError, match=f"no column of images or masks called {wrong} .*it has mask, a, b"):
            draw(tmp_path / "out", "--column", wrong)
    with ShardWriter(tmp_path / "numbers", {"n": "int64"}) as writer:
        writer.write({"n": 1})
    with pytest.raises(ConfigError, match="it has none"):
        draw(tmp_path / "numbers")


def test_json_names_the_sheet_and_a_sheet_that_cannot_be_written_is_an_error(pictures: Path, tmp_path: Path) -> None:
    told = run("inspect", pictures, "--sheet", tmp_path / "a.png", "--json").stdout
    assert json.loads(told)["sheet"] == str(tmp_path / "a.png")
    with pytest.raises(ConfigError, match=r"give a name that ends in \.png"):
        run("inspect", pictures, "--sheet", tmp_path / "a.jpg")
    with pytest.raises(SourceError, match="cannot be written"):
        run("inspect", pictures, "--sheet", tmp_path / "nowhere" / "a.png")


def test_an_empty_data_set_has_an_empty_sheet(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "empty", {"image": "image"}):
        pass
    assert draw(tmp_path / "empty").size


def test_awkward_pictures_all_get_a_tile(data_dir: Path, tmp_path: Path) -> None:
    files = sorted(path for path in (data_dir / "awkward").rglob("*") if path.is_file() and path.suffix != ".csv")
    with ShardWriter(tmp_path / "out", {"image": "image", "label": "str"}) as writer:
        for path in files:
            writer.write({"image": path.read_bytes(), "label": os.fsdecode(path.name)})
    assert draw(tmp_path / "out", "--images", len(files)).shape[1] == 8 * 220 + 44
