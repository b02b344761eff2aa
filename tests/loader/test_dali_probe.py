"""DALI's modes are tried in processes of their own: whatever these do, there is an answer in time, and it is right."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from forebay.errors import ConfigError
from forebay.loader import dali_probe, jpeg_engines
from forebay.loader.bounded_child import ChildResult, run_child
from forebay.loader.dali_graph import DaliMode
from forebay.loader.dali_probe import (
    CHILD,
    MODE_VARIABLE,
    attempt,
    choose_mode,
    find_fault,
    install_line,
    pick_decoder,
    probe,
    why_no_dali,
)
from forebay.loader.jpeg_engines import SHARE_VARIABLE, hardware_share

MODES: tuple[DaliMode, ...] = ("region", "whole", "cpu_decode")
CPU = torch.device("cpu")
CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
HANG = "import signal; signal.pause()"
needs_dali = pytest.mark.skipif(dali_probe.dali_version() is None, reason="DALI is not installed")


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No mode is chosen by hand, or from a test before."""
    monkeypatch.delenv(MODE_VARIABLE, raising=False)
    dali_probe._chosen.clear()
    yield
    dali_probe._chosen.clear()


def failing(**scripts: str) -> list[str]:
    """A program that runs these scripts in these modes, and in the others says that all is good."""
    program = f"import sys; exec({scripts}.get(sys.argv[1], \"print('good')\"))"
    return ["-c", program]


# -- one trial -------------------------------------------------------------------------------------------------------


@needs_dali
def test_dalis_windows_agree_with_pillows_on_the_cpu() -> None:
    assert attempt("region", "cpu") is None


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (CRASH, "it died of SIGSEGV"),
        ("import os; os.kill(os.getpid(), 50)", "it died of signal 50"),
        ("raise RuntimeError('cuInit failed')", "it ended with exit code 1: .*RuntimeError: cuInit failed"),
        ("import sys; sys.exit(3)", "it ended with exit code 3$"),
        ("print('good'); import os; os.abort()", "it died of SIGABRT"),
        ("pass", "it said nothing"),
        ("print('noise'); print('the pixels are wrong')", "the pixels are wrong"),
    ],
)
def test_a_trial_that_ends_badly_has_failed(program: str, reason: str) -> None:
    failure = attempt("region", "0", program=["-c", program])
    assert failure is not None
    assert re.match(reason, failure), failure


def test_a_trial_that_hangs_is_ended() -> None:
    failure = attempt("region", "0", program=["-c", HANG], timeout_s=0.5)
    assert failure == "it had not ended after 0.5 s"


def test_a_trial_gets_mode_and_device_and_this_processes_modules() -> None:
    program = "import sys, forebay; print('good' if sys.argv[1:] == ['whole', '3'] else sys.argv)"
    assert attempt("whole", "3", program=["-c", program]) is None


@needs_dali
def test_a_window_that_is_one_pixel_off_is_noticed() -> None:
    program = """
import sys
from forebay.loader import dali_probe_child as child
from forebay.loader.geometry import View
right = child.make_views
def shifted(batch):
    return [v._replace(left=v.left + (1 if v.left == 0 else -1), width=v.width - 1) for v in right(batch)]
decode = child.decode
def decode_shifted(*arguments):
    child.make_views = shifted
    try:
        return decode(*arguments)
    finally:
        child.make_views = right
child.decode = decode_shifted
child.main(sys.argv[1:])
"""
    failure = attempt("region", "cpu", program=["-c", program])
    assert failure is not None
    assert "grey levels from Pillow's" in failure


def test_a_child_is_not_left_behind_when_the_wait_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    communicate = subprocess.Popen.communicate

    def interrupted(child: subprocess.Popen[str], timeout: float | None = None) -> tuple[str, str]:
        if not started:
            started.append(child)
            raise KeyboardInterrupt
        return communicate(child, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_child(["-c", HANG], timeout_s=60)
    assert started[0].returncode == -9


def test_no_python_to_start_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    failure = run_child(["-c", ""], timeout_s=1).failure
    assert failure is not None
    assert "no process could be started" in failure


# -- the choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", range(3))
def test_the_first_mode_that_works_is_chosen(failing: int) -> None:
    failures = dict.fromkeys(MODES[:failing], "it died")
    assert choose_mode(failures.get) == (MODES[failing], failures)


def test_when_all_fail_none_is_chosen() -> None:
    assert choose_mode(lambda mode: f"{mode} died") == (None, {mode: f"{mode} died" for mode in MODES})


@needs_dali
@pytest.mark.parametrize(
    ("script", "reason"),
    [(CRASH, "it died of SIGSEGV"), ("print('the pixels are wrong')", "the pixels are wrong")],
)
def test_after_a_crash_or_wrong_pixels_the_next_mode_decodes_for_real(script: str, reason: str) -> None:
    program = {"region": ("-c", script)}
    mode, failures = choose_mode(lambda mode: attempt(mode, "cpu", program=program.get(mode, CHILD)))
    assert (mode, failures) == ("whole", {"region": reason})


def test_a_crash_then_a_hang_end_in_the_last_mode_with_one_line_that_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    program = failing(region=CRASH, whole=HANG)
    with caplog.at_level(logging.INFO, "forebay"):
        assert probe(CPU, program=program, timeout_s=5) == "cpu_decode"
    (line,) = caplog.messages
    assert line.startswith("DALI decodes in mode 'cpu_decode' on the CPU, DALI ")
    assert "nvImageCodec" in line
    assert line.endswith(": 'region' failed, it died of SIGSEGV; 'whole' failed, it had not ended after 5 s")
    assert caplog.records[0].levelno == logging.WARNING


def test_what_was_chosen_is_remembered_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "forebay"):
        assert [probe(CPU, program=failing()) for _ in range(2)] == ["region", "region"]
    (line,) = caplog.messages
    assert line.endswith(": its windows agree with Pillow's")
    assert caplog.records[0].levelno == logging.INFO


