"""Training: it learns, it adds up over ranks, and a run that was killed repeats the losses of the one that was not.

This file is also the script that is killed, alone or under torchrun:

    python test_data_parallel.py killed POINTS CHECKPOINTS RESULT [STEP TO BE KILLED AT]
    python test_data_parallel.py interrupted POINTS CHECKPOINTS RESULT
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset

from forebay import DataLoader, ShardDataset
from forebay.errors import ConfigError, StateError
from forebay.trainers import CheckpointConfig, DataParallelTrainer, NoProgress, TrainReport, accuracy

EPOCHS = 3
GLOBAL_BATCH = 8
STEPS = 9  # an epoch: 70 samples in batches of 8, the last one of 6

OnStep = Callable[[int], None]


def ignore(_step: int) -> None:
    """Let the run go on."""


class NoisyLoss:
    """Cross entropy that draws from every generator there is, and tells of each step that is about to be done."""

    def __init__(self, model: nn.Module, on_step: OnStep) -> None:
        self.model = model
        self.on_step = on_step
        self.step = 0

    def __call__(self, scores: Tensor, batch: dict[str, Any]) -> Tensor:
        if self.model.training:
            self.on_step(self.step)
            self.step += 1
        noise = random.random() + float(np.random.random()) + torch.rand(()).item()
        return F.cross_entropy(scores * (1 + 0.01 * noise), batch["label"])


class Branches(nn.Module):
    """Its gradients come in another order than its parameters, and it keeps running means and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 3)
        self.shortcut = nn.Linear(6, 32)
        self.main = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 32))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(F.relu(self.main(x) + self.shortcut(x)))
        return scores


def plain_loss(scores: Tensor, batch: dict[str, Any]) -> Tensor:
    return F.cross_entropy(scores, batch["label"])


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return Branches()


def make_trainer(
    points: Path, checkpoints: Path | None, *, on_step: OnStep = ignore, epochs: int = EPOCHS, every_steps: int = 4
) -> DataParallelTrainer:
    random.seed(1)
    np.random.seed(1)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train = DataLoader(
        ShardDataset(points / "train"), shuffle=True, num_workers=2, global_batch_size=GLOBAL_BATCH, window=3
    )
    validation = DataLoader(
        ShardDataset(points / "validation", columns=["x", "label", "__valid__"]), num_workers=1, global_batch_size=10
    )
    return DataParallelTrainer(
        model,
        optimizer,
        NoisyLoss(model, on_step),
        train,
        epochs=epochs,
        validation=validation,
        metrics={"accuracy": accuracy},
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5),
        inputs="x",
        device="cpu",
        checkpoint=None if checkpoints is None else CheckpointConfig(path=checkpoints, every_steps=every_steps),
        progress=NoProgress(),
    )


def fit_plainly(points: Path) -> TrainReport:
    """Train a model that does the same on any number of ranks: no dropout, no batch norm."""
    torch.manual_seed(3)
    model = nn.Linear(6, 3)
    train = DataLoader(ShardDataset(points / "train"), shuffle=True, seed=5, global_batch_size=GLOBAL_BATCH)
    validation = DataLoader(
        ShardDataset(points / "validation", columns=["x", "label", "__valid__"]), global_batch_size=10
    )
    return DataParallelTrainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        plain_loss,
        train,
        epochs=2,
        validation=validation,
        metrics={"accuracy": accuracy},
        inputs="x",
        device="cpu",
        progress=NoProgress(),
    ).fit()


class Interrupted(Exception):
    """Stands for whatever ends a run."""


def interrupt_at(step: int) -> Any:
    def on_step(now: int) -> None:
        if now == step:
            raise Interrupted

    return on_step


def launch(ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the script alone, or under torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, __file__, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)


def result(path: Path, rank: int = 0) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.with_name(f"{path.name}.{rank}").read_text())
    return loaded


