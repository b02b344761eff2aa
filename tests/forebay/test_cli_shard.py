"""`forebay shard` on JPEGs and with worker processes: what it stores, what it refuses, and how it ends when stopped."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner, Result

from forebay.cli.inspect import inspect
from forebay.cli.shard import shard
from forebay.errors import ConfigError, ForebayError
from forebay.sharding import ShardWriter, can_transcode, describe_jpeg, make_addressable, open_dataset

app = typer.Typer()
for command in (shard, inspect):
    app.command()(command)

FOREBAY = Path(sys.executable).with_name("forebay")
needs_transcoder = pytest.mark.skipif(not can_transcode(), reason="forebay was installed without its native parts")


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, ForebayError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def picture(seed: int, size: tuple[int, int], kind: str = "JPEG", mode: str = "RGB", **settings: int) -> bytes:
    """A smooth picture with some noise."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    pixels = np.asarray(coarse).astype(np.int16) + rng.integers(-12, 13, (size[1], size[0], 1))
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode).save(file, kind, **settings)
    return file.getvalue()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 JPEGs of many kinds, a CMYK one, two PNGs, one named like a JPEG, and a file that is no picture."""
    root = tmp_path_factory.mktemp("photos")
    for name in ("cats", "dogs"):
        (root / name).mkdir()
    for number in range(30):
        size, mode = (40 + 7 * number, 30 + 11 * number), "L" if number % 5 == 0 else "RGB"
        image = picture(number, size, mode=mode, progressive=number % 3 == 0, subsampling=number % 3)
        (root / ("cats", "dogs")[number % 2] / f"{number:03}.jpg").write_bytes(image)
    (root / "cats" / "cmyk.jpg").write_bytes(picture(50, (60, 40), mode="CMYK"))
    (root / "cats" / "really.jpg").write_bytes(picture(51, (60, 40), "PNG"))
    (root / "dogs" / "other.png").write_bytes(picture(52, (60, 40), "PNG"))
    (root / "dogs" / "bad.jpg").write_bytes(b"no picture")
    return root


def stored(path: Path) -> dict[str, bytes]:
    """The bytes of each image, by its name."""
    data = open_dataset(path)
    found: dict[str, bytes] = {}
    for index in range(data.num_shards):
        with data.open_shard(index) as reader:
            found |= {reader.value(row, "name"): reader.value(row, "image") for row in range(reader.rows)}
    return found


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


# -- what is stored --------------------------------------------------------------------------------------------------


@needs_transcoder
def test_jpegs_become_addressable_with_the_same_pixels_and_other_formats_stay_as_they_were(
    photos: Path, tmp_path: Path
) -> None:
    told = run("shard", photos, tmp_path / "out", "--check", "header", "--workers", 0)
    assert "30 JPEGs made crop-addressable" in told.stdout
    assert "Kept as they were, by this command:" in told.stdout
    assert "1: the JPEG is CMYK" in told.stdout
    images = stored(tmp_path / "out")
    assert len(images) == 33
    for name, image in images.items():
        source = (photos / name).read_bytes()
        if name[5:8].isdigit():
            assert describe_jpeg(image) is not None
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(image))), np.asarray(Image.open(photos / name)))
        else:
            assert image == source


@needs_transcoder
def test_json_counts_jpegs_their_bytes_and_the_reasons_why_some_were_kept(photos: Path, tmp_path: Path) -> None:
    arguments = ("shard", photos, tmp_path / "out", "--check", "header", "--workers", 0, "--json")
    report = json.loads(run(*arguments).stdout)["jpeg"]
    images = stored(tmp_path / "out")
    changed = {name: image for name, image in images.items() if image != (photos / name).read_bytes()}
    assert (report["setting"], report["addressable"], len(changed)) == ("addressable", 30, 30)
    assert report["nbytes_before"] == sum(len((photos / name).read_bytes()) for name in changed)
    assert report["nbytes_after"] == sum(map(len, changed.values()))
    growth = 100 * (report["nbytes_after"] / report["nbytes_before"] - 1)
    assert report["growth_percent"] == pytest.approx(growth, abs=0.01)
    assert list(report["kept"].values()) == [1]


def test_original_keeps_every_byte(photos: Path, tmp_path: Path) -> None:
    arguments = ("shard", photos, tmp_path / "out", "--jpeg", "original", "--check", "header", "--workers", 0, "--json")
    report = json.loads(run(*arguments).stdout)["jpeg"]
    assert (report["setting"], report["addressable"], report["kept"]) == ("original", 0, {})
    assert all(image == (photos / name).read_bytes() for name, image in stored(tmp_path / "out").items())


@needs_transcoder
def test_inspect_tells_how_many_are_addressable(photos: Path, tmp_path: Path) -> None:
    for jpeg, count in (("addressable", 30), ("original", 0)):
        run("shard", photos, tmp_path / jpeg, "--jpeg", jpeg, "--check", "header", "--workers", 0)
        summary = json.loads(run("inspect", tmp_path / jpeg, "--json").stdout)
        assert summary["addressable"] == {"image": {"rows": 33, "addressable": count}}
        assert ("addressable" in summary["samples"][0]["image"]) == (jpeg == "addressable")
        assert f"{count} of the 33 in the first shard" in run("inspect", tmp_path / jpeg).stdout


def test_without_native_parts_jpegs_stay_as_they_are_and_the_command_says_what_to_install(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "forebay.sharding._transcode", None)  # as an installation that lacks it
    told = run("shard", photos, tmp_path / "out", "--check", "header", "--workers", 0)
    assert "JPEGs are stored as they came" in told.stderr
    assert "libjpeg62-turbo-dev" in told.stderr
    assert all(image == (photos / name).read_bytes() for name, image in stored(tmp_path / "out").items())
    quiet = run("shard", photos, tmp_path / "quiet", "--jpeg", "original", "--check", "header", "--workers", 0)
    assert "as they came" not in quiet.stderr
    with pytest.raises(ConfigError, match=r"--jpeg=addressable cannot be done: .*libjpeg62-turbo-dev"):
        run("shard", photos, tmp_path / "refused", "--jpeg", "addressable")
    assert not (tmp_path / "refused").exists()


# -- workers ---------------------------------------------------------------------------------------------------------


def test_every_byte_of_every_file_is_the_same_for_any_number_of_workers(photos: Path, tmp_path: Path) -> None:
    results = []
    for workers in (0, 1, 3):
        out = tmp_path / str(workers)
        arguments = ("--check", "header", "--shard-size", "64KiB", "--workers", workers, "--json")
        report = json.loads(run("shard", photos, out, *arguments).stdout)
        told = {key: report[key] for key in ("fingerprint", "rows", "shards", "bad_images", "jpeg")}
        results.append((told, files(out)))
    assert results[0] == results[1] == results[2]
    assert results[0][0]["shards"] > 3
    assert [image["file"] for image in results[0][0]["bad_images"]] == ["dogs/bad.jpg"]


@pytest.mark.parametrize("workers", [0, 2])
def test_images_larger_than_a_worker_is_given_at_once_pass(workers: int, tmp_path: Path) -> None:
    large = np.random.default_rng(0).integers(0, 256, (700, 900, 3), dtype=np.uint8)
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    for number in range(5):
        Image.fromarray(large).save(tmp_path / "photos" / "cats" / f"{number}.bmp")
    arguments = ("shard", tmp_path / "photos", tmp_path / "out", "--check", "header", "--workers", workers, "--json")
    assert json.loads(run(*arguments).stdout)["rows"] == 5


# -- going on --------------------------------------------------------------------------------------------------------


@needs_transcoder
@pytest.mark.parametrize("began", ["addressable", "original"])
def test_a_write_cannot_go_on_with_another_kind_of_jpeg(began: str, photos: Path, tmp_path: Path) -> None:
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.*") if path.name != "bad.jpg")
    out = tmp_path / "out"
    columns = {"image": "image", "label": "int64", "name": "str"}
    classes = {"label": ["cats", "dogs"]}
    settings = {"check": "header", "jpeg": began}
    with ShardWriter(
        out, columns, classes=classes, shard_nbytes=65536, batch_nbytes=65536, settings=settings
    ) as writer:
        for name in names[:25]:
            image = (photos / name).read_bytes()
            if began == "addressable" and name[5:8].isdigit():
                image = make_addressable(image)
            writer.write({"image": image, "label": int(name.startswith("dogs")), "name": name})
        writer.abort()
    before = files(out)
    assert len(before) > 2
    arguments = ("--check", "header", "--shard-size", "64KiB", "--workers", 0, "--json")
    other = "original" if began == "addressable" else "addressable"
    with pytest.raises(ConfigError, match=rf'jpeg was "{began}", now it is "{other}"\. Give the same'):
        run("shard", photos, out, *arguments, "--jpeg", other, "--resume")
    assert files(out) == before
    resumed = json.loads(run("shard", photos, out, *arguments, "--jpeg", began, "--resume").stdout)
    whole = json.loads(run("shard", photos, tmp_path / "whole", *arguments, "--jpeg", began).stdout)
    assert resumed["fingerprint"] == whole["fingerprint"]
    assert files(out) == files(tmp_path / "whole")


# -- stopped, in processes of its own --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 times the same photograph, which takes a while."""
    root = tmp_path_factory.mktemp("large")
    (root / "cats").mkdir()
    (root / "cats" / "00.jpg").write_bytes(picture(0, (2000, 1500), quality=90))
    for number in range(1, 60):
        (root / "cats" / f"{number:02}.jpg").hardlink_to(root / "cats" / "00.jpg")
    return root


