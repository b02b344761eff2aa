"""A loader on a DeviceMesh: ranks with the same data coordinates get the same batches, and mistakes name the dims.

Situations 5, 6, 15 and 27 of a job of several ranks, in real processes; each rank tells what it got in a file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from forebay import DataLoader, ShardDataset
from forebay.errors import ConfigError
from forebay.loader.mesh import find_place
from forebay.loader.ranks import Ranks
from tests.loader.numbers import write_numbers

JOB = """
import json, os, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from forebay import DataLoader, ShardDataset, errors, transforms as T

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(100 + rank)
shards, numbers, one, single, broken, folder = sys.argv[1:]
told = {}

def read(loader, names):
    batches = [{name: batch[name].tolist() for name in batch if name in names} for batch in loader]
    for number, batch in enumerate(batches):  # every rank steps as often, or this hangs
        dist.all_reduce(torch.ones(1))
    return batches

# 15: pipeline x data parallel; each stage reads what it needs, and all stages of a pipeline get the same samples
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
stage = mesh.get_coordinate()[0]
data = ShardDataset(shards, transforms={"image": [T.RandomResizedCrop(16)]}, columns=["image", "label", "__index__"])
for given in ({}, {"data_dims": ("dp",), "tail": "pad"}):
    with DataLoader(data, 10, shuffle=True, mesh=mesh, num_workers=1, **given) as loader:
        loader.only([["image"], ["label"]][stage] + ["__index__", "__valid__", "__weight__"])
        batches = read(loader, ["label", "__index__", "__valid__", "__weight__"])
        stats = loader.stats()
        told["stages" + str(len(given))] = {
            "coordinate": mesh.get_coordinate(), "batches": batches, "read": stats.read_nbytes,
            "unread": stats.unread_nbytes, "state": loader.state_dict(),
        }
# a dim of the mesh alone, and all ranks alike
for name, place, dims in (("sub", mesh["dp"], ("dp",)), ("alike", mesh, ()), ("both", mesh, ("pp", "dp"))):
    indices = ShardDataset(numbers, columns=["__index__"])
    with DataLoader(indices, 5, shuffle=True, mesh=place, data_dims=dims) as loader:
        told[name] = read(loader, ["__index__"])

# 5, 6, 27: fewer shards than ranks, one sample, a batch larger than the data
for name, path, given in (
    ("one shard", one, {}), ("one sample", single, {}), ("one sample, padded", single, {"tail": "pad"}),
    ("large batch", numbers, {"batch_size": 1000}),
):
    with DataLoader(ShardDataset(path, columns=["__index__", "__valid__"]), **{"batch_size": 4, **given}) as loader:
        told[name] = read(loader, ["__index__", "__valid__"])

# 27: samples that do not decode are all in the part of one rank
skipping = ShardDataset(broken, columns=["image", "label", "__index__", "__valid__"], transforms=data.transforms)
with DataLoader(skipping, 6, on_error="skip", num_workers=1) as loader:
    told["skipped"] = read(loader, ["__index__", "__valid__"])
    told["bad"] = loader.stats().bad_count

try:
    DataLoader(data, 10, mesh=mesh, data_dims=("data",))
except errors.ConfigError as error:
    told["wrong dim"] = str(error)
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(told, file)
dist.destroy_process_group()
"""

RANKS = 4


@pytest.fixture(scope="module")
def told(
    pictures: Path, make_pictures: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What each of four ranks got."""
    folder = tmp_path_factory.mktemp("mesh")
    (folder / "job.py").write_text(JOB)
    paths = [
        pictures,
        write_numbers(folder / "numbers", 53),
        write_numbers(folder / "one", 18, shard_nbytes=1 << 20),
        write_numbers(folder / "single", 1),
        make_pictures(folder / "broken", 48, broken=(0, 1, 2, 3)),
    ]
    command = [
        sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS),
        str(folder / "job.py"), *map(str, paths), str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("job", ["stages0", "stages2"])
def test_stages_of_one_pipeline_get_the_same_samples_and_pipelines_get_others(
    told: list[dict[str, Any]], job: str
) -> None:
    by_place = {tuple(rank[job]["coordinate"]): rank[job]["batches"] for rank in told}
    ids = {place: [batch["__index__"] for batch in batches] for place, batches in by_place.items()}
    assert ids[0, 0] == ids[1, 0]
    assert ids[0, 1] == ids[1, 1]
    valid = [
        index
        for dp in range(2)
        for batch in by_place[0, dp]
        for index, good in zip(batch["__index__"], batch["__valid__"], strict=True)
        if good
    ]
    assert sorted(valid) == list(range(97))
    assert all(batch["label"] == [i % 3 for i in batch["__index__"]] for batch in by_place[1, 0])
    states = [rank[job]["state"] for rank in told]
    assert all(state == states[0] for state in states)