def assert_same_model(folder: Path, other: Path) -> None:
    """Of the last checkpoints in two folders: bit by bit."""
    newest = [max(path.glob("step-*")) for path in (folder, other)]
    assert newest[0].name == newest[1].name
    models = []
    for path in newest:
        metadata = FileSystemReader(path).read_metadata().state_dict_metadata
        state: dict[str, Any] = {
            name: torch.empty(told.size, dtype=told.properties.dtype)
            for name, told in metadata.items()
            if name.startswith("model.") and isinstance(told, TensorStorageMetadata)
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that there is no process group
            load(state, checkpoint_id=path)
        models.append(state)
    torch.testing.assert_close(models[0], models[1], rtol=0, atol=0)


def test_training_learns_and_reports(points: Path) -> None:
    report = make_trainer(points, None, epochs=4).fit()
    assert [epoch.epoch for epoch in report.epochs] == [0, 1, 2, 3]
    assert len(report.losses) == 4 * STEPS
    assert report.epochs[-1].loss < report.epochs[0].loss / 2
    assert report.epochs[-1].validation["accuracy"] > 0.7
    assert report.epochs[0].loss == pytest.approx(sum(report.losses[:STEPS]) / STEPS)
    assert all(epoch.samples == 70 for epoch in report.epochs)
    assert 0 <= report.stall_share <= 1
    assert report.samples_per_s > 0
    assert json.loads(json.dumps(report.to_dict()))["epochs"][3]["validation"]["accuracy"] > 0.7
    assert "accuracy" in str(report)


@pytest.mark.parametrize("interrupted", [1, 4, 5, STEPS - 1, STEPS, STEPS + 3, 2 * STEPS + 6])
def test_a_run_that_was_interrupted_repeats_the_exact_losses(points: Path, tmp_path: Path, interrupted: int) -> None:
    whole = make_trainer(points, None).fit()
    with pytest.raises(Interrupted):
        make_trainer(points, tmp_path, on_step=interrupt_at(interrupted)).fit()
    resumed = make_trainer(points, tmp_path).fit()
    assert resumed.first_step <= interrupted
    assert resumed.first_step > interrupted - 5
    assert resumed.losses == whole.losses[resumed.first_step :]
    assert [epoch.loss for epoch in resumed.epochs] == [epoch.loss for epoch in whole.epochs]
    assert [epoch.validation for epoch in resumed.epochs] == [epoch.validation for epoch in whole.epochs]


def test_a_run_interrupted_again_and_again_ends_like_the_one_that_was_not(points: Path, tmp_path: Path) -> None:
    whole = make_trainer(points, None).fit()
    for _ in range(4):
        with pytest.raises(Interrupted):
            make_trainer(points, tmp_path, on_step=interrupt_at(6)).fit()
    resumed = make_trainer(points, tmp_path).fit()
    assert resumed.first_step > 0
    assert resumed.losses == whole.losses[resumed.first_step :]


def test_a_torn_checkpoint_costs_steps_but_changes_no_loss(points: Path, tmp_path: Path) -> None:
    whole = make_trainer(points, None).fit()
    with pytest.raises(Interrupted):
        make_trainer(points, tmp_path, on_step=interrupt_at(2 * STEPS + 6)).fit()
    torn = max(tmp_path.iterdir()) / "__0_0.distcp"
    torn.write_bytes(torn.read_bytes()[:-1000])
    resumed = make_trainer(points, tmp_path).fit()
    assert resumed.losses == whole.losses[resumed.first_step :]


def test_a_finished_run_has_nothing_left_to_do_until_it_gets_more_epochs(points: Path, tmp_path: Path) -> None:
    whole = make_trainer(points, None, epochs=EPOCHS + 1).fit()
    make_trainer(points, tmp_path).fit()
    again = make_trainer(points, tmp_path).fit()
    assert again.losses == ()
    assert len(again.epochs) == EPOCHS
    more = make_trainer(points, tmp_path, epochs=EPOCHS + 1).fit()
    assert more.losses == whole.losses[EPOCHS * STEPS :]


@pytest.mark.parametrize("ranks", [1, 2])
def test_kill_9_in_mid_epoch_and_a_restart_repeat_the_exact_losses(points: Path, tmp_path: Path, ranks: int) -> None:
    whole = launch(ranks, "killed", points, tmp_path / "whole", tmp_path / "a")
    assert whole.returncode == 0, whole.stderr
    killed = launch(ranks, "killed", points, tmp_path / "killed", tmp_path / "b", STEPS + 5)
    assert killed.returncode != 0
    assert "SIGKILL" in killed.stderr or killed.returncode == -9, killed.stderr
    assert not list(tmp_path.glob("b.*"))
    restarted = launch(ranks, "killed", points, tmp_path / "killed", tmp_path / "b")
    assert restarted.returncode == 0, restarted.stderr
    assert_same_model(tmp_path / "whole", tmp_path / "killed")
    for rank in range(ranks):
        expected, repeated = result(tmp_path / "a", rank), result(tmp_path / "b", rank)
        assert repeated["first_step"] in (STEPS, STEPS + 3)  # the newest checkpoint: of the epoch's end, or step 12
        assert repeated["losses"] == expected["losses"][repeated["first_step"] :]
        for now, then in zip(repeated["epochs"], expected["epochs"], strict=True):
            assert now["loss"] == then["loss"]
            assert now["validation"] == then["validation"]


def test_three_ranks_resume_exactly_and_step_as_one_rank_does(points: Path, tmp_path: Path) -> None:
    done = launch(3, "interrupted", points, tmp_path / "run", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    alone = fit_plainly(points)
    assert_same_model(tmp_path / "run-whole", tmp_path / "run")
    for rank in range(3):
        told = result(tmp_path / "r", rank)
        assert told["resumed"]["first_step"] == STEPS + 3
        assert told["resumed"]["losses"] == told["whole"]["losses"][STEPS + 3 :]
        assert told["resumed"]["epochs"][-1]["validation"] == told["whole"]["epochs"][-1]["validation"]
        # Batches of 8 and 6 over three ranks, of which some have a sample more; validation of 21 in batches of 10.
        assert told["plain"]["losses"] == pytest.approx(alone.losses, rel=1e-4)
        assert told["plain"]["epochs"][-1]["validation"] == pytest.approx(dict(alone.epochs[-1].validation), rel=1e-4)


def test_settings_that_cannot_work_are_refused(points: Path, tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters())
    dataset = ShardDataset(points / "train")
    loader = DataLoader(dataset, 8)

    def trainer(train: Any, **settings: Any) -> DataParallelTrainer:
        return DataParallelTrainer(model, optimizer, plain_loss, train, **({"epochs": 1} | settings))

    with pytest.raises(ConfigError, match="epochs=-1"):
        trainer(loader, epochs=-1)
    with pytest.raises(ConfigError, match="give validation="):
        trainer(loader, metrics={"accuracy": accuracy})
    with pytest.raises(ConfigError, match=r"train= needs a forebay\.DataLoader"):
        trainer(DataLoader(TensorDataset(torch.zeros(3)), 2))
    with pytest.raises(ConfigError, match=r"validation= needs a forebay\.DataLoader"):
        trainer(loader, validation=TorchDataLoader(TensorDataset(torch.zeros(3))))


def test_a_checkpoint_of_another_model_or_other_data_is_refused(points: Path, tmp_path: Path) -> None:
    make_trainer(points, tmp_path, epochs=1).fit()

    def resume(train: Path, model: torch.nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loader = DataLoader(ShardDataset(train), 8, shuffle=True)
        DataParallelTrainer(
            model,
            optimizer,
            plain_loss,
            loader,
            epochs=2,
            scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5),
            inputs="x",
            checkpoint=tmp_path,
            progress=NoProgress(),
        ).fit()

    with pytest.raises(ConfigError, match="another model"):
        resume(points / "train", torch.nn.Linear(6, 3))
    with pytest.raises(StateError, match="another data set"):
        resume(points / "validation", make_model())


def run_killed(points: str, checkpoints: str, result: str, kill_at: str = "-1") -> None:
    def on_step(step: int) -> None:
        if step == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)

    report = make_trainer(Path(points), Path(checkpoints), on_step=on_step).fit()
    Path(f"{result}.{os.environ.get('RANK', '0')}").write_text(json.dumps(report.to_dict()))


def run_interrupted(points: str, checkpoints: str, result: str) -> None:
    """A whole run, and the same interrupted and resumed; then a run whose losses other ranks must agree with."""
    whole = make_trainer(Path(points), Path(f"{checkpoints}-whole")).fit()
    try:
        make_trainer(Path(points), Path(checkpoints), on_step=interrupt_at(STEPS + 5)).fit()
    except Interrupted:
        resumed = make_trainer(Path(points), Path(checkpoints)).fit()
    plain = fit_plainly(Path(points))
    told = {"whole": whole.to_dict(), "resumed": resumed.to_dict(), "plain": plain.to_dict()}
    Path(f"{result}.{os.environ['RANK']}").write_text(json.dumps(told))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"killed": run_killed, "interrupted": run_interrupted}[sys.argv[1]](*sys.argv[2:])