@contextmanager
def at_work(photos: Path, out: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The real command, in a session of its own, from when it has written two shards; all of it is gone afterwards."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    settings = ("--check", "none", "--shard-size", "1MiB", *arguments)
    with subprocess.Popen(
        [str(FOREBAY), "shard", str(photos), str(out), *map(str, settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            while process.poll() is None and not (out / "00000001.arrow").exists():
                os.sched_yield()
            yield process
        finally:
            for pid in members(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.communicate()


def members(session: int) -> dict[int, int]:
    """The processes of a session, and the parent of each."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found[int(entry.name)] = int(fields[1])
    return found


def workers_of(session: int) -> list[int]:
    """The processes that this session's server has forked: those whose parent is a child of the command."""
    parents = members(session)
    return [pid for pid, parent in parents.items() if parents.get(parent) == session]


@needs_transcoder
def test_a_worker_that_is_killed_ends_the_command_with_the_image_in_its_hand(
    large_photos: Path, tmp_path: Path
) -> None:
    with at_work(large_photos, tmp_path / "out", "--workers", 2) as process:
        workers = workers_of(process.pid)
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        _, err = process.communicate(timeout=60)  # comes to an end when nobody holds the other end of its pipes
        assert (process.returncode, members(process.pid)) == (1, {})
    error = " ".join(err.split())
    assert re.search(r"error: a worker process was killed, .* with cats/\d\d.jpg in hand", error), err
    assert "--workers 1" in error
    assert "--resume" in error
    assert "Traceback" not in err
    arguments = ("--check", "none", "--shard-size", "1MiB", "--workers", 0, "--json")
    resumed = json.loads(run("shard", large_photos, tmp_path / "out", *arguments, "--resume").stdout)
    assert resumed["rows"] == 60


@needs_transcoder
def test_a_worker_that_crashes_names_the_image_to_move_away(large_photos: Path, tmp_path: Path) -> None:
    with at_work(large_photos, tmp_path / "out", "--workers", 1) as process:
        (worker,) = workers_of(process.pid)
        os.kill(worker, signal.SIGSEGV)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, members(process.pid)) == (1, {})
    assert re.search(r"crashed \(Segmentation fault\) on cats/\d\d.jpg; move that image away", " ".join(err.split())), (
        err
    )


@needs_transcoder
def test_ctrl_c_ends_promptly_says_how_to_go_on_and_leaves_no_process(large_photos: Path, tmp_path: Path) -> None:
    with at_work(large_photos, tmp_path / "out", "--workers", 2) as process:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the command
        _, err = process.communicate(timeout=60)
        assert (process.returncode, members(process.pid)) == (130, {})
    assert "interrupted" in err
    assert "--resume goes on after them" in " ".join(err.split())
    assert "Traceback" not in err
    assert not (tmp_path / "out" / "manifest.json").exists()


@needs_transcoder
def test_workers_end_when_the_command_is_killed(large_photos: Path, tmp_path: Path) -> None:
    with at_work(large_photos, tmp_path / "out", "--workers", 2) as process:
        process.kill()
        _, err = process.communicate(timeout=60)  # waits for all who hold its pipes
        assert err == ""


def test_workers_import_nothing_from_the_current_folder(photos: Path, tmp_path: Path) -> None:
    for name in ("forebay", "numpy", "PIL"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [str(FOREBAY), "shard", str(photos), "out", "--check", "header", "--workers", "1"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "wrong module" not in done.stderr
    assert len(stored(tmp_path / "out")) == 33
