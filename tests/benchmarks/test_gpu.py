"""The measurements of decoding with DALI run, tiny and on the CPU, and say what they compare."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from forebay.benchmarks import LoaderWork, measure_gpu
from forebay.benchmarks.gathered import gather
from forebay.benchmarks.gpu import GpuSide
from forebay.benchmarks.gpu_sides import damaged, engine_share
from forebay.benchmarks.resnet import ResNet50, run_steps
from forebay.cli.app import app
from forebay.errors import ConfigError
from forebay.loader import dali_version, decode_image
from forebay.loader.jpeg_engines import SHARE_VARIABLE, hardware_share
from forebay.sharding import can_transcode

WORK = LoaderWork(size=32, batch_size=8, images=16)
TINY = ["--size=32", "--batch-size=8", "--images=16", "--rounds=1", "--threads=1", "--device=cpu"]
needs_dali = pytest.mark.skipif(dali_version() is None, reason="DALI is not installed")


@needs_dali
def test_on_the_cpu_each_side_stands_beside_its_peer_or_its_best(photographs: Path) -> None:
    report = measure_gpu(photographs, WORK, threads=1, rounds=2)
    forms = ["forebay", "forebay, addressable"] if can_transcode() else ["forebay"]
    assert report.hardware_shares == (None,)
    assert [side.name for side in report.sides] == ["DALI's own reader", *forms]
    assert [side.asked for side in report.sides] == [None, 1.0, 1.5][: len(report.sides)]
    for side in report.sides:
        (rounds,) = side.images_per_s
        assert len(rounds) == 2
        assert min(rounds) > 0
    assert [row.name for row in report.rows][-2:] == [
        "one image in a hundred is damaged",
        "steps of ResNet-50 in float32, fed by the loader",
    ]
    assert len(report.rows) == len(report.asked) == len(forms) + 2
    assert all(0 <= share <= 1 for share in report.stall_shares)
    assert report.steps * report.step_images > 0
    assert list(report.pixels) == forms
    for check in report.pixels.values():
        assert check.images == 16
        assert check.mean <= 1
        assert check.mean <= check.p999 <= check.largest
    values = json.loads(json.dumps(report.to_dict()))
    assert set(values["sides"][1]["times_as_fast"]) == {"median", "smallest", "largest"}
    assert not values["on_gpu"]


@needs_dali
def test_the_command_prints_tables_or_json(photographs: Path) -> None:
    told = CliRunner(env={"COLUMNS": "250"}).invoke(
        app, ["bench", "gpu", str(photographs), *TINY], catch_exceptions=False
    )
    assert told.exit_code == 0, told.output
    text = " ".join(told.stdout.split())
    for words in ("DALI's own reader", "≥ 1.5 ×", "≥ 0.95 ×", "≥ 0.9 ×", "< 1 %", "no numbers of a GPU", "grey levels"):
        assert words in text
    done = subprocess.run(
        [sys.executable, "-m", "forebay.benchmarks.gpu_decode", str(photographs), *TINY, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["images"] == 16
    assert "Warning" not in done.stderr


def test_what_cannot_be_measured_is_refused(photographs: Path) -> None:
    with pytest.raises(ConfigError, match="rounds=0"):
        measure_gpu(photographs, WORK, rounds=0)


@needs_dali
@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_gpu_that_is_not_there_is_refused(photographs: Path) -> None:
    with pytest.raises(ConfigError, match="sees no CUDA device"):
        measure_gpu(photographs, WORK, device_id=0)


def test_a_share_holds_for_the_pipelines_that_are_built_in_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHARE_VARIABLE, "0.5")
    with engine_share(1.0):
        assert hardware_share() == 1
        with engine_share(None):
            assert hardware_share() == 1
    assert hardware_share() == 0.5


def test_a_device_is_the_cpu_or_a_number() -> None:
    told = CliRunner().invoke(app, ["bench", "gpu", "--device=cuda"])
    assert told.exit_code == 2
    assert "the number of a GPU" in told.stderr


def test_each_side_is_compared_at_its_own_best_share() -> None:
    peer = GpuSide(name="peer", images_per_s=((10.0, 10.0, 10.0), (20.0, 20.0, 20.0)), asked=None)
    ours = GpuSide(name="ours", images_per_s=((30.0, 30.0, 60.0), (1.0, 1.0, 1.0)), asked=1.0)
    assert (peer.best, ours.best) == (1, 0)
    assert ours.over(peer) == (1.5, 1.5, 3.0)


def test_a_share_of_the_images_is_damaged_and_the_others_are_not(photographs: Path) -> None:
    gathered = gather(photographs, images=16, multiple=1, addressable=False, seed=0, common_jpeg=True)
    spoilt = damaged(gathered, 0.25, seed=0)
    pairs = list(zip(gathered.all(), spoilt.all(), strict=True))
    assert sum(before.data != after.data for before, after in pairs) == 4
    undecodable = 0
    for before, after in pairs:
        try:
            decode_image(after.data)
        except (OSError, ValueError):
            undecodable += 1
            assert before.data != after.data
    assert undecodable
    unspoilt = damaged(gathered, 0, seed=0)
    assert sum(a.data != b.data for a, b in zip(gathered.all(), unspoilt.all(), strict=True)) == 1


def test_the_model_is_resnet_50() -> None:
    model = ResNet50()
    assert sum(p.numel() for p in model.parameters()) == 25_557_032
    with torch.no_grad():
        assert model.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


def test_the_first_batch_is_not_counted_among_the_steps() -> None:
    seen: list[int] = []
    batches = [{"label": torch.full((3,), n)} for n in range(5)]
    told = run_steps(batches, lambda batch: seen.append(int(batch["label"][0])), 3)
    assert seen == [0, 1, 2, 3]
    assert told.images == 9
    assert 0 <= told.stall_share <= 1
    assert np.isfinite(told.images_per_s)