def test_only_the_first_stage_reads_pictures_and_the_rest_is_counted(told: list[dict[str, Any]]) -> None:
    for rank in told:
        stage = rank["stages0"]["coordinate"][0]
        assert (rank["stages0"]["read"] > 0) == (stage == 0)
        assert rank["stages0"]["unread"] > 0


def test_weights_of_the_data_ranks_add_up_to_their_number(told: list[dict[str, Any]]) -> None:
    by_place = {tuple(rank["stages2"]["coordinate"]): rank["stages2"]["batches"] for rank in told}
    for one, other in zip(by_place[0, 0], by_place[0, 1], strict=True):
        assert one["__weight__"] + other["__weight__"] == 2


def test_a_part_of_a_mesh_none_of_its_dims_and_all(told: list[dict[str, Any]]) -> None:
    assert told[0]["sub"] == told[2]["sub"] != told[1]["sub"] == told[3]["sub"]
    assert all(rank["alike"] == told[0]["alike"] for rank in told)
    assert sorted(i for batch in told[0]["alike"] for i in batch["__index__"]) == list(range(53))
    everything = [set(batch["__index__"]) for rank in told for batch in rank["both"]]
    assert set.union(*everything) == set(range(53))


@pytest.mark.parametrize(
    ("job", "samples"), [("one shard", 18), ("one sample", 1), ("one sample, padded", 1), ("large batch", 53)]
)
def test_no_rank_waits_for_another_and_none_gets_nothing(told: list[dict[str, Any]], job: str, samples: int) -> None:
    assert len({len(rank[job]) for rank in told}) == 1
    assert all(batch["__index__"] for rank in told for batch in rank[job])
    valid = [
        index
        for rank in told
        for batch in rank[job]
        for index, good in zip(batch["__index__"], batch["__valid__"], strict=True)
        if good
    ]
    assert sorted(valid) == list(range(samples))


def test_a_rank_with_bad_samples_has_as_many_batches_as_the_others(told: list[dict[str, Any]]) -> None:
    assert [rank["bad"] for rank in told] == [4, 0, 0, 0]
    assert all([len(batch["__index__"]) for batch in rank["skipped"]] == [6, 6] for rank in told)
    assert sum(not good for rank in told for batch in rank["skipped"] for good in batch["__valid__"]) == 4


def test_a_wrong_dim_is_told_with_those_that_there_are(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert "the mesh has the dims pp (2), dp (2), and it has no 'data'" in rank["wrong dim"]


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_meshes_that_tell_nothing_are_refused(tmp_path: Path) -> None:
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    assert find_place(mesh, ("dp",)).processes.tolist() == [[0]]
    assert find_place(mesh, ()).processes.tolist() == [[0]]
    for wrong, dims, words in (
        (init_device_mesh("cpu", (1,)), ("dp",), "no names of its dims"),
        ("dp", ("dp",), "give a torch DeviceMesh"),
        (mesh, "dp", r"give a tuple: data_dims=\('dp',\)"),
        (mesh, ("dp", "dp"), "one is named twice"),
        (mesh, ("tp",), r"the mesh has the dims dp \(1\), and it has no 'tp'"),
    ):
        with pytest.raises(ConfigError, match=words):
            find_place(wrong, dims)
    data = ShardDataset(write_numbers(tmp_path / "numbers", 9))
    with pytest.raises(ConfigError, match="give one"):
        DataLoader(data, mesh=mesh, rank=0, world_size=1)


def test_settings_of_a_mesh_without_one_are_refused(tmp_path: Path) -> None:
    data = ShardDataset(write_numbers(tmp_path / "numbers", 9))
    with pytest.raises(ConfigError, match="give mesh= too"):
        DataLoader(data, data_dims=("dp",))
    place: dict[str, Any] = {"rank": 0, "world_size": 2}
    for nodes in (0, 3):
        with pytest.raises(ConfigError, match=f"nodes={nodes}"):
            DataLoader(data, nodes=nodes, **place)


@pytest.mark.usefixtures("alone")
def test_nodes_are_those_that_torchrun_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    assert Ranks.find(None, None).node_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert Ranks.find(None, None, nodes=1).node_of == (0,) * 8
    monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
    assert Ranks.find(None, None).node_of == (0,) * 8
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert Ranks.find(None, None).node_of == (0,) * 8
