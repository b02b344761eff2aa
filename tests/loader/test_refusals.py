"""What goes wrong around a loader is said in words, at once, and never counts as a bad sample."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from forebay.errors import ClosedError, ConfigError
from forebay.loader import DataLoader, ShardDataset
from forebay.loader import transforms as T
from forebay.sharding import ShardWriter


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """24 pictures of 10 classes that no name is known of."""
    rng = np.random.default_rng(0)
    path = tmp_path / "shards"
    with ShardWriter(path, {"image": "image", "label": "int64"}) as writer:
        for i in range(24):
            buffer = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(buffer, "JPEG")
            writer.write({"image": buffer.getvalue(), "label": i % 10})
    return path


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_memory_that_torch_cannot_have_is_no_bad_sample(shards: Path, on_error: Any) -> None:
    def greedy(picture: Tensor) -> Tensor:
        return torch.empty(10**15, dtype=torch.uint8) if picture.shape else picture

    dataset = ShardDataset(shards, transforms={"image": [greedy]})
    with (
        DataLoader(dataset, 4, on_error=on_error, max_bad=0.9) as loader,
        pytest.raises(MemoryError, match="allocate") as raised,
    ):
        next(iter(loader))
    assert any("row 0" in note for note in raised.value.__notes__)
    with pytest.raises(MemoryError):
        _ = dataset[0]
    dataset.close()


def test_an_iterator_in_a_forked_child_says_whose_it_is(shards: Path) -> None:
    def in_child(told: Any) -> None:
        try:
            next(batches)
        except ClosedError as error:
            told.send(str(error))
        except BaseException:  # noqa: BLE001 - told to the parent
            told.send(traceback.format_exc())

    with DataLoader(ShardDataset(shards, columns=["label"]), 4) as loader:
        batches = iter(loader)
        next(batches)
        here, there = multiprocessing.Pipe(duplex=False)
        child = os.fork()
        if child == 0:
            in_child(there)
            os._exit(0)
        assert here.poll(60), "the child hangs"
        assert f"belongs to process {os.getpid()}" in here.recv()
        os.waitpid(child, 0)
        here.close()
        there.close()
        assert len(list(batches)) == 5


def test_few_open_files_are_enough_for_many_shards(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "many", {"label": "int64", "blob": "bytes"}, shard_nbytes=64) as writer:
        for i in range(120):
            writer.write({"label": i, "blob": bytes(64)})
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from forebay import DataLoader, ShardDataset
with DataLoader(ShardDataset(sys.argv[1]), 8, shuffle=True, window=120) as loader:
    print(sorted(int(label) for batch in loader for label in batch["label"]) == list(range(120)))
"""
    command = [sys.executable, "-P", "-c", code, str(tmp_path / "many")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


def test_a_loader_of_shards_does_not_pickle_and_says_what_does(shards: Path) -> None:
    dataset = ShardDataset(shards, columns=["label"])
    with DataLoader(dataset, 4) as loader, pytest.raises(TypeError, match="pass the ShardDataset"):
        pickle.dumps(loader)
    assert len(pickle.loads(pickle.dumps(dataset))) == 24  # noqa: S301 - our own


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: T.RandomResizedCrop(2**31), "at most 65535"),
        (lambda path: T.Resize((2**31, 1)), "Resize: .* at most 65535"),
        (lambda path: DataLoader(ShardDataset(path), 4, num_workers=1_000_000), "at most 1024"),
        (lambda path: DataLoader(ShardDataset(path), 4, batch_transforms=[len]), "T.MixUp"),  # type: ignore[list-item]
        (lambda path: ShardDataset(None), "give a folder"),  # type: ignore[arg-type]
        (lambda path: DataLoader(ShardDataset(path), 4, decode="gpu"), '"native"'),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    make: Callable[[Path], object], words: str, shards: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        make(shards)


@pytest.mark.parametrize("mixing", [T.MixUp, T.CutMix])
def test_labels_beyond_the_number_of_classes_are_refused_by_number(mixing: Any, shards: Path) -> None:
    dataset = ShardDataset(shards, transforms={"image": [T.Normalize()]})
    with (
        DataLoader(dataset, 12, batch_transforms=[mixing(0.2, num_classes=5)]) as loader,
        pytest.raises(ConfigError, match="labels from 0 to 9, and num_classes=5"),
    ):
        next(iter(loader))
