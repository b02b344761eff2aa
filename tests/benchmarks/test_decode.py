"""The comparison of decoders: each makes the windows that the loader draws, tiny here, and tells its pixels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forebay.benchmarks import LoaderWork, compare_decoders
from forebay.benchmarks.bare import DecodeThreads, decode_pass, library_decoder, make_jobs
from forebay.benchmarks.gathered import gather
from forebay.benchmarks.native import native_version
from forebay.benchmarks.reference import draw_cuts
from forebay.benchmarks.work import shard_dataset, write_both_shards
from forebay.errors import ConfigError
from forebay.loader import DataLoader
from forebay.sharding import can_transcode

WORK = LoaderWork(size=24, batch_size=8, images=20)


@pytest.mark.parametrize("threads", [1, 3])
def test_all_ways_make_the_same_windows(photographs: Path, threads: int) -> None:
    comparison = compare_decoders(photographs, WORK, threads=threads, rounds=2)
    sides = {side.name: side for side in comparison.sides}
    ours = ["library"] + ["native"] * (native_version() is not None)
    forms = ["", ", addressable"] if can_transcode() else [""]
    expected = ["simplejpeg + OpenCV", "simplejpeg + torch, antialiased"]
    assert list(sides) == expected + [f"forebay, {name}{form}" for name in ours for form in forms]
    assert comparison.native == native_version()
    for name, side in sides.items():
        assert len(side.images_per_s) == 2
        assert min(side.images_per_s) > 0
        assert side.pixels.mean < (20 if name == "simplejpeg + OpenCV" else 1)
    values = json.loads(json.dumps(comparison.to_dict()))
    assert values["sides"][0]["times_as_fast_as"]["simplejpeg + OpenCV"]["median"] == 1
    assert values["sides"][0]["median_images_per_s_and_thread"] == sides["simplejpeg + OpenCV"].median / threads


def test_without_opencv_that_side_is_left_out(photographs: Path) -> None:
    comparison = compare_decoders(photographs, WORK, rounds=1, opencv=False)
    assert comparison.sides[0].name == "simplejpeg + torch, antialiased"
    with pytest.raises(ConfigError, match="threads=0"):
        compare_decoders(photographs, WORK, threads=0)


def test_the_cuts_are_those_that_the_loader_draws(photographs: Path, tmp_path: Path) -> None:
    chosen = gather(photographs, images=16, multiple=8, addressable=False, seed=3)
    work = LoaderWork(size=24, batch_size=16, seed=3)
    folder = write_both_shards(chosen, tmp_path, addressable=False)["forebay"]
    with DataLoader(shard_dataset(folder, work), 16, seed=3) as loader:
        loaded = next(iter(loader))["image"].permute(0, 2, 3, 1).numpy()
    out = np.zeros((16, 24, 24, 3), np.uint8)
    with DecodeThreads(2) as threads:
        library_decoder(threads)(make_jobs(chosen, seed=3))(out)
    assert np.abs(out.astype(int) - loaded.astype(int)).max() <= 1
    assert draw_cuts([(30, 40)] * 4, seed=3) != draw_cuts([(30, 40)] * 4, seed=4)


def test_a_pass_makes_every_job_and_a_last_batch_that_is_not_full(photographs: Path) -> None:
    chosen = gather(photographs, images=20, multiple=8, addressable=False, seed=0)
    jobs = make_jobs(chosen, seed=0)
    with DecodeThreads(2) as threads:
        told = decode_pass(library_decoder(threads), jobs, batch_size=8, size=24)()
    assert told.images == 20
    assert 0 < told.first_batch_s < told.seconds