def test_where_no_mode_works_the_error_tells_what_each_met() -> None:
    program = ["-c", "import sys; print(sys.argv[1], 'erred')"]
    with pytest.raises(ConfigError, match=r"decodes nothing on the CPU, DALI .*'region' failed, region erred; 'whole'"):
        probe(CPU, program=program)


def test_the_environment_chooses_by_hand(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(MODE_VARIABLE, "cpu_decode")
    with caplog.at_level(logging.INFO, "forebay"):
        assert probe(CPU, program=failing(cpu_decode=CRASH)) == "cpu_decode"
    assert MODE_VARIABLE in caplog.text
    monkeypatch.setenv(MODE_VARIABLE, "fast")
    with pytest.raises(ConfigError, match="'fast'; give one of region, whole, cpu_decode"):
        probe(CPU)


# -- what decode="auto" takes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_gpu", "mode", "no_dali", "no_kernel", "decoder", "words"),
    [
        (True, "region", None, None, "dali", "batches go to the GPU, where DALI works in mode 'region'"),
        (True, "cpu_decode", None, None, "dali", "batches go to the GPU, where DALI works in mode 'cpu_decode'"),
        (True, None, "it is not installed", None, "native", "not DALI: it is not installed"),
        (True, None, "it is not installed", "no kernel", "library", "not DALI: it is not installed; no kernel"),
        (False, None, None, None, "native", "batches stay on the CPU"),
        (False, None, None, "no kernel", "library", "batches stay on the CPU; no kernel"),
    ],
)
def test_auto_takes_dali_on_the_gpu_then_the_kernel_then_the_library(
    on_gpu: bool, mode: DaliMode | None, no_dali: str | None, no_kernel: str | None, decoder: str, words: str
) -> None:
    picked, reason = pick_decoder(on_gpu=on_gpu, mode=mode, no_dali=no_dali, no_kernel=no_kernel)
    assert picked == decoder
    assert reason.startswith(words)


# -- whether there is a DALI -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "cuda", "devices", "words"),
    [
        (None, None, 0, "DALI is not installed: pip install --upgrade 'nvidia-dali-cuda130>=2.4'"),
        (None, "12.8", 1, "DALI is not installed: pip install --upgrade 'nvidia-dali-cuda120>=2.4'"),
        ("2.3.0", "13.0", 1, "DALI 2.3.0 is too old: pip install --upgrade 'nvidia-dali-cuda130>=2.4'"),
        ("2.4.0", None, 0, "sees no CUDA device"),
        ("2.4.0", None, None, None),
        ("2.4.0", "13.0", 1, None),
        ("10.0.0.dev3", "13.0", 1, None),
    ],
)
def test_what_is_missing_is_told_with_what_to_do(
    version: str | None, cuda: str | None, devices: int | None, words: str | None
) -> None:
    fault = find_fault(version, cuda=cuda, num_devices=devices)
    assert (fault is None) == (words is None)
    assert words is None or words in str(fault)


@needs_dali
def test_dali_runs_on_the_cpu_and_asks_for_a_device_elsewhere() -> None:
    assert why_no_dali(CPU) is None
    assert (why_no_dali(torch.device("cuda")) is None) == torch.cuda.is_available()


def test_each_cuda_has_its_package() -> None:
    assert "nvidia-dali-cuda120" in install_line("12.8")
    assert "nvidia-dali-cuda130" in install_line("13.0")
    assert "nvidia-dali-cuda130" in install_line(None)


def test_importing_forebay_imports_no_dali() -> None:
    program = "import sys, forebay, forebay.loader; print([name for name in sys.modules if name.startswith('nvidia')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- JPEG engines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "share"), [("", None), ("0", 0.0), ("0.65", 0.65), ("1", 1.0)])
def test_the_environment_sets_the_engines_share(
    given: str, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHARE_VARIABLE, given)
    assert hardware_share() == share


@pytest.mark.parametrize("given", ["half", "1.5", "-1", "nan"])
def test_a_share_that_is_none_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHARE_VARIABLE, given)
    with pytest.raises(ConfigError, match=f"{SHARE_VARIABLE}='{given}'; give a number from 0 to 1"):
        hardware_share()


@pytest.mark.parametrize(
    ("name", "result", "count", "told_by"),
    [
        ("NVIDIA H100 80GB HBM3", ChildResult("engines 7\n", None), 7, "nvJPEG"),
        ("NVIDIA GeForce RTX 4090", ChildResult("engines 0\n", None), 0, "nvJPEG"),
        ("NVIDIA A100-SXM4-80GB", ChildResult("engines 0\n", None), 0, 'capability "video"'),
        ("NVIDIA A30", ChildResult("", "it died of SIGSEGV"), None, "manual names this GPU"),
        ("NVIDIA L4", ChildResult("", "it died of SIGSEGV"), None, "it died of SIGSEGV"),
        ("NVIDIA A3000", ChildResult("nvJPEG is not installed; DALI brings it", None), None, "is not installed"),
    ],
)
def test_what_nvjpeg_or_its_manual_says_of_engines(
    name: str, result: ChildResult, count: int | None, told_by: str
) -> None:
    engines = jpeg_engines.find_engines(0, name, lambda _: result)
    assert engines.count == count
    assert told_by in engines.told_by


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_the_engines_are_unknown() -> None:
    engines = jpeg_engines.find_engines(0, "none")
    assert engines.count is None
    assert "torch sees no CUDA device" in engines.told_by or "not installed" in engines.told_by
