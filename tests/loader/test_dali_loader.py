"""`decode="dali"` on DALI's CPU mode: the samples of the order, the survivors of other decoders, nothing left over."""

from __future__ import annotations

import gc
import itertools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.errors import ConfigError, SampleError
from forebay.loader.decode import decode_image

CROP = [T.RandomResizedCrop(32, scale=(0.3, 1.0)), T.RandomHorizontalFlip()]
Batches = list[dict[str, Any]]


def loader(path: Path, transforms: Sequence[T.Transform] = CROP, **given: Any) -> DataLoader:
    columns = ["image", *({"label"} & set(ShardDataset(path).schema.names)), "__index__", "__valid__"]
    dataset = ShardDataset(path, transforms={"image": list(transforms)}, columns=columns)
    return DataLoader(
        dataset, **{"batch_size": 16, "seed": 5, "shuffle": True, "num_workers": 2, "decode": "dali", **given}
    )


def indices(batches: Batches) -> list[list[int]]:
    return [batch["__index__"].tolist() for batch in batches]


def same(left: Batches, right: Batches) -> bool:
    pairs = zip(left, right, strict=True)
    return all(list(one) == list(other) and all(torch.equal(one[k], other[k]) for k in one) for one, other in pairs)


# -- exact -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory, make_pictures: Callable[..., Path]) -> Path:
    return make_pictures(tmp_path_factory.mktemp("ten") / "train", 10)


@pytest.mark.parametrize(("ranks", "drop_last"), [*itertools.product([1, 2, 3], [True, False])])
def test_three_epochs_are_exactly_the_samples_of_the_order_with_one_left_early(
    ten: Path, ranks: int, drop_last: bool
) -> None:
    for rank in range(ranks):
        given: dict[str, Any] = {
            "batch_size": 4 if ranks == 1 else 2,
            "drop_last": drop_last,
            "rank": rank,
            "world_size": ranks,
        }
        with loader(ten, **given) as dali, loader(ten, decode="library", **given) as library:
            for epoch in range(3):
                taken = len(dali) if epoch != 1 else 1
                found = list(itertools.islice(dali, taken))
                expected = list(itertools.islice(library, taken))
                assert indices(found) == indices(expected)
                for one, other in zip(found, expected, strict=True):
                    assert torch.equal(one["__valid__"], other["__valid__"])
                    assert torch.equal(one["label"], other["label"])
                    assert (one["image"].float() - other["image"].float()).abs().mean() < 1


@pytest.mark.parametrize("batches", [0, 1, 3, 7])
def test_a_resumed_run_goes_on_to_the_bit(pictures: Path, batches: int) -> None:
    with loader(pictures) as whole, loader(pictures) as begun, loader(pictures, num_workers=1) as resumed:
        expected: Batches = list(whole) + list(whole)
        list(itertools.islice(begun, batches))
        resumed.load_state_dict(begun.state_dict())
        assert same(list(resumed) + list(resumed), expected[batches:])


@pytest.mark.parametrize("prefetch", [{"prefetch_factor": 1}, {"prefetch_factor": 7}, {"prefetch_nbytes": 1}])
def test_how_far_it_reads_ahead_changes_nothing(pictures: Path, prefetch: dict[str, Any]) -> None:
    with loader(pictures, **prefetch) as few, loader(pictures) as usual:
        assert same(list(few), list(usual))


def test_pointwise_steps_and_batch_transforms_act_on_the_batch_as_on_samples(pictures: Path) -> None:
    """The pixels of both sides are DALI's: what a callable after the head gets shows them."""
    chains = ([T.Normalize()], [T.ToDtype(torch.float32, scale=True), T.ToDtype(torch.bfloat16)])
    for chain in chains:
        given: dict[str, Any] = {"batch_transforms": [T.MixUp(0.3)]}
        batchwise, one_by_one = (
            loader(pictures, steps, **given) for steps in ([*CROP, *chain], [*CROP, torch.clone, *chain])
        )
        with batchwise, one_by_one:
            assert same(list(batchwise), list(one_by_one))


def test_two_iterators_at_a_time_do_not_meet(pictures: Path) -> None:
    with loader(pictures) as first, loader(pictures) as both:
        expected: Batches = list(first)
        one = iter(both)
        head = [next(one), next(one)]
        both.set_epoch(0)
        assert same(list(both), expected)
        assert same(head + list(one), expected)


