"""`forebay doctor`: what it finds is there, what it advises follows from it, and it never fails."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import PIL
import pytest
import torch
from typer.testing import CliRunner

from forebay.cli.app import app
from forebay.cli.doctor import advise, examine, found_rows, tell_decoder
from forebay.sharding import can_transcode

FOREBAY = Path(sys.executable).with_name("forebay")


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """Those of this machine, with nothing left to wish for."""
    found = copy.deepcopy(examine())
    found["native"] = {"version": "libjpeg-turbo 2.1.5", "why_not": None, "transcode": True}
    found["pillow"]["formats"] = dict.fromkeys(found["pillow"]["formats"], True)
    found["shm_nbytes"] = 8 << 30
    found["open_files"] = {"soft": 65536, "hard": 65536}
    found["cpu"]["quota"] = None
    found["cuda"] = {"version": None, "driver": None, "gpus": [], "complaint": None}
    found["dali"] = {
        "version": "2.4.0",
        "nvimagecodec": "0.9.0.20",
        "mode": None,
        "why_not": None,
        "install": "pip install it",
        "auto": "native",
        "auto_reason": "batches stay on the CPU",
    }
    return found


def changed(facts: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return {**facts, **sections}


def test_it_names_what_is_installed_and_which_decoder_a_jpeg_takes() -> None:
    told = CliRunner().invoke(app, ["doctor"], catch_exceptions=False)
    assert told.exit_code == 0
    lines = told.stdout.strip().splitlines()
    for word in (
        "processor",
        "memory",
        "native kernel",
        "Pillow",
        "pyarrow",
        "open files",
        "NVIDIA driver",
        "GPU",
        "DALI",
        "nvImageCodec",
        'decode="auto"',
    ):
        assert any(word in line for line in lines), word
    assert torch.__version__ in told.stdout
    assert lines[-1].startswith("JPEGs are decoded by ")


def test_json_has_the_facts_the_advice_and_the_decoder() -> None:
    report = json.loads(CliRunner().invoke(app, ["doctor", "--json"], catch_exceptions=False).stdout)
    assert report["torch"] == torch.__version__
    assert report["pillow"]["version"] == PIL.__version__
    assert report["cpu"]["cores"] == len(os.sched_getaffinity(0))
    assert report["memory_nbytes"] > 1 << 26
    assert report["native"]["transcode"] == can_transcode()
    assert (report["native"]["version"] is None) == (report["native"]["why_not"] is not None)
    assert report["jpegs"] == tell_decoder(report)
    assert report["advice"] == advise(report)
    assert "nvidia-dali-cuda" in report["dali"]["install"]
    assert "opencv" in report["opencv"]["install"]
    assert ("AVX2" in report["cpu"]["simd"]) == torch.backends.cpu.get_cpu_capability().startswith("AVX")


def test_the_command_exits_with_zero_and_warns_of_nothing() -> None:
    done = subprocess.run([str(FOREBAY), "doctor"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Warning" not in done.stderr


def test_a_complete_installation_needs_no_advice(facts: dict[str, Any]) -> None:
    assert advise(facts) == []
    assert "native kernel (libjpeg-turbo 2.1.5)" in tell_decoder(facts)


def test_without_the_kernel_it_says_why_and_what_to_install(facts: dict[str, Any]) -> None:
    bare = changed(facts, native={"version": None, "why_not": "it was not built; to have it, x", "transcode": False})
    first, second = advise(bare)
    assert "half the speed, 1.9 to 2.3 times slower by `forebay bench decode`: it was not built; to have it, x" in first
    assert "crop-addressable" in second
    assert "the same installation brings it" in second
    assert tell_decoder(bare).startswith(f"JPEGs are decoded by simplejpeg {facts['simplejpeg']}")


@pytest.mark.parametrize(
    ("section", "value", "words"),
    [
        ("shm_nbytes", 64 << 20, "shm has 64.0 MiB"),
        ("open_files", {"soft": 256, "hard": 4096}, "`ulimit -n 4096` raises that"),
        ("open_files", {"soft": 256, "hard": None}, "`ulimit -n 65536` raises that"),
        ("pillow", {"version": "1", "formats": {"JPEG": True, "AVIF": False, "TIFF": False}}, "reads no AVIF, TIFF"),
        ("cpu", {"model": "x", "cores": 64, "quota": 2.0, "simd": []}, "allows 2 of the 64 cores"),
        ("cuda", {"version": None, "driver": "580.65.06", "gpus": [], "complaint": None}, "torch uses no GPU"),
        ("cuda", {"version": "13.0", "driver": "580.65.06", "gpus": [], "complaint": "too old"}, "(too old)"),
    ],
)
def test_each_thing_that_is_short_gets_one_sentence(
    section: str, value: Any, words: str, facts: dict[str, Any]
) -> None:
    (sentence,) = advise(changed(facts, **{section: value}))
    assert words in sentence


GPU = {"name": "NVIDIA H200", "memory_nbytes": 1 << 37, "jpeg_engines": 7, "jpeg_engines_told_by": "nvJPEG"}
CUDA = {"version": "13.0", "driver": "580.65.06", "gpus": [GPU], "complaint": None}


def test_dali_is_advised_where_there_is_a_gpu_for_it(facts: dict[str, Any]) -> None:
    missing = {**facts["dali"], "version": None, "why_not": "DALI is not installed"}
    assert advise(changed(facts, cuda=CUDA, dali=missing)) == ["to decode on the GPU, install DALI: pip install it"]
    assert advise(changed(facts, dali=missing)) == []


def test_dali_that_works_is_named_as_the_decoder_and_needs_no_advice(facts: dict[str, Any]) -> None:
    there = changed(facts, cuda=CUDA, dali={**facts["dali"], "mode": "region", "auto": "dali"})
    assert advise(there) == []
    told = tell_decoder(there)
    assert told.startswith("JPEGs are decoded by DALI 2.4.0, which decodes windows on the GPU, where batches go to the")
    assert "elsewhere by the native kernel" in told


@pytest.mark.parametrize(
    ("mode", "why_not", "words"),
    [
        ("whole", None, "nvImageCodec 0.9.0.20 errs on windows on this GPU, and decodes whole images on the GPU"),
        ("cpu_decode", None, "and decodes on the CPU and resizes on the GPU, which is slower: another version may do"),
        (None, "DALI 1.53.0 is too old", "nothing is decoded on the GPU: DALI 1.53.0 is too old"),
    ],
)
def test_dali_that_falls_back_is_told(mode: str | None, why_not: str | None, words: str, facts: dict[str, Any]) -> None:
    dali = {**facts["dali"], "mode": mode, "why_not": why_not}
    (sentence,) = advise(changed(facts, cuda=CUDA, dali=dali))
    assert words in sentence


def test_each_gpu_has_a_line_for_its_jpeg_engines(facts: dict[str, Any]) -> None:
    unknown = {**GPU, "name": "NVIDIA L4", "jpeg_engines": None, "jpeg_engines_told_by": "it died of SIGSEGV"}
    none = {**GPU, "name": "NVIDIA RTX 4090", "jpeg_engines": 0}
    dali = {**facts["dali"], "mode": "region", "auto": "dali", "auto_reason": "it works"}
    rows = found_rows(changed(facts, cuda={**CUDA, "gpus": [GPU, unknown, none]}, dali=dali))
    for row in (
        (True, "NVIDIA driver", "580.65.06"),
        (True, "GPU", "NVIDIA H200, 128.0 GiB; NVIDIA L4, 128.0 GiB; NVIDIA RTX 4090, 128.0 GiB"),
        (True, "JPEG engines", "7 in NVIDIA H200 (nvJPEG)"),
        (True, "JPEG engines", "unknown in NVIDIA L4 (it died of SIGSEGV)"),
        (False, "JPEG engines", "0 in NVIDIA RTX 4090 (nvJPEG)"),
        (True, "DALI", "2.4.0; decodes windows on the GPU"),
        (True, "nvImageCodec", "0.9.0.20"),
        (True, 'decode="auto"', "dali: it works"),
    ):
        assert row in rows


def test_unlimited_files_are_enough(facts: dict[str, Any]) -> None:
    assert advise(changed(facts, open_files={"soft": None, "hard": None})) == []


def test_it_explains_itself() -> None:
    told = CliRunner().invoke(app, ["doctor", "--help"])
    assert told.exit_code == 0
    assert "--json" in told.stdout
