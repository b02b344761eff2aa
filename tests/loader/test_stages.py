"""Columns by stage: each gets its outputs as the whole data set gives them, and reads nothing beside."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from forebay import CacheConfig, DataLoader, ShardDataset
from forebay import transforms as T
from forebay.errors import ClosedError, ConfigError
from forebay.sharding import ShardWriter
from tests.loader.conftest import jpeg

VIRTUAL = ["__index__", "__valid__", "__weight__"]
CROPPED: Any = {"image": [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToDtype(torch.float32)]}
SETTINGS: dict[str, Any] = {"shuffle": True, "seed": 3, "num_workers": 2, "tail": "pad"}


def first_letter(name: str) -> str:
    return name[:1]


def read(data: ShardDataset, outputs: list[str] | None, **given: Any) -> tuple[list[dict[str, Any]], Any]:
    """All batches of a pass, and the statistics after it."""
    with DataLoader(data, 16, **{**SETTINGS, **given}) as loader:
        if outputs is not None:
            loader.only(outputs)
        return list(loader), loader.stats()


def assert_same(part: list[dict[str, Any]], whole: list[dict[str, Any]]) -> None:
    """Each output of a stage is that of the whole data set."""
    assert len(part) == len(whole)
    for ours, theirs in zip(part, whole, strict=True):
        for name, value in ours.items():
            assert torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else value == theirs[name]


@pytest.mark.parametrize("decode", ["native", "library"])
@pytest.mark.parametrize("outputs", [["image", *VIRTUAL], ["label", "__valid__"], ["name"], VIRTUAL, []])
def test_a_stage_gets_its_outputs_as_the_whole_data_set_gives_them(
    pictures: Path, outputs: list[str], decode: str
) -> None:
    data = ShardDataset(pictures, transforms=CROPPED, columns=["image", "label", "name", *VIRTUAL])
    whole, _ = read(data, None, decode=decode)
    part, stats = read(data, outputs, decode=decode)
    assert all(set(batch) == set(outputs) for batch in part)
    assert_same(part, whole)
    assert stats.samples == len(whole) * 16


def test_a_stage_between_opens_no_shard_and_what_it_leaves_is_counted(pictures: Path) -> None:
    data = ShardDataset(pictures, transforms=CROPPED)
    whole, all_read = read(data, None, tail="short")
    batches, stats = read(data, ["__valid__", "__weight__"], tail="short")
    assert [len(batch["__valid__"]) for batch in batches] == [len(batch["label"]) for batch in whole]
    assert stats.read_nbytes == 0
    assert stats.cache["hits"] == stats.cache["misses"] == 0
    assert stats.unread_nbytes == int(data.data.shard_nbytes.sum())
    assert all_read.unread_nbytes == 0
    first, last = read(data, ["image"], tail="short")[1], read(data, ["label"], tail="short")[1]
    assert 0 < first.read_nbytes < all_read.read_nbytes
    assert first.unread_nbytes == stats.unread_nbytes - first.read_nbytes
    assert last.read_nbytes == 0 < last.unread_nbytes


def test_a_stage_between_fetches_nothing_into_the_cache(pictures: Path, tmp_path: Path) -> None:
    data = ShardDataset(pictures, transforms=CROPPED, cache=CacheConfig(path=tmp_path / "cache", budget=1 << 20))
    assert len(read(data, [])[0]) == 7
    assert not (tmp_path / "cache").exists()
    assert read(data, ["label"])[1].cache["fetched"] > 0


def test_a_stage_without_outputs_needs_none_of_the_shards(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    with ShardWriter(path, {"x": "int64"}) as writer:
        for x in range(10):
            writer.write({"x": x})
    data = ShardDataset(path)
    for shard in range(data.data.num_shards):
        (path / data.data.shard_name(shard)).unlink()
    batches, stats = read(data, ["__index__"], tail="short", shuffle=False)
    assert torch.cat([batch["__index__"] for batch in batches]).tolist() == list(range(10))
    assert stats.read_nbytes == 0


def test_an_output_that_shares_its_geometry_is_cut_alike_alone(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "pairs", {"image": "image", "mask": "mask"}) as writer:
        for i in range(20):
            image, mask = jpeg(i), io.BytesIO()
            width, height = Image.open(io.BytesIO(image)).size
            classes = np.random.default_rng(i).integers(0, 9, (height, width), dtype=np.uint8)
            Image.fromarray(classes).save(mask, "PNG")
            writer.write({"image": image, "mask": mask.getvalue()})
    together: Any = {("image", "mask"): [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]}
    data = ShardDataset(tmp_path / "pairs", transforms=together)
    whole, all_read = read(data, None)
    for name in ("image", "mask"):
        part, stats = read(data, [name])
        assert all(list(batch) == [name] for batch in part)
        assert_same(part, whole)
        assert stats.read_nbytes < all_read.read_nbytes


def test_what_one_callable_makes_together_is_not_made_apart(pictures: Path) -> None:
    together: Any = {("image", "name"): [lambda both: both]}
    data = ShardDataset(pictures, transforms=together, columns=["image", "name"])
    with pytest.raises(ConfigError, match="makes image and name together"):
        data.only(["image"])
    assert data.only(["image", "name"]).outputs == ("image", "name")


def test_outputs_that_are_not_there_are_refused_by_name(pictures: Path) -> None:
    data = ShardDataset(pictures)
    with pytest.raises(ConfigError, match=r"no output 'masks'; the outputs are \['image', 'label', 'name'\]"):
        data.only(["masks"])
    with pytest.raises(ConfigError, match="give a list"):
        data.only("image")
    with pytest.raises(ConfigError, match="no output 'image'"):
        data.only(["label"]).only(["image"])
    with pytest.raises(ConfigError, match="outputs of a ShardDataset"):
        DataLoader(torch.utils.data.TensorDataset(torch.arange(3))).only([])


@pytest.mark.parametrize(
    ("given", "words"),
    [({"on_error": "skip"}, "would not know"), ({"batch_transforms": [T.MixUp(0.2)]}, "mix inputs and targets")],
)
def test_settings_that_need_all_outputs_are_refused_and_nothing_changes(
    pictures: Path, given: dict[str, Any], words: str
) -> None:
    data = ShardDataset(pictures, transforms=CROPPED, columns=["image", "label"])
    with DataLoader(data, 16, **SETTINGS, **given) as loader:
        with pytest.raises(ConfigError, match=words):
            loader.only(["image"])
        assert set(next(iter(loader))) == {"image", "label"}
        loader.only(["image", "label", "__weight__"])
        assert set(next(iter(loader))) == {"image", "label", "__weight__"}
    with pytest.raises(ConfigError, match=words):
        DataLoader(data.only(["image"]), 16, **given)


def test_outputs_may_be_chosen_anew_and_a_pass_under_way_ends(pictures: Path) -> None:
    data = ShardDataset(pictures, transforms=CROPPED, columns=["image", "label"])
    with DataLoader(data, 16, **SETTINGS) as loader:
        batches = iter(loader)
        next(batches)
        loader.only(["label"])
        with pytest.raises(ClosedError):
            list(batches)
        assert [set(batch) for batch in loader] == [{"label"}] * len(loader)
        loader.only(["image"])
        assert set(next(iter(loader))) == {"image"}


def test_stages_go_through_worker_processes_and_samplers_too(pictures: Path) -> None:
    data = ShardDataset(pictures, transforms={**CROPPED, "name": [first_letter]}, columns=["image", "label", "name"])
    whole, _ = read(data, None)
    part, stats = read(data, ["name", "__weight__"])
    assert [batch["name"] for batch in part] == [batch["name"] for batch in whole]
    assert all(batch["__weight__"].item() == 1 for batch in part)
    assert stats.unread_nbytes > 0
    with DataLoader(data, 2, sampler=[3, 1, 2], num_workers=1) as loader:
        loader.only(["label"])
        assert [batch["label"].tolist() for batch in loader] == [[0, 1], [2]]


def test_a_sample_by_index_has_the_chosen_outputs(pictures: Path) -> None:
    data = ShardDataset(pictures).only(["label", "__weight__", "__index__"])
    sample = data[4]
    data.close()
    assert {name: value.item() for name, value in sample.items()} == {"label": 1, "__weight__": 1, "__index__": 4}
    assert ShardDataset(pictures).only([])[4] == {}
