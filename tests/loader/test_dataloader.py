"""The loader as a user sees it: batches, epochs, exactness over threads and ranks, state, errors, closing."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torch.utils.dlpack
from torch import Tensor

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.errors import ConfigError, SchemaError, StateError

SIZE = 24
AUGMENT: dict[Any, Any] = {"image": [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip()]}


def dataset(path: Path, **settings: Any) -> ShardDataset:
    return ShardDataset(
        path, **{"transforms": AUGMENT, "columns": ["image", "label", "name", "__index__", "__valid__"], **settings}
    )


def digest(images: Tensor) -> list[str]:
    """A name for each sample's pixels."""
    return [hashlib.blake2b(image.contiguous().numpy().tobytes(), digest_size=8).hexdigest() for image in images]


def read(batches: Iterable[dict[str, Any]]) -> list[tuple[int, str]]:
    """Index and pixels of each sample, in order of delivery."""
    return [pair for batch in batches for pair in zip(batch["__index__"].tolist(), digest(batch["image"]), strict=True)]


def join(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The batches of all ranks as one, without what only pads."""
    parts = list(parts)
    return {name: torch.cat([part[name][part["__valid__"]] for part in parts]) for name in ("image", "__index__")}


def test_a_batch_is_what_the_readme_says(pictures: Path) -> None:
    data = ShardDataset(
        pictures, transforms={"image": [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.Normalize()]}
    )
    loader = DataLoader(data, batch_size=16, shuffle=True, seed=0)
    batches = list(loader)
    assert len(batches) == len(loader) == 7
    assert list(batches[0]) == ["image", "label", "name"]
    image, label = batches[0]["image"], batches[0]["label"]
    assert image.dtype == torch.float32
    assert image.shape == (16, 3, SIZE, SIZE)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert label.dtype == torch.int64
    assert label.shape == (16,)
    assert len(batches[-1]["label"]) == 97 - 6 * 16
    assert all(isinstance(name, str) for name in batches[0]["name"])


def test_crops_alone_stay_uint8(pictures: Path) -> None:
    batch = next(iter(DataLoader(dataset(pictures), batch_size=8)))
    assert batch["image"].dtype == torch.uint8


def test_without_transforms_an_image_is_as_decoded(pictures: Path) -> None:
    data = ShardDataset(pictures)
    batch = next(iter(DataLoader(data, batch_size=1)))
    assert batch["image"].dtype == torch.uint8
    assert batch["image"].ndim == 4
    assert torch.equal(batch["image"][0], data[0]["image"])
    data.close()


def test_every_epoch_gives_each_sample_once_in_another_order(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures), batch_size=10, shuffle=True, seed=1)
    epochs = [[i for i, _ in read(loader)] for _ in range(3)]
    assert all(sorted(epoch) == list(range(97)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_without_shuffle_the_order_is_that_of_storage(pictures: Path) -> None:
    assert [i for i, _ in read(DataLoader(dataset(pictures), batch_size=10))] == list(range(97))


def test_a_sample_gets_another_crop_in_the_next_epoch(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures), batch_size=97)
    first, second = dict(read(loader)), dict(read(loader))
    assert sum(first[i] != second[i] for i in first) > 90


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_change_nothing(pictures: Path, threads: int) -> None:
    one = DataLoader(dataset(pictures), batch_size=16, shuffle=True, seed=5, num_workers=1)
    many = DataLoader(dataset(pictures), batch_size=16, shuffle=True, seed=5, num_workers=threads)
    for a, b in itertools.chain.from_iterable(zip(one, many, strict=True) for _ in range(2)):
        assert torch.equal(a["image"], b["image"])
        assert torch.equal(a["__index__"], b["__index__"])
        assert a["name"] == b["name"]


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_divide_the_same_global_batches(pictures: Path, world_size: int) -> None:
    alone = DataLoader(dataset(pictures), global_batch_size=24, shuffle=True, seed=5)
    ranks = [
        DataLoader(dataset(pictures), global_batch_size=24, shuffle=True, seed=5, rank=r, world_size=world_size)
        for r in range(world_size)
    ]
    assert {len(loader) for loader in ranks} == {len(alone)}
    for whole, *parts in zip(alone, *ranks, strict=True):
        assert all(len(part["__index__"]) for part in parts)
        assert torch.equal(whole["image"], join(parts)["image"])
        assert torch.equal(whole["__index__"], join(parts)["__index__"])


def test_batch_size_is_of_a_rank(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures), batch_size=8, seed=0, rank=1, world_size=3)
    assert len(loader) == 5
    assert [len(batch["label"]) for batch in loader] == [8, 8, 8, 8, 1]


def test_a_seed_that_is_not_given_comes_from_torch(pictures: Path) -> None:
    def order(generator: torch.Generator | None) -> list[int]:
        return [i for i, _ in read(DataLoader(dataset(pictures), batch_size=97, shuffle=True, generator=generator))]

    torch.manual_seed(7)
    first = order(None)
    torch.manual_seed(7)
    assert order(None) == first
    assert order(None) != first
    assert order(torch.Generator().manual_seed(3)) == order(torch.Generator().manual_seed(3))


# -- state ---------------------------------------------------------------------------------------------------------


def uninterrupted(path: Path, epochs: int, **settings: Any) -> list[tuple[int, int, str]]:
    loader = DataLoader(dataset(path), batch_size=16, shuffle=True, seed=11, **settings)
    return [(epoch, *pair) for epoch in range(epochs) for pair in read(loader)]


def test_a_resumed_loader_gives_exactly_the_rest(pictures: Path) -> None:
    """At 20 random places over 3 epochs, with other threads and another batch size on going on."""
    whole = uninterrupted(pictures, 3)
    choose = random.Random(0)
    for _ in range(20):
        stop, threads, batch_size = choose.randrange(21), choose.choice([1, 2, 3]), choose.choice([16, 16, 5, 40])
        loader = DataLoader(dataset(pictures), batch_size=16, shuffle=True, seed=11, num_workers=choose.choice([1, 2]))
        seen: list[tuple[int, int, str]] = []
        batches = itertools.chain.from_iterable(((epoch, batch) for batch in loader) for epoch in range(3))
        for epoch, batch in itertools.islice(batches, stop):
            seen += [(epoch, *pair) for pair in read([batch])]
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
        resumed = DataLoader(dataset(pictures), batch_size=batch_size, shuffle=True, num_workers=threads)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == {**state, "global_batch_size": batch_size}
        rest = [(epoch, *pair) for epoch in range(state["epoch"], 3) for pair in read(resumed)]
        assert seen + rest == whole, (
            f"stopped after {stop} batches, resumed with {threads} threads, batches of {batch_size}"
        )


def test_a_state_before_the_first_iter_keeps_the_order_to_come(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures), batch_size=16, shuffle=True)
    state = loader.state_dict()
    copy = DataLoader(dataset(pictures), batch_size=16, shuffle=True)
    copy.load_state_dict(state)
    assert read(copy) == read(loader)


def test_before_the_end_no_batch_remains_and_after_it_an_epoch_does(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures), batch_size=50, shuffle=True, seed=2)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    before = loader.state_dict()
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    after = loader.state_dict()
    second = read(loader)

    resumed = DataLoader(dataset(pictures), batch_size=50, shuffle=True)
    resumed.load_state_dict(before)
    assert read(resumed) == []
    assert read(resumed) == second
    resumed.load_state_dict(after)
    assert read(resumed) == second


def test_a_second_resume_soon_after_the_first_is_exact(pictures: Path) -> None:
    whole = uninterrupted(pictures, 1)
    state: dict[str, Any] | None = None
    seen: list[tuple[int, int, str]] = []
    for _ in range(7):
        loader = DataLoader(dataset(pictures), batch_size=16, shuffle=True, seed=11)
        if state is not None:
            loader.load_state_dict(state)
        seen += [(0, *pair) for pair in read(itertools.islice(loader, 1))]
        state = loader.state_dict()
        loader.close()
    assert seen == whole


def test_a_state_goes_on_with_other_ranks(pictures: Path) -> None:
    alone = DataLoader(dataset(pictures), global_batch_size=24, shuffle=True, seed=5)
    first = read(itertools.islice(alone, 2))
    state = alone.state_dict()
    parts = []
    for rank in range(3):
        loader = DataLoader(dataset(pictures), global_batch_size=24, shuffle=True, seed=5, rank=rank, world_size=3)
        loader.load_state_dict(state)
        parts.append(list(loader))
    rest = read(join(batches) for batches in zip(*parts, strict=True))
    alone.set_epoch(0)
    assert first + rest == read(alone)


def test_the_state_after_any_batch_is_arithmetic(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures), batch_size=16, shuffle=True, seed=11)
    iterator = iter(loader)
    ahead = [loader.state_dict(batches=n) for n in range(8)]
    for n in range(7):
        assert loader.state_dict() == ahead[n]
        next(iterator)
    assert loader.state_dict() == ahead[7]
    with pytest.raises(StateError, match="7 batches"):
        loader.state_dict(batches=8)
    loader.close()


def test_set_epoch_names_the_next_one_and_break_begins_another(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures), batch_size=16, shuffle=True, seed=11)
    epochs = [read(loader) for _ in range(3)]
    loader.set_epoch(1)
    assert read(loader) == epochs[1]
    loader.set_epoch(0)
    for _ in loader:
        break
    assert read(loader) == epochs[1]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"seed": 4}, "seed"),
        ({"shuffle": False}, "shuffle"),
        ({"drop_last": True}, "drop_last"),
        ({"window": 3}, "window"),
    ],
)
def test_a_state_that_contradicts_a_setting_is_refused_and_changes_nothing(
    pictures: Path, change: dict[str, Any], word: str
) -> None:
    state = DataLoader(dataset(pictures), batch_size=16, shuffle=True, seed=11).state_dict()
    other = DataLoader(dataset(pictures), **{"batch_size": 16, "shuffle": True, "seed": 11, **change})
    before = other.state_dict()
    with pytest.raises(StateError, match=word):
        other.load_state_dict(state)
    assert other.state_dict() == before


def test_what_was_not_said_is_taken_from_the_state(pictures: Path) -> None:
    said = DataLoader(dataset(pictures), batch_size=16, shuffle=True, seed=11, window=3)
    state = json.loads(json.dumps(said.state_dict()))
    open_to_all = DataLoader(dataset(pictures), batch_size=16)
    open_to_all.load_state_dict(state)
    assert open_to_all.state_dict() == state
    assert read(open_to_all) == read(said)


def test_a_state_of_other_data_is_refused(pictures: Path, tmp_path: Path, make_pictures: Callable[..., Path]) -> None:
    state = DataLoader(dataset(pictures), batch_size=16).state_dict()
    other = DataLoader(dataset(make_pictures(tmp_path / "other", 20)), batch_size=16)
    with pytest.raises(StateError, match="fingerprint"):
        other.load_state_dict(state)


# -- memory, map style, settings -----------------------------------------------------------------------------------


def test_a_batch_that_the_user_keeps_is_never_overwritten(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures), batch_size=4, shuffle=True, seed=1)
    kept: list[tuple[Any, str]] = []
    for batch in itertools.chain.from_iterable(loader for _ in range(4)):
        image = batch["image"]
        for part in (image, image[1:], image.permute(0, 2, 3, 1).numpy()[0], torch.utils.dlpack.from_dlpack(image)[0]):
            whole = torch.as_tensor(part).contiguous().numpy().tobytes()
            kept.append((part, hashlib.blake2b(whole).hexdigest()))
        del batch, image
    for part, expected in kept:
        assert hashlib.blake2b(torch.as_tensor(part).contiguous().numpy().tobytes()).hexdigest() == expected


def test_memory_of_batches_that_were_dropped_is_used_again(pictures: Path) -> None:
    seen = set()
    count = 0
    for batch in DataLoader(dataset(pictures), batch_size=2, num_workers=1):
        seen.add(batch["image"].data_ptr())
        count += 1
        del batch
    assert count == 49
    assert len(seen) < 12


def test_it_is_a_map_style_data_set_too(pictures: Path) -> None:
    data = dataset(pictures)
    assert len(data) == 97
    sample = data[5]
    assert sample["image"].shape == (3, SIZE, SIZE)
    assert sample["label"].item() == 2
    assert sample["name"] == "picture 5"
    assert data[-1]["name"] == "picture 96"
    assert [s["name"] for s in data[[3, 1]]] == ["picture 3", "picture 1"]
    assert torch.equal(data[5]["image"], sample["image"])
    data.set_epoch(1)
    assert not torch.equal(data[5]["image"], sample["image"])
    with pytest.raises(IndexError, match="97"):
        data[97]
    wrong: Any
    for wrong in ("5", 2.5, [1, "2"], None):
        with pytest.raises(TypeError, match=r"sample .* of .*: give a whole number"):
            data[wrong]
    data.close()


@pytest.mark.parametrize("place", [None, 3, {"a": 1}])
def test_what_is_no_place_is_refused(place: Any) -> None:
    with pytest.raises(ConfigError, match="give a folder, a file, a URL or a list"):
        ShardDataset(place)


@pytest.mark.parametrize("device", ["cdua", 3.5, "cuda:x"])
def test_what_is_no_device_is_refused(pictures: Path, device: Any) -> None:
    with pytest.raises(ConfigError, match=r"is no device that torch knows|sees no CUDA device"):
        DataLoader(dataset(pictures), device=device)


def test_it_works_in_torchs_own_loader_with_processes(pictures: Path) -> None:
    data = dataset(pictures)
    plain = torch.utils.data.DataLoader(data, batch_size=10, num_workers=2)
    seen = read(plain)
    assert [i for i, _ in seen] == list(range(97))
    assert seen == read(DataLoader(data, batch_size=10, seed=0))
    data.close()


def test_other_data_sets_go_to_torch_unchanged() -> None:
    numbers = torch.utils.data.TensorDataset(torch.arange(10))
    torch.manual_seed(0)
    ours = [batch[0].tolist() for batch in DataLoader(numbers, 4, True)]
    torch.manual_seed(0)
    assert ours == [batch[0].tolist() for batch in torch.utils.data.DataLoader(numbers, 4, True)]
    with pytest.raises(ConfigError, match="seed"):
        DataLoader(numbers, 4, seed=1)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": None}, "batch_size=None"),
        ({"batch_size": 98, "drop_last": True}, "fewer than a global batch"),
        ({"batch_size": 8, "global_batch_size": 8}, "give one"),
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"num_workers": -1}, "num_workers"),
        ({"window": 0}, "window"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed=1.5; give a whole number"),
        ({"batch_size": "8"}, "batch_size='8'; give a whole number"),
        ({"num_workers": "2"}, "num_workers='2'"),
        ({"timeout": "x"}, "timeout='x'"),
        ({"on_error": "ignore"}, "on_error"),
        ({"max_bad": -1}, "max_bad"),
        ({"rank": 1}, "both"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"collate_fn": list}, "collate_fn"),
        ({"worker_init_fn": print}, "worker_init_fn"),
        ({"prefetch_factor": 0}, "prefetch_factor"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(pictures: Path, settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        DataLoader(dataset(pictures), **settings)


def test_ranks_that_cannot_ask_each_other_need_a_seed(pictures: Path) -> None:
    with pytest.raises(ConfigError, match="give seed="):
        iter(DataLoader(dataset(pictures), batch_size=4, shuffle=True, rank=0, world_size=2))


def test_a_batch_larger_than_the_data_is_one_short_batch(pictures: Path) -> None:
    assert [len(batch["label"]) for batch in DataLoader(dataset(pictures), batch_size=1000)] == [97]


def test_a_transform_of_a_column_that_is_not_there_names_those_that_are(pictures: Path) -> None:
    with pytest.raises((SchemaError, ConfigError), match="label"):
        ShardDataset(pictures, transforms={"picture": [T.CenterCrop(8)]})
    with pytest.raises((SchemaError, ConfigError), match="label"):
        ShardDataset(pictures, columns=["picture"])


def test_torchrun_without_a_process_group_is_refused(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="init_process_group"):
        iter(DataLoader(dataset(pictures), batch_size=4))


def test_mixup_needs_no_more_than_the_classes_of_the_shards(pictures: Path) -> None:
    data = ShardDataset(
        pictures, transforms={"image": [T.RandomResizedCrop(SIZE), T.Normalize()]}, columns=["image", "label"]
    )
    mixed: list[T.BatchTransform] = [T.MixUp(0.2), T.CutMix(1.0)]
    batches = [list(DataLoader(data, batch_size=16, seed=3, batch_transforms=mixed, num_workers=n)) for n in (1, 2)]
    assert batches[0][0]["label"].shape == (16, 3)
    torch.testing.assert_close(batches[0][0]["label"].sum(1), torch.ones(16))
    for a, b in zip(*batches, strict=True):
        assert torch.equal(a["image"], b["image"])
        assert torch.equal(a["label"], b["label"])


def test_images_that_do_not_stack_are_named(pictures: Path) -> None:
    from forebay.errors import ShapeError

    with pytest.raises(ShapeError, match=r"row \d+ has shape"):
        list(DataLoader(ShardDataset(pictures), batch_size=8))


@pytest.mark.parametrize("share", [0.3, 0.6, 2.0], ids=["a third", "most", "all"])
def test_a_cache_changes_no_batch_and_keeps_its_budget(pictures: Path, tmp_path: Path, share: float) -> None:
    here = dataset(pictures)
    nbytes = int(here.data.shard_nbytes.sum())
    cached = dataset(pictures, cache=f"{tmp_path / 'cache'}:{int(share * nbytes)}")
    plain, through = (DataLoader(data, batch_size=16, shuffle=True, seed=3, window=3) for data in (here, cached))
    for _ in range(3):
        assert read(through) == read(plain)
        kept = [path.stat().st_size for path in (tmp_path / "cache").rglob("*.arrow*")]
        assert 0 < sum(kept) <= share * nbytes
    stats = through.stats().cache
    assert stats["fetched"] > 0
    assert share < 1 or stats["fetched_nbytes"] == 0 or stats["evicted"] == 0


@pytest.mark.parametrize(
    ("bound", "ahead"),
    [({}, 2), ({"prefetch_factor": 4}, 4), ({"prefetch_nbytes": 1}, 1)],
    ids=["default", "4", "bytes"],
)
def test_no_more_is_made_ahead_than_allowed(pictures: Path, bound: dict[str, int], ahead: int) -> None:
    made: list[int] = []
    gate = threading.Semaphore(0)

    def count(image: Tensor) -> Tensor:
        made.append(1)
        gate.release()
        return image

    steps: list[T.Transform] = [T.RandomResizedCrop(SIZE), count]
    data = ShardDataset(pictures, transforms={"image": steps})
    loader = DataLoader(data, batch_size=16, num_workers=1, workers="thread", **bound)  # type: ignore[arg-type]
    with loader:
        iterator = iter(loader)
        for delivered in range(1, 4):
            next(iterator)
            while len(made) < 16 * (delivered + ahead) and len(made) < 97:
                assert gate.acquire(timeout=30)
            assert len(made) <= 16 * (delivered + ahead), "more was made ahead than the bound allows"


def test_torch_threads_of_the_user_stay_as_they_were(pictures: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    for _ in DataLoader(dataset(pictures), batch_size=16, num_workers=2):
        assert torch.get_num_threads() == 2
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [2]
    torch.set_num_threads(before)


def test_stats_tell_where_the_time_went(pictures: Path) -> None:
    loader = DataLoader(dataset(pictures), batch_size=16)
    list(loader)
    stats = loader.stats()
    assert stats.samples == 97
    assert stats.batches == 7
    assert 0 <= stats.stall_share <= 1
    assert set(stats.stages) == {"read", "decode", "collate"}
    assert stats.read_nbytes > 97 * 500
    assert json.loads(json.dumps(stats.to_dict()))["samples"] == 97
    loader.reset_stats()
    assert loader.stats().samples == 0
