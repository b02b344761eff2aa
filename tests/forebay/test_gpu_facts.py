"""What the doctor sees of a driver and of DALI, on machines that have them and on those that have not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forebay.cli.gpu_facts import cuda_facts, dali_facts, find_driver
from forebay.loader import dali_version, native_version
from forebay.loader.dali_probe import MODE_VARIABLE

CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: gcc 12\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (root@x)\n"
ON_CPU = "native" if native_version() is not None else "library"
needs_dali = pytest.mark.skipif(dali_version() is None, reason="DALI is not installed")


@pytest.mark.parametrize(
    ("told", "version"), [(CLOSED, "535.104.05"), (OPEN, "570.86.15"), ("NVRM version: one day\n", "unknown")]
)
def test_the_drivers_own_file_tells_its_version(told: str, version: str, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(told)
    assert find_driver(tmp_path / "version") == version


@pytest.mark.parametrize(
    ("script", "version"),
    [("echo 580.65.06; echo 580.65.06", "580.65.06"), ("echo no devices were found; exit 6", None)],
)
def test_without_the_file_the_drivers_tool_is_asked(
    script: str, version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_driver(tmp_path / "none") == version


def test_no_driver_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_driver(tmp_path / "none") is None


def test_without_a_gpu_no_mode_is_tried_and_the_cpus_decoder_is_taken() -> None:
    facts = dali_facts(None)
    assert facts["mode"] is None
    assert (facts["auto"], facts["auto_reason"].split(";")[0]) == (ON_CPU, "batches stay on the CPU")


@needs_dali
def test_where_dali_decodes_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE_VARIABLE, "whole")
    facts = dali_facts(torch.device("cpu"))
    assert (facts["mode"], facts["why_not"], facts["auto"]) == ("whole", None, "dali")


@needs_dali
def test_a_probe_that_fails_is_the_reason_why_dali_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE_VARIABLE, "fast")
    facts = dali_facts(torch.device("cpu"))
    assert (facts["mode"], facts["auto"]) == (None, ON_CPU)
    assert facts["why_not"].startswith(f"{MODE_VARIABLE}='fast'")
    assert facts["auto_reason"].startswith(f"not DALI: {facts['why_not']}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_there_is_no_device_and_nothing_is_started() -> None:
    facts = cuda_facts()
    assert facts["gpus"] == []
    assert facts["version"] == torch.version.cuda