# -- bad pictures ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd(make_jpeg: Callable[..., bytes]) -> list[bytes]:
    """Sixty pictures; one in five cannot be decoded by anything, each in a way of its own."""
    good = [make_jpeg(60 + i, 80 - i // 2, subsampling="4:2:0") for i in range(60)]
    cut = good[0][: len(good[0]) // 2]
    ways = [b"\0", b"\xff\xd8", b"GIF89a" + bytes(40), bytes(300), cut]
    return [ways[i // 5 % len(ways)] if i % 5 == 2 else data for i, data in enumerate(good)]


def test_the_survivors_are_those_of_the_other_decoders(
    odd: list[bytes], make_shards: Callable[..., Path], tmp_path: Path
) -> None:
    path = make_shards(tmp_path / "odd", odd)
    found: dict[str, Batches] = {}
    told = {}
    for decode in ("dali", "auto", "library"):
        with loader(path, on_error="skip", max_bad=1000, decode=decode) as skipping:
            found[decode] = list(skipping)
            told[decode] = skipping.stats()
    assert indices(found["dali"]) == indices(found["library"]) == indices(found["auto"])
    assert all(
        torch.equal(one["__valid__"], other["__valid__"])
        for one, other in zip(found["dali"], found["library"], strict=True)
    )
    places = [[(bad.shard, bad.row) for bad in stats.bad] for stats in told.values()]
    assert places[0] == places[1] == places[2]
    assert told["dali"].bad_count == told["library"].bad_count == 12


def test_a_bad_picture_is_raised_with_shard_and_row_after_the_batches_before_it(
    odd: list[bytes], make_shards: Callable[..., Path], tmp_path: Path
) -> None:
    path = make_shards(tmp_path / "odd", odd[3:12])  # the fifth is bad
    with loader(path, shuffle=False, batch_size=2) as raising:
        got: Batches = []
        with pytest.raises(SampleError, match="row 4: decode failed") as raised:
            got.extend(raising)
    assert raised.value.row == 4


def test_a_picture_that_dali_alone_fails_on_costs_itself_once(
    make_jpeg: Callable[..., bytes], make_shards: Callable[..., Path], tmp_path: Path
) -> None:
    """A JPEG with a Huffman table that cannot be looks sound to a walk over its markers."""
    good = [make_jpeg(64, 80, subsampling="4:2:0") for _ in range(12)]
    table = good[7].index(b"\xff\xc4") + 5
    whole = make_shards(tmp_path / "whole", good)
    good[7] = good[7][:table] + b"\xff" * 16 + good[7][table + 16 :]
    path = make_shards(tmp_path / "bad", good)
    with loader(path, on_error="skip", max_bad=1000, batch_size=4, shuffle=False) as dali:
        epochs = [list(dali) for _ in range(3)]
        counts = dali.stats().decoding
    with loader(whole, batch_size=4, shuffle=False) as undamaged:
        expected = list(undamaged)
    assert counts["refused"] == 1
    assert counts["rebuilds"] == 1
    assert counts["careful"] == 3
    one, other = (torch.cat([batch["image"] for batch in batches]) for batches in (epochs[0], expected))
    assert [place for place in range(12) if not torch.equal(one[place], other[place])] == [7]


def test_every_awkward_file_gives_what_the_careful_decoder_gives(
    data_dir: Path, make_shards: Callable[..., Path], tmp_path: Path
) -> None:
    """An image of the right size, within a grey level on average, or the same error."""
    folders = [path for path in sorted((data_dir / "awkward").iterdir()) if path.is_dir() and path.name != "LICENSES"]
    files = [path for folder in folders for path in sorted(folder.iterdir())]
    assert len(files) > 60
    path = make_shards(tmp_path / "awkward", [file.read_bytes() for file in files])
    transforms = [T.Resize((32, 40))]
    expected = []
    for file in files:
        try:
            decode_image(file.read_bytes())
            expected.append(True)
        except ValueError:
            expected.append(False)
    found = {}
    for decode in ("dali", "library"):
        given = {"on_error": "skip", "max_bad": 1000, "shuffle": False, "batch_size": 8, "decode": decode}
        with loader(path, transforms, **given) as skipping:
            batches = list(skipping)
        found[decode] = torch.cat([batch["image"] for batch in batches])
        valid = torch.cat([batch["__valid__"] for batch in batches])
        assert valid.tolist() == expected
    differences = (found["dali"].float() - found["library"].float()).abs().mean(dim=(1, 2, 3))
    worst = {str(files[i]): round(float(d), 2) for i, d in enumerate(differences) if d > 1.0}
    assert not worst


@pytest.mark.parametrize("orientation", ["apply", "ignore"])
def test_turned_pictures_are_turned(
    make_jpeg: Callable[..., bytes], make_shards: Callable[..., Path], tmp_path: Path, orientation: Any
) -> None:
    path = make_shards(tmp_path / "turned", [make_jpeg(64, 80, orientation=k) for k in range(1, 9)])
    found = []
    for decode in ("dali", "library"):
        data = ShardDataset(path, transforms={"image": CROP}, orientation=orientation)
        with DataLoader(data, batch_size=8, seed=1, decode=decode) as one:
            found += [batch["image"].float() for batch in one]
    assert (found[0] - found[1]).abs().mean(dim=(1, 2, 3)).max() < 1


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(
    make_jpeg: Callable[..., bytes], make_shards: Callable[..., Path], tmp_path: Path
) -> None:
    path = make_shards(tmp_path / "large", [make_jpeg(64, 80), make_jpeg(300, 400)])
    data = ShardDataset(path, transforms={"image": CROP}, max_pixels=100 * 100)
    with DataLoader(data, batch_size=1, seed=1, decode="dali") as small:
        batches = iter(small)
        assert next(batches)["image"].shape == (1, 3, 32, 32)
        with pytest.raises(SampleError, match=r"row 1: decode failed: DecodeError: .*400"):
            next(batches)


# -- what is kept and what is said -----------------------------------------------------------------------------------


def test_two_hundred_iterators_left_in_the_middle_leave_nothing(pictures: Path) -> None:
    def measure() -> tuple[int, int, int]:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), resident

    with loader(pictures, num_workers=1) as left:
        seen = []
        for k in range(200):
            next(iter(left))
            if k in (50, 199):
                seen.append(measure())
    (threads, files, nbytes), (threads_after, files_after, nbytes_after) = seen
    assert threads_after <= threads
    assert files_after <= files
    assert nbytes_after <= nbytes + (32 << 20)


def test_it_says_which_decoder_is_in_use_and_why(pictures: Path) -> None:
    with loader(pictures) as dali, loader(pictures, decode="auto") as auto:
        assert "DALI 2." in dali.stats().decoder
        assert "on the CPU" in dali.stats().decoder
        assert "as decode= says" in dali.stats().decoder
        assert "batches stay on the CPU" in auto.stats().decoder
        list(dali)
        assert dali.stats().decoding == {"careful": 0, "refused": 0, "rebuilds": 0}
        assert dali.stats().stages["decode"].samples == 97
        assert auto.stats().decoding == {}


def test_without_dali_the_error_names_the_install_line(pictures: Path) -> None:
    script = """
import importlib.metadata, sys
real = importlib.metadata.distributions
importlib.metadata.distributions = lambda **k: [d for d in real(**k) if "dali" not in str(d.metadata["Name"]).lower()]
import forebay
try:
    forebay.DataLoader(forebay.ShardDataset(sys.argv[1]), decode="dali")
except forebay.errors.ConfigError as error:
    print(error)
"""
    command = [sys.executable, "-P", "-c", script, str(pictures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "DALI is not installed: pip install" in done.stdout
    assert "nvidia-dali-cuda130" in done.stdout


def test_an_unknown_decoder_is_refused(pictures: Path) -> None:
    with pytest.raises(ConfigError, match='decode=\'gpu\'; give "auto", "dali", "native" or "library"'):
        loader(pictures, decode="gpu")


def test_sums_hold_over_a_thousand_batches_while_the_consumer_lags(pictures: Path) -> None:
    with loader(pictures, batch_size=1) as lagging:
        kept: list[tuple[torch.Tensor, int]] = []
        for batch in itertools.islice(itertools.chain.from_iterable(lagging for _ in range(11)), 1000):
            kept.append((batch["image"], int(batch["image"].sum())))
            if len(kept) > 16:
                pixels, total = kept.pop(0)
                assert int(pixels.sum()) == total
    assert np.all([int(pixels.sum()) == total for pixels, total in kept])


def test_a_forked_child_that_collects_the_parent_s_pipeline_does_not_wait_for_its_threads(pictures: Path) -> None:
    gc.disable()
    try:
        batches = loader(pictures)
        list(batches)
        cycle: list[object] = [batches]
        cycle.append(cycle)
        del batches, cycle
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # its end is no exception that pytest could catch
            gc.collect()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        gc.enable()
    gc.collect()
