"""The package's own build: with the native parts, with one of them, without; what the sdist and the wheel hold."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from forebay.sharding import can_transcode

ROOT = Path(__file__).resolve().parents[2]
BROKEN = "sharding/_transcode.abi3.so"
PARTS = [
    "loader/_kernel.abi3.so",
    "loader/_rows.abi3.so",
    "sharding/_order.abi3.so",
    "sharding/_ranges.abi3.so",
    "sharding/_segments.abi3.so",
    BROKEN,
]
SETTINGS = {"CC", "CFLAGS", "CPPFLAGS", "FOREBAY_NATIVE", "FOREBAY_SANITIZE", "FOREBAY_STATIC", "LDFLAGS", "LDSHARED"}
needs_compiler = pytest.mark.skipif(
    shutil.which("gcc") is None or not can_transcode(), reason="there is no compiler, or no libjpeg-turbo's headers"
)
pytest.importorskip("setuptools", minversion="77", reason="the build needs setuptools 77")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the source, so that no build of this test stands in the checkout."""
    copy = tmp_path / "source"
    for name in ("forebay", "benchmarks", "cache", "loader", "sharding", "trainers"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def run_setup(source: Path, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", *command],
        cwd=source,
        env=environment | settings,
        capture_output=True,
        text=True,
        check=False,
    )


def built(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.so") if "build" not in path.parts)


def said(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("forebay:")]


def test_without_native_parts_the_package_works_and_says_why(source: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    run_setup(source, "bdist_wheel", "--dist-dir", str(tmp_path), FOREBAY_NATIVE="0").check_returncode()
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, site, "zip")
    assert built(site) == []
    code = """
import io, json, forebay, torch
from PIL import Image
from forebay import DataLoader, ShardDataset, ShardWriter, transforms as T
from forebay.loader.kernel import native_version, why_not
from forebay.sharding import can_transcode, make_addressable

file = io.BytesIO()
Image.new("RGB", (48, 32), (9, 99, 199)).save(file, "JPEG")
with ShardWriter("shards", columns={"image": "image"}) as writer:
    for _ in range(4):
        writer.write({"image": file.getvalue()})
dataset = ShardDataset("shards", transforms={"image": [T.RandomResizedCrop(16)]})
(batch,) = DataLoader(dataset, batch_size=4)
try:
    make_addressable(file.getvalue())
except forebay.errors.ConfigError as error:
    refused = str(error)
print(json.dumps([forebay.__file__, native_version(), why_not(), can_transcode(), refused, list(batch["image"].shape)]))
"""
    paths = dict.fromkeys([str(site), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(  # -S: an editable installation would lend what is left out
        [sys.executable, "-S", "-P", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    origin, version, reason, transcodes, refused, shape = json.loads(done.stdout)
    assert origin == str(site / "forebay" / "__init__.py")
    assert (version, transcodes, shape) == (None, False, [4, 3, 16, 16])
    assert "not built" in reason
    assert "libjpeg62-turbo-dev" in reason
    assert "libjpeg62-turbo-dev" in refused


def test_without_a_compiler_the_native_parts_are_left_out_with_one_line(source: Path) -> None:
    for part in PARTS:
        (source / part).touch()
    done = run_setup(source, "build_ext", "--inplace", CC="/nowhere/cc")
    assert done.returncode == 0, done.stderr
    (line,) = said(done.stderr)
    assert "no C compiler: /nowhere/cc" in line
    assert "libjpeg62-turbo-dev" in line
    assert built(source) == [], "an older one stayed"


def test_native_parts_that_are_asked_for_are_not_left_out(source: Path) -> None:
    done = run_setup(source, "build_ext", "--inplace", CC="/nowhere/cc", FOREBAY_NATIVE="1")
    assert done.returncode != 0
    assert "no C compiler: /nowhere/cc" in done.stderr


def test_a_setting_that_means_nothing_is_refused(source: Path) -> None:
    done = run_setup(source, "build_ext", "--inplace", FOREBAY_NATIVE="yes")
    assert done.returncode != 0
    assert "FOREBAY_NATIVE=yes" in done.stderr


@needs_compiler
def test_when_one_native_part_does_not_build_the_others_are_kept(source: Path) -> None:
    with (source / "sharding/_transcode.c").open("a") as file:
        file.write("#error broken\n")
    done = run_setup(source, "build_ext", "--inplace")
    assert done.returncode == 0, done.stderr
    assert built(source) == PARTS[:-1]
    (line,) = said(done.stderr)
    assert "forebay.sharding._transcode was left out" in line


@needs_compiler
def test_the_sdist_builds_a_wheel_with_all_native_parts(source: Path, tmp_path: Path) -> None:
    for part in PARTS:
        (source / part).touch()
    run_setup(source, "sdist", "--dist-dir", str(tmp_path)).check_returncode()
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        held = {name.partition("/")[2] for name in file.getnames()}
        file.extractall(tmp_path / "unpacked", filter="data")
    native = {str(path.relative_to(ROOT)) for suffix in "ch" for path in (ROOT / "loader/native").glob(f"*.{suffix}")}
    others = {f"sharding/_{part}.c" for part in ("ranges", "segments", "transcode")}
    others |= {f"sharding/_{part}.pyi" for part in ("ranges", "segments")} | {"setup.py", "forebay/py.typed"}
    assert native | others | {"loader/_kernel.pyi", "loader/_rows.pyi"} <= held
    assert not any(name.endswith(".so") for name in held)

    (unpacked,) = (tmp_path / "unpacked").iterdir()
    run_setup(unpacked, "bdist_wheel", "--dist-dir", str(tmp_path), FOREBAY_NATIVE="1").check_returncode()
    (wheel,) = tmp_path.glob("*.whl")
    assert "-cp311-abi3-linux" in wheel.name
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    assert {f"forebay/{part}" for part in PARTS} | {"forebay/py.typed", "forebay/loader/_kernel.pyi"} <= set(names)
    assert not [name for name in names if name.endswith((".c", ".h"))]


@needs_compiler
@pytest.mark.parametrize("order", ["kernel PIL cv2 simplejpeg torch", "torch simplejpeg cv2 PIL kernel"])
def test_other_packages_copies_of_libjpeg_do_not_meet_ours(order: str) -> None:
    code = """
import importlib, io, sys
for name in sys.argv[1].split():
    importlib.import_module("forebay.loader._kernel" if name == "kernel" else name)
import cv2, simplejpeg
import numpy as np
from PIL import Image
from forebay.loader import _kernel
from forebay.sharding import make_addressable

pixels = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)
file = io.BytesIO()
Image.fromarray(pixels).save(file, "JPEG", quality=90)
for data in (file.getvalue(), make_addressable(file.getvalue())):
    by_pillow = np.asarray(Image.open(io.BytesIO(data)))
    job = np.array([[0, 0, 40, 56, 40, 56, 0, 0, 0, 1, 40, 56, -1]], dtype=np.int32)
    out, status = np.zeros((1, 40, 56, 3), dtype=np.uint8), np.full(1, -1, dtype=np.int32)
    _kernel.decode([data], [None], job, out, 40, 56, None, 1, status, 1 << 20, 1, None)
    assert status[0] == 0
    assert (out[0] == by_pillow).all()
    assert (simplejpeg.decode_jpeg(data) == by_pillow).all()
    difference = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1].astype(int) - by_pillow
    assert abs(difference).max() <= 3
"""
    pytest.importorskip("cv2")
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, order], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
