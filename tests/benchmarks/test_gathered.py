"""The images of a benchmark: from any folder, as many as a pass can do, with addressable forms of the same pixels."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from forebay.benchmarks import CLASSES, draw_photograph
from forebay.benchmarks.gathered import Gathered, choose_images, gather, write_files, write_shards
from forebay.benchmarks.torch_peer import decode_file
from forebay.errors import ConfigError
from forebay.sharding import can_transcode, open_dataset


def gathered(source: Path, *, images: int | None = None, addressable: bool = False) -> Gathered:
    return gather(source, images=images, multiple=8, addressable=addressable, seed=0)


def test_a_flat_folder_of_ones_own_has_no_labels_and_a_nested_one_those_of_its_top_folders(
    photographs: Path, tmp_path: Path
) -> None:
    for number in range(3):
        (tmp_path / f"{number}.JPG").write_bytes(draw_photograph("wood", number, longest=(50, 60)))
    (tmp_path / "notes.txt").write_text("no image")
    flat = gathered(tmp_path, images=5)
    assert {each.label for each in flat.distinct} == {0}
    assert (len(flat.distinct), flat.images, len(list(flat.all()))) == (3, 5, 5)
    assert {each.label for each in gathered(photographs, images=100).distinct} == set(range(len(CLASSES)))


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    (tmp_path / ".thumbnails").mkdir()
    for path in (".a.jpg", ".thumbnails/b.jpg"):
        (tmp_path / path).write_bytes(draw_photograph("wood", 0, longest=(50, 60)))
    with pytest.raises(ConfigError, match="no image that can be decoded"):
        gathered(tmp_path)


def test_what_is_no_common_jpeg_is_left_out_where_only_those_are_wanted(tmp_path: Path) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    Image.new("CMYK", (40, 30)).save(tmp_path / "b.jpg")
    with pytest.raises(ConfigError, match="no JPEG that can be decoded"):
        gather(tmp_path, images=None, multiple=8, addressable=True, seed=0, common_jpeg=True)
    assert len(gathered(tmp_path, images=4, addressable=True).distinct) == 2


@pytest.mark.parametrize(("pixels", "images"), [(200_000, 2048), (1_000_000, 1024), (5_000_000, 256), (1 << 27, 256)])
def test_a_pass_over_larger_images_has_fewer_of_them_and_as_many_for_each_worker(pixels: int, images: int) -> None:
    assert choose_images(pixels, 256) == images


def test_files_and_shards_hold_the_same_images_in_the_same_order(photographs: Path, tmp_path: Path) -> None:
    chosen = gathered(photographs, images=20)
    files = write_files(chosen, tmp_path / "files")
    write_shards(chosen, tmp_path / "shards", addressable=False)
    data = open_dataset(tmp_path / "shards")
    with data.open_shard(0) as reader:
        stored = [(bytes(reader.read(row, "image")), int(reader.scalars("label")[row])) for row in range(data.rows)]
    assert stored == [(Path(path).read_bytes(), label) for path, label in files]
    assert stored == [(each.data, each.label) for each in chosen.all()]


@pytest.mark.skipif(not can_transcode(), reason="this build cannot make addressable JPEGs")
def test_addressable_forms_have_the_same_pixels(photographs: Path) -> None:
    chosen = gathered(photographs, images=16, addressable=True)
    assert chosen.num_addressable == 16
    assert chosen.addressable_before == 0
    for each in chosen.distinct:
        assert each.addressable is not None
        with Image.open(io.BytesIO(each.addressable)) as image:
            assert np.array_equal(np.asarray(image.convert("RGB")), decode_file(each.data))
