"""The commands shard, inspect and verify, from the command line's arguments to what they print."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner, Result

from forebay.cli.inspect import human_size, inspect
from forebay.cli.shard import shard
from forebay.cli.shard_resume import ResumePlan, plan_resume
from forebay.cli.verify import verify
from forebay.errors import ConfigError, ForebayError, ManifestError
from forebay.sharding import ShardWriter, open_dataset
from forebay.sharding.image_folder import ImageFile

app = typer.Typer()
for command in (shard, inspect, verify):
    app.command()(command)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, ForebayError):
        raise result.exception
    return result


def image_bytes(seed: int, size: int = 16, kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def make_folder(root: Path, images: int = 12) -> Path:
    for number in range(images):
        path = root / ("cats", "dogs")[number % 2] / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image_bytes(number))
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos")


def stored_rows(path: Path) -> list[dict[str, Any]]:
    data = open_dataset(path)
    rows = []
    for index in range(data.num_shards):
        with data.open_shard(index) as reader:
            rows += [{name: reader.value(row, name) for name in data.schema.names} for row in range(reader.rows)]
    return rows


@pytest.mark.parametrize("check", ["decode", "header", "none"])
def test_class_folders_become_shards_in_order(check: str, photos: Path, tmp_path: Path) -> None:
    arguments = ("--jpeg", "original", "--check", check, "--shard-size", "3KiB", "--workers", 0)
    result = run("shard", photos, tmp_path / "out", *arguments)
    assert result.exit_code == 0
    assert "12 images in 2 classes" in result.stdout
    rows = stored_rows(tmp_path / "out")
    names = [row["name"] for row in rows]
    assert names == sorted(names)
    for row in rows:
        assert row["image"] == (photos / row["name"]).read_bytes()
        assert row["label"] == ("cats", "dogs").index(row["name"].split("/")[0])
    data = open_dataset(tmp_path / "out")
    assert data.num_shards > 1
    assert data.schema["label"].classes == ("cats", "dogs")


def test_json_is_one_object_on_standard_output(photos: Path, tmp_path: Path) -> None:
    (photos / "cats" / "notes.txt").write_text("not an image")
    report = json.loads(run("shard", photos, tmp_path / "out", "--check", "header", "--json").stdout)
    assert report["rows"] == 12
    assert report["classes"] == ["cats", "dogs"]
    assert (report["ignored_files"], report["unlabelled_images"], report["bad_images"]) == (1, 0, [])
    assert report["fingerprint"] == open_dataset(tmp_path / "out").fingerprint


@pytest.mark.parametrize("check", ["decode", "header"])
def test_bad_images_are_left_out_and_listed_with_their_reason(check: str, photos: Path, tmp_path: Path) -> None:
    (photos / "cats" / "broken\n[red].jpg").write_bytes(b"no image at all")
    (photos / "cats" / "empty.jpg").touch()
    os.mkfifo(photos / "dogs" / "pipe.jpg")
    (photos / "dogs" / "gone.jpg").symlink_to("nowhere")
    result = run("shard", photos, tmp_path / "out", "--check", check, "--workers", 0)
    assert result.exit_code == 0
    assert "4 bad images left out" in result.stderr
    for name in (r"cats/broken\n[red].jpg", "cats/empty.jpg", "dogs/pipe.jpg", "dogs/gone.jpg"):
        assert name in result.stderr
    assert len(stored_rows(tmp_path / "out")) == 12


def test_an_image_that_decodes_only_in_part_is_bad_unless_nobody_looks(photos: Path, tmp_path: Path) -> None:
    (photos / "cats" / "cut.jpg").write_bytes(image_bytes(1, size=64)[:-400])
    counts = {}
    for check in ("decode", "header", "none"):
        report = json.loads(run("shard", photos, tmp_path / check, "--check", check, "--workers", 0, "--json").stdout)
        counts[check] = report["rows"]
    assert counts == {"decode": 12, "header": 13, "none": 13}


def test_when_no_image_is_good_it_is_an_error_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "photos" / "cats" / "a.jpg").write_bytes(b"nothing")
    with pytest.raises(
        ConfigError, match=r"of 1 image in .* none is good: cats/a.jpg: no image header of a known format"
    ):
        run("shard", tmp_path / "photos", tmp_path / "out", "--check", "header")
    assert not (tmp_path / "out").exists()


def test_labels_from_a_file(photos: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("file,label,age\ncats/000.jpg,old,3\ndogs/001.jpg,new,4\ncats/absent.jpg,new,5\n")
    result = run("shard", photos, tmp_path / "out", "--labels", labels, "--check", "header")
    assert "10 images left out: not named by the labels" in result.stderr
    assert "cats/absent.jpg" in result.stderr
    found = [(row["name"], row["label"], row["age"]) for row in stored_rows(tmp_path / "out")]
    assert found == [("cats/000.jpg", 1, 3), ("dogs/001.jpg", 0, 4)]


def test_a_destination_within_the_source_or_not_empty_is_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lies within"):
        run("shard", photos, photos / "shards")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").touch()
    with pytest.raises(ConfigError, match="not empty"):
        run("shard", photos, tmp_path / "out", "--check", "header")


@pytest.fixture
def half_done(photos: Path, tmp_path: Path) -> Path:
    """A write that stopped after some shards, as Ctrl-C or a full disk leaves it."""
    out = tmp_path / "half"
    (photos / "cats" / "bad.jpg").write_bytes(b"bad")
    (photos / "cats" / "001.jpg").write_bytes(b"bad too, before the end")
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.jpg") if path.stat().st_size > 100)
    columns = {"image": "image", "label": "int64", "name": "str"}
    classes, settings = {"label": ["cats", "dogs"]}, {"check": "header", "jpeg": "original"}
    with ShardWriter(out, columns, classes=classes, shard_nbytes=3072, batch_nbytes=3072, settings=settings) as writer:
        for name in names[:9]:
            image = (photos / name).read_bytes()
            writer.write({"image": image, "label": int(name.startswith("dogs")), "name": name})
        writer.abort()
    return out


def test_a_resumed_write_ends_like_one_that_was_not_stopped(half_done: Path, photos: Path, tmp_path: Path) -> None:
    arguments = ("--jpeg", "original", "--check", "header", "--shard-size", "3KiB")
    with pytest.raises(ConfigError, match="--resume"):
        run("shard", photos, half_done, *arguments)
    whole = json.loads(run("shard", photos, tmp_path / "whole", *arguments, "--json").stdout)
    resumed = json.loads(run("shard", photos, half_done, *arguments, "--resume", "--json").stdout)
    for key in ("fingerprint", "rows", "shards", "bad_images"):
        assert resumed[key] == whole[key]
    assert [image["file"] for image in resumed["bad_images"]] == ["cats/001.jpg", "cats/bad.jpg"]
    assert open_dataset(half_done).manifest.writer["jpeg"] == "original"


def test_a_resumed_write_notices_that_the_source_has_changed(half_done: Path, photos: Path) -> None:
    arguments = ("shard", photos, half_done, "--jpeg=original", "--check=header", "--shard-size=3KiB", "--resume")
    (photos / "cats" / "000.1.jpg").write_bytes(image_bytes(77))
    with pytest.raises(ConfigError, match=r"cats/000.1.jpg of .* was left out .* is new, has changed"):
        run(*arguments)
    (photos / "cats" / "000.1.jpg").unlink()
    (photos / "cats" / "000.jpg").unlink()
    with pytest.raises(ConfigError, match=r"cats/000.jpg was stored .* and is gone"):
        run(*arguments)


def test_what_is_left_of_a_write_is_planned_from_names_alone() -> None:
    images = [ImageFile(path, {}) for path in "abcde"]
    plan = plan_resume(images, ["a", "c"])
    assert (plan.found_bad, plan.new) == ([images[1]], images[3:])
    assert plan_resume(images, []) == ResumePlan(found_bad=[], new=images)
    assert plan_resume(images, list("abcde")) == ResumePlan(found_bad=[], new=[])
    with pytest.raises(ConfigError, match="x was stored"):
        plan_resume(images, ["a", "x"])


def test_inspect_shows_columns_sizes_and_first_samples(photos: Path, tmp_path: Path) -> None:
    run("shard", photos, tmp_path / "out", "--check", "header")
    text = run("inspect", tmp_path / "out", "--rows", 2).stdout
    for shown in ("12", "cats, dogs", "16x16 JPEG", "0 (cats)", "cats/002.jpg", "shard_nbytes=67108864"):
        assert shown in text
    summary = json.loads(run("inspect", tmp_path / "out", "--rows", 3, "--json").stdout)
    assert summary["rows"] == 12
    assert summary["columns"][1] == {"name": "label", "type": "int64", "classes": ["cats", "dogs"]}
    assert len(summary["samples"]) == 3
    assert summary["samples"][0]["image"].startswith("16x16 JPEG, ")


def test_inspect_shows_every_kind_of_column_and_an_empty_data_set(tmp_path: Path) -> None:
    columns = {"m": "mask", "b": "bytes", "s": "str", "j": "json", "t": "uint8[*,2]", "x": "float32", "y": "bool"}
    with ShardWriter(tmp_path / "kinds", columns) as writer:
        sample = {"m": image_bytes(0, kind="PNG"), "b": b"123", "s": "[bold]text", "j": {"a": 1}, "x": 0.5, "y": True}
        writer.write(sample | {"t": np.zeros((3, 2), np.uint8)})
        writer.write(sample | {"t": np.zeros((0, 2), np.uint8), "m": b"no image"})
    first, second = json.loads(run("inspect", tmp_path / "kinds", "--json").stdout)["samples"]
    assert (first["b"], first["s"], first["j"], first["x"], first["y"]) == (
        "3 bytes",
        "[bold]text",
        "{'a': 1}",
        "0.5",
        "True",
    )
    assert (first["t"], second["t"], second["m"]) == ("uint8 3x2", "uint8 0x2", "no image that Pillow knows, 8 bytes")
    assert "[bold]text" in run("inspect", tmp_path / "kinds").stdout
    with ShardWriter(tmp_path / "empty", columns):
        pass
    assert run("inspect", tmp_path / "empty").exit_code == 0
    assert run("verify", tmp_path / "empty").exit_code == 0


def test_inspect_of_no_data_set_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="is empty"):
        run("inspect", tmp_path)


def test_verify_is_silent_about_nothing_and_exits_by_its_finding(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("shard", photos, out, "--jpeg", "original", "--check", "header")
    good = run("verify", out)
    assert (good.exit_code, "every checksum holds" in good.stdout) == (0, True)
    assert json.loads(run("verify", out, "--json").stdout)["problems"] == []
    image = (photos / "cats" / "002.jpg").read_bytes()
    shard_file = out / "00000000.arrow"
    content = bytearray(shard_file.read_bytes())
    content[content.index(image) + 50] ^= 4
    shard_file.write_bytes(content)
    bad = run("verify", out)
    assert bad.exit_code == 1
    assert "00000000.arrow, row 1, column image" in bad.stdout
    assert "is damaged" in bad.stderr
    found = json.loads(run("verify", out, "--json").stdout)["problems"]
    assert [(problem["shard"], problem["row"], problem["column"]) for problem in found] == [
        ("00000000.arrow", None, None),
        ("00000000.arrow", 1, "image"),
    ]


def test_verify_reports_a_damaged_manifest_as_a_finding(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("shard", photos, out, "--check", "header")
    (out / "manifest.json").write_text((out / "manifest.json").read_text().replace('"rows": 12', '"rows": 13'))
    result = run("verify", out, "--json")
    assert result.exit_code == 1
    (problem,) = json.loads(result.stdout)["problems"]
    assert problem["shard"] is None
    assert "damaged or edited" in problem["reason"]


def test_verify_decode_lists_every_picture_that_is_none(tmp_path: Path) -> None:
    with ShardWriter(
        tmp_path / "out", {"photo": "image", "mask": "mask", "n": "int64"}, shard_nbytes=1 << 15
    ) as writer:
        for number in range(60):
            photo = image_bytes(number) if number % 2 else b"no picture"
            mask = image_bytes(number, kind="PNG")  # in colours, which no mask is
            writer.write({"photo": photo, "mask": mask, "n": number})
    assert run("verify", tmp_path / "out").exit_code == 0
    told = run("verify", tmp_path / "out", "--decode")
    assert told.exit_code == 1
    assert "every checksum holds" in told.stdout
    assert "00000000.arrow, row 0, column photo" in told.stdout
    assert "one number a pixel" in told.stdout
    assert "and 70 more that do not decode" in told.stdout
    assert "90 of 120 images and masks do not decode" in told.stderr
    report = json.loads(run("verify", tmp_path / "out", "--decode", "--json").stdout)
    assert (report["problems"], report["pictures"], len(report["undecodable"])) == ([], 120, 90)
    data = open_dataset(tmp_path / "out")
    assert data.num_shards > 1
    starts = {data.shard_name(shard): int(data.shard_starts[shard]) for shard in range(data.num_shards)}
    bad = [(starts[each["shard"]] + each["row"], each["column"]) for each in report["undecodable"]]
    wanted = [(row, column) for row in range(60) for column in ("photo", "mask") if column == "mask" or row % 2 == 0]
    assert bad == wanted


def test_verify_decode_is_content_with_good_pictures_and_with_none(photos: Path, tmp_path: Path) -> None:
    run("shard", photos, tmp_path / "out", "--check", "header")
    good = run("verify", tmp_path / "out", "--decode")
    assert (good.exit_code, "all 12 images and masks decode" in good.stdout) == (0, True)
    with ShardWriter(tmp_path / "numbers", {"n": "int64"}) as writer:
        writer.write({"n": 1})
    none = run("verify", tmp_path / "numbers", "--decode")
    assert (none.exit_code, "holds no pictures" in none.stdout) == (0, True)


def test_damaged_bytes_are_told_by_their_checksum_and_not_decoded(photos: Path, tmp_path: Path) -> None:
    run("shard", photos, tmp_path / "out", "--jpeg", "original", "--check", "header")
    image = (photos / "cats" / "002.jpg").read_bytes()
    shard_file = tmp_path / "out" / "00000000.arrow"
    content = bytearray(shard_file.read_bytes())
    at = content.index(image)
    content[at : at + len(image)] = bytes(len(image))
    shard_file.write_bytes(content)
    result = run("verify", tmp_path / "out", "--decode", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, len(report["problems"]), report["undecodable"]) == (1, 2, [])
    shard_file.write_bytes(content[:-1])
    report = json.loads(run("verify", tmp_path / "out", "--decode", "--json").stdout)
    assert (len(report["problems"]), report["undecodable"]) == (1, [])


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_are_told_as_a_person_reads_them(nbytes: int, text: str) -> None:
    assert human_size(nbytes) == text


@pytest.mark.parametrize("name", ["shard", "inspect", "verify"])
def test_each_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_real_photographs_become_a_data_set(data_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "photos"
    for folder in sorted((data_dir / "photos" / "validation").iterdir())[:3]:
        shutil.copytree(folder, source / folder.name)
    report = json.loads(run("shard", source, tmp_path / "out", "--check", "header", "--json").stdout)
    assert report["bad_images"] == []
    assert report["rows"] == sum(len(os.listdir(folder)) for folder in source.iterdir())
    assert run("verify", tmp_path / "out").exit_code == 0
