"""Runs as a person starts them: from a file, alone and under torchrun, and the examples."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.errors import ConfigError
from forebay.trainers import NoProgress, TensorBoardProgress, read_config, train
from forebay.trainers.run import import_name
from tests.trainers.launch import command, environment

ROOT = Path(__file__).resolve().parents[2]

CONFIG = """
[data]
train = "{points}/train"
validation = "{points}/validation"
batch_size = 8
seed = 3
num_workers = 1

[model]
make = "tests.trainers.toy:make_model"
arguments = {{width = 16}}
loss = "tests.trainers.toy:loss"
metrics = {{accuracy = "forebay.trainers:accuracy"}}
inputs = "x"

[optimizer]
make = "torch.optim:SGD"
arguments = {{lr = 0.05}}
batch_size_of_lr = 4
warm_up_steps = 4

[train]
epochs = 2
device = "cpu"
checkpoint = "{run}"
"""


@pytest.fixture
def config(points: Path, tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(CONFIG.format(points=points, run=tmp_path / "run"))
    return path


def start(ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(ranks, "-m", *arguments),
        cwd=ROOT,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_file_is_trained_and_goes_on_when_it_is_started_again(config: Path, tmp_path: Path) -> None:
    first = train(read_config(config), progress=NoProgress())
    assert len(first.losses) == 16
    assert set(first.epochs[1].validation) == {"loss", "accuracy"}
    again = train(read_config(config), progress=NoProgress())
    assert again.losses == ()
    config.write_text(config.read_text().replace("epochs = 2", "epochs = 3"))
    done = start(1, "forebay.trainers", "--config", config, "--json", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["first_step"] == 16
    assert len(report["losses"]) == 8
    assert "samples/s, training waited" in done.stdout


def test_the_same_file_is_trained_pipelined_under_torchrun(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text() + 'stage_ranks = 2\nsettings = {schedule = "gpipe", microbatches = 2}\n')
    done = start(2, "forebay.trainers", "--config", config, "--json", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads((tmp_path / "report.json").read_text())["losses"]) == 16


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("batch_size = 8", "batchsize = 8", r"\[data\]: there is no setting 'batchsize'; did you mean 'batch_size'"),
        ("epochs = 2", "", r"\[train\] lacks 'epochs'"),
        ("[optimizer]", "[optimiser]", "did you mean 'optimizer'"),
        ("epochs = 2", "epochs = ", "cannot be read as TOML"),
    ],
)
def test_a_file_that_is_wrong_says_where(config: Path, before: str, after: str, words: str) -> None:
    config.write_text(config.read_text().replace(before, after, 1))
    with pytest.raises(ConfigError, match=words):
        read_config(config)


def test_names_and_settings_that_are_not_there_are_refused(config: Path) -> None:
    for path in ("no.such:thing", "torch.optim:SGDD", "torch"):
        with pytest.raises(ConfigError, match="cannot be imported"):
            import_name(path)
    config.write_text(config.read_text() + "settings = {strateg = 1}\n")
    with pytest.raises(ConfigError, match="look at DataParallelConfig"):
        train(read_config(config), progress=NoProgress())
    with pytest.raises(ConfigError, match=r"cannot be read as TOML: .*No such file"):
        read_config(config.parent / "other.toml")


def test_without_tensorboard_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install 'forebay\[tensorboard\]'"):
        TensorBoardProgress(tmp_path)


def test_tensorboard_gets_a_file_of_scalars(tmp_path: Path, config: Path) -> None:
    config.write_text(config.read_text() + f'tensorboard = "{tmp_path / "scalars"}"\n')
    train(read_config(config), progress=NoProgress())
    assert len(list((tmp_path / "scalars").iterdir())) == 1


def test_the_image_example_trains(data_dir: Path, tmp_path: Path) -> None:
    photographs = tmp_path / "photographs"
    for part in ("train", "validation"):
        for name in ("hat", "shoes"):
            (photographs / part / name).mkdir(parents=True)
            for path in sorted((data_dir / "photos" / part / name).iterdir())[:12]:
                shutil.copy(path, photographs / part / name)
    done = start(
        2,
        "forebay.trainers.examples.image_classification",
        photographs,
        tmp_path / "run",
        "--epochs",
        1,
        "--batch-size",
        4,
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def test_the_text_example_trains(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    source = next((data_dir / "text" / "eng").glob("*.txt"))
    (tmp_path / "texts" / "some.txt").write_bytes(source.read_bytes()[:20_000])
    done = start(
        2, "forebay.trainers.examples.text_transformer", tmp_path / "texts", tmp_path / "run", "--batch-size", 16
    )
    assert done.returncode == 0, done.stderr
    assert "right" in done.stdout
