"""Ranks: what they divide, what they compare, and what they say when they differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import RankMismatchError
from forebay.loader.ranks import compare_ranks, thread_share

JOB = """
import hashlib, json, os, sys
import torch, torch.distributed as dist
from forebay import DataLoader, ShardDataset, errors, transforms as T
dist.init_process_group("gloo")
rank = dist.get_rank()
settings = json.loads(sys.argv[2])[rank]
torch.manual_seed(100 + rank)
data = ShardDataset(sys.argv[1], transforms={"image": [T.RandomResizedCrop(16)]}, columns=["image", "__index__"])
loader = DataLoader(data, shuffle=True, num_workers=1, **settings)
lines = []
try:
    for epoch in range(2):
        for batch in loader:
            pixels = [hashlib.blake2b(x.contiguous().numpy().tobytes()).hexdigest() for x in batch["image"]]
            lines.append(list(zip(batch["__index__"].tolist(), pixels)))
    result = {"batches": lines, "state": loader.state_dict()}
except errors.RankMismatchError as error:
    result = {"error": str(error)}
with open(f"{sys.argv[3]}/{rank}.json", "w") as file:
    json.dump(result, file)
dist.destroy_process_group()
"""


def torchrun(pictures: Path, tmp_path: Path, settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    command = [
        sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(len(settings)),
        str(job), str(pictures), json.dumps(settings), str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(len(settings))]


def test_one_and_two_ranks_give_the_same_global_batches(pictures: Path, tmp_path: Path) -> None:
    one = torchrun(pictures, tmp_path, [{"global_batch_size": 10, "seed": 4}])
    two = torchrun(pictures, tmp_path, [{"global_batch_size": 10, "seed": 4}] * 2)
    joined = [a + b for a, b in zip(two[0]["batches"], two[1]["batches"], strict=True)]
    assert joined == one[0]["batches"]
    assert two[0]["state"] == two[1]["state"] == one[0]["state"]


def test_a_seed_that_is_not_given_is_that_of_rank_0_everywhere(pictures: Path, tmp_path: Path) -> None:
    results = torchrun(pictures, tmp_path, [{"batch_size": 5}] * 2)
    assert results[0]["state"]["seed"] == results[1]["state"]["seed"]
    epoch = [i for pair in zip(*(r["batches"][:10] for r in results), strict=True) for part in pair for i, _ in part]
    assert sorted(epoch) == list(range(97))


def test_ranks_that_differ_are_told_so_on_every_rank(pictures: Path, tmp_path: Path) -> None:
    results = torchrun(pictures, tmp_path, [{"batch_size": 5, "seed": 1}, {"batch_size": 5, "seed": 2}])
    for result in results:
        assert "seed is 1 on rank 0 and 2 on rank 1" in result["error"]


def test_a_difference_names_setting_values_and_rank() -> None:
    ours = {"seed": 1, "window": 64}
    assert compare_ranks([ours, {"seed": None, "window": 64}]) == ours
    with pytest.raises(RankMismatchError, match="window is 64 on rank 0 and 32 on rank 2"):
        compare_ranks([ours, ours, {"seed": 1, "window": 32}])


def test_the_cores_are_shared_among_the_processes_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    alone = thread_share()
    assert alone >= 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(10 * alone))
    assert thread_share() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "nonsense")
    assert thread_share() == alone
