"""Columns of arrays: those of a fixed shape are gathered into the batch's memory, the others are lists."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch

from forebay import DataLoader, ShardDataset, ShardWriter

DTYPES = ("float32", "float16", "uint16", "int64", "float64")


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 samples with an array of every dtype, and one whose shape varies."""
    path = tmp_path_factory.mktemp("arrays") / "train"
    columns = {dtype: f"{dtype}[4,3]" for dtype in DTYPES} | {"ragged": "float32[*,2]"}
    with ShardWriter(path, columns, shard_nbytes=4_000, batch_nbytes=1_000) as writer:
        for n in range(30):
            fixed = {dtype: np.full((4, 3), n, dtype) for dtype in DTYPES}
            writer.write({**fixed, "ragged": torch.full((n % 3 + 1, 2), float(n))})
    return path


def test_batches_hold_the_arrays_in_order_and_of_their_dtype(arrays: Path) -> None:
    (batch,) = DataLoader(ShardDataset(arrays), batch_size=30)
    for dtype in DTYPES:
        assert batch[dtype].dtype == getattr(torch, dtype)
        assert batch[dtype].shape == (30, 4, 3)
        assert batch[dtype][:, 1, 2].tolist() == list(range(30))
    assert [tuple(each.shape) for each in batch["ragged"][:4]] == [(1, 2), (2, 2), (3, 2), (1, 2)]


def test_a_batch_that_is_kept_is_not_written_to_again(arrays: Path) -> None:
    loader = DataLoader(ShardDataset(arrays, columns=["float32"]), batch_size=5)
    kept = [batch["float32"] for _ in range(3) for batch in loader]
    assert [int(batch[0, 0, 0]) for batch in kept] == [0, 5, 10, 15, 20, 25] * 3


def test_two_outputs_of_one_declaration_are_placed_each(arrays: Path) -> None:
    pair: dict[tuple[str, ...], list[object]] = {("float32", "int64"): []}
    (batch,) = DataLoader(ShardDataset(arrays, transforms=pair, columns=[]), batch_size=30)  # type: ignore[arg-type]
    assert batch["float32"][:, 0, 0].tolist() == batch["int64"][:, 0, 0].tolist() == list(range(30))


def test_a_single_sample_is_the_users_own(arrays: Path) -> None:
    with contextlib.closing(ShardDataset(arrays, columns=["float32"])) as dataset:
        dataset[4]["float32"].zero_()
        assert dataset[4]["float32"][0, 0] == 4
