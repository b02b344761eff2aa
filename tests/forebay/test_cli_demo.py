"""`forebay demo` and `forebay bench`: told to people and to programs, and careful with folders that are not theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forebay.benchmarks import draw_photograph
from forebay.cli.app import app
from forebay.cli.demo_data import DemoFolder, hold_out, list_photographs, thin_out
from forebay.errors import ConfigError
from forebay.sharding.image_folder import list_class_folders

CLASSES = ["bricks", "clouds", "wood"]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """14 small photographs in each of three classes."""
    folder = tmp_path_factory.mktemp("photographs")
    for name in CLASSES:
        (folder / name).mkdir()
        for number in range(14):
            (folder / name / f"{number:02d}.jpg").write_bytes(draw_photograph(name, number, longest=(90, 120)))
    return folder


def test_the_demo_goes_all_the_way_and_may_be_run_again(photographs: Path, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = ["demo", "--data", str(photographs), "--out", str(out), "--epochs", "1", "--no-compare"]
    told = CliRunner().invoke(app, command, catch_exceptions=False)
    assert told.exit_code == 0, told.output
    for words in ("Photographs", "Shards", "Training", "of the time for data", "Try next", "bricks, clouds, wood"):
        assert words in told.stdout
    (out / "shards" / "train" / "left-over").write_text("of a demo that was killed")
    again = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    report = json.loads(again.stdout)
    assert report["shards"]["train"]["rows"] == 33
    assert report["shards"]["validation"]["rows"] == 9  # three of 14 in each class
    assert report["chance"] == pytest.approx(1 / 3)
    assert len(report["training"]["epochs"]) == 1
    assert not (out / "shards" / "train" / "left-over").exists()


def test_the_demo_touches_no_folder_that_it_did_not_write(photographs: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(ConfigError, match="no demo wrote it"):
        CliRunner().invoke(app, ["demo", "--out", str(tmp_path)], catch_exceptions=False)
    with pytest.raises(ConfigError, match="is a file"):
        DemoFolder(tmp_path / "precious")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_one_in_six_of_each_class_is_held_out_and_always_the_same(photographs: Path) -> None:
    folder = list_class_folders(photographs)
    train, validation = hold_out(folder)
    assert sorted([*train.images, *validation.images], key=lambda image: image.path) == list(folder.images)
    assert {image.values["label"] for image in validation.images} == {0, 1, 2}
    assert hold_out(folder) == (train, validation)


def test_a_large_folder_is_thinned_out_evenly(photographs: Path) -> None:
    folder = list_class_folders(photographs)
    assert thin_out(folder, 42) is folder
    thinned = [image.values["label"] for image in thin_out(folder, 9).images]
    assert thinned == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_validation_folder_beside_the_training_folder_is_used(photographs: Path, tmp_path: Path) -> None:
    (tmp_path / "train").symlink_to(photographs)
    (tmp_path / "validation").symlink_to(photographs)
    for data in (tmp_path, tmp_path / "train"):
        train, validation, where = list_photographs(data)
        assert len(train.images) == len(validation.images) == 42
        assert where == str(tmp_path / "validation")
    (tmp_path / "validation").unlink()
    (tmp_path / "validation" / "dogs").mkdir(parents=True)
    (tmp_path / "validation" / "dogs" / "a.jpg").write_bytes(b"x")
    with pytest.raises(ConfigError, match="different class folders"):
        list_photographs(tmp_path)


def test_a_class_with_one_image_cannot_be_divided(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "one.jpg").write_bytes(b"x")
    with pytest.raises(ConfigError, match="has one image"):
        list_photographs(tmp_path)
    with pytest.raises(ConfigError, match="not a folder"):
        list_photographs(tmp_path / "nowhere")


def test_bench_order_prints_a_table_or_json() -> None:
    command = ["bench", "order", "--samples", "2000", "--shards", "20"]
    told = CliRunner().invoke(app, command, catch_exceptions=False)
    assert told.exit_code == 0, told.output
    assert "positions a second" in told.stdout
    assert json.loads(CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False).stdout)["samples"] == 2000
    with pytest.raises(ConfigError, match="at most as many shards"):
        CliRunner().invoke(app, ["bench", "order", "--samples", "2", "--shards", "20"], catch_exceptions=False)
