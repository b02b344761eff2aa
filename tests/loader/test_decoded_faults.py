"""What can go wrong with stored pixels: the right ones come in any case, and there is nothing to clean by hand."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.cache import verify_cache
from forebay.loader.decode import MAX_PIXELS
from forebay.loader.decoded_kernel import STORED, STORED_DTYPE, TO_STORE, finish_batch
from forebay.loader.geometry import View, Views
from forebay.loader.kernel import make_jobs, why_not
from tests.cache.on_disk import leftovers, used_nbytes

HEAD: list[Any] = [T.Resize(shorter=40), T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
FILLER = Path(__file__).with_name("filling_processes.py")
native_only = pytest.mark.skipif(why_not() is not None, reason="forebay was installed without its native parts")


def read(path: Path, head: list[Any] = HEAD, *, epochs: int = 1, **options: Any) -> tuple[list[Tensor], dict[str, Any]]:
    """All batches of some epochs, and what the decoded cache did."""
    dataset = ShardDataset(path, transforms={"image": head}, **options)
    with DataLoader(dataset, 16, shuffle=True, seed=3, num_workers=2) as loader:
        batches = [batch["image"].clone() for _ in range(epochs) for batch in loader]
        stats = loader.stats()
    return batches, {**stats.decoded, "cache": stats.cache}


def expected(path: Path, *, epochs: int = 1) -> list[Tensor]:
    dataset = ShardDataset(path, transforms={"image": HEAD})
    with DataLoader(dataset, 16, shuffle=True, seed=3, num_workers=2, decode="library") as loader:
        return [batch["image"].clone() for _ in range(epochs) for batch in loader]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def decoded_files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.decoded"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_a_flipped_byte_is_decoded_again_and_healed(pictures: Path, cache: Path) -> None:
    read(pictures, epochs=2, cache=f"{cache}:1GB", decoded=True)
    path = decoded_files(cache)[0]
    content = bytearray(path.read_bytes())
    content[5000] ^= 0x10
    path.write_bytes(content)
    batches, told = read(pictures, cache=f"{cache}:1GB", decoded=True)
    assert same(batches, expected(pictures))
    assert told["damaged"] == 1
    batches, told = read(pictures, cache=f"{cache}:1GB", decoded=True)
    assert same(batches, expected(pictures))
    assert (told["damaged"], told["misses"]) == (0, 0)


def test_a_file_with_a_damaged_header_is_made_again(pictures: Path, cache: Path) -> None:
    read(pictures, epochs=2, cache=f"{cache}:1GB", decoded=True)
    for path in decoded_files(cache):
        content = bytearray(path.read_bytes())
        content[30] ^= 0x10
        path.write_bytes(content)
    batches, told = read(pictures, epochs=2, cache=f"{cache}:1GB", decoded=True)
    assert same(batches, expected(pictures, epochs=2))
    assert told["files"] > 0
    assert verify_cache(cache, progress=lambda _: None)[1] == []


def test_a_changed_head_has_files_of_its_own(pictures: Path, cache: Path) -> None:
    read(pictures, cache=f"{cache}:1GB", decoded=True)
    before = len(decoded_files(cache))
    _, told = read(pictures, [T.Resize(shorter=41), *HEAD[1:]], cache=f"{cache}:1GB", decoded=True)
    assert told["hits"] == 0
    assert len(decoded_files(cache)) > before
    _, told = read(pictures, [T.Resize(shorter=40), T.RandomResizedCrop(16)], cache=f"{cache}:1GB", decoded=True)
    assert told["hits"] > 0  # the same head, with another rest


def test_pixels_of_stored_orientation_are_others_than_upright_ones(pictures: Path, cache: Path) -> None:
    read(pictures, cache=f"{cache}:1GB", decoded=True)
    _, told = read(pictures, cache=f"{cache}:1GB", decoded=True, orientation="ignore")
    assert told["hits"] == 0


@pytest.mark.parametrize("room", [30_000, 200_000, 400_000])
def test_a_budget_smaller_than_the_data_is_kept_and_costs_no_pixel(room: int, pictures: Path, cache: Path) -> None:
    config = f"{cache}:{room}"
    batches, told = read(pictures, epochs=3, cache=config, decoded=True)
    assert same(batches, expected(pictures, epochs=3))
    assert told["misses"] > 97
    assert used_nbytes(cache) <= room
    assert leftovers(cache) == []


def test_a_full_disk_costs_no_pixel(pictures: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fallocate = os.posix_fallocate

    def full(fd: int, offset: int, nbytes: int) -> None:
        if ".decoded" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        fallocate(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", full)
    batches, told = read(pictures, epochs=2, cache=f"{cache}:1GB", decoded=True)
    assert same(batches, expected(pictures, epochs=2))
    assert (told["stored"], told["hits"]) == (0, 0)
    assert decoded_files(cache) == []
    assert leftovers(cache) == []


def test_files_that_somebody_removes_meanwhile_cost_no_pixel(pictures: Path, cache: Path) -> None:
    wanted = expected(pictures, epochs=2)
    dataset = ShardDataset(pictures, transforms={"image": HEAD}, cache=f"{cache}:1GB", decoded=True)
    found = []
    with DataLoader(dataset, 16, shuffle=True, seed=3, num_workers=2) as loader:
        for _ in range(2):
            for batch in loader:
                found.append(batch["image"].clone())
                for path in decoded_files(cache):
                    path.unlink()
    assert same(found, wanted)


@native_only
def test_kills_at_twenty_moments_leave_a_cache_that_the_next_run_uses(pictures: Path, cache: Path) -> None:
    config = f"{cache}:1GB"
    subprocess.run([sys.executable, str(FILLER), str(pictures), config, "20"], check=True, timeout=240)
    batches, told = read(pictures, epochs=2, cache=config, decoded=True)
    assert same(batches, expected(pictures, epochs=2))
    assert told["damaged"] == 0
    assert told["hits"] >= 97
    assert leftovers(cache) == []
    assert list((cache / "readers").iterdir()) == []
    assert verify_cache(cache, progress=lambda _: None)[1] == []


def test_two_processes_fill_one_cache(pictures: Path, cache: Path) -> None:
    config = f"{cache}:1GB"
    subprocess.run([sys.executable, str(FILLER), str(pictures), config, "0"], check=True, timeout=240)
    batches, told = read(pictures, cache=config, decoded=True)
    assert same(batches, expected(pictures))
    assert (told["hits"], told["damaged"]) == (97, 0)
    assert list((cache / "readers").iterdir()) == []


@native_only
def test_what_cannot_be_written_is_finished_all_the_same(tmp_path: Path, make_jpeg: Any) -> None:
    """A disk that fails in the middle of filling, by a descriptor that may only be read."""
    (tmp_path / "file").write_bytes(bytes(100_000))
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    view = View(0, 0, 40, 60, 40, 60, 0, 0, 40, 60, False)
    jobs = make_jobs(Views.of([view]), orientations=1, heights=40, widths=60)
    out = torch.zeros((1, 40, 60, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    stored = np.zeros(1, STORED_DTYPE)
    stored[0] = TO_STORE, fd, 0, 0, 0
    done = finish_batch([make_jpeg(40, 60)], jobs, stored, jobs, out, table=None, max_pixels=MAX_PIXELS, threads=1)
    assert done.all()
    assert out.float().std() > 1
    assert stored["written"][0] == -errno.EBADF
    stored[0] = STORED, fd, 0, 1, 0
    assert not finish_batch([None], jobs, stored, jobs, out, table=None, max_pixels=MAX_PIXELS, threads=1).any()
    stored[0] = STORED, fd, 99_000, 1, 0  # beyond the end
    assert not finish_batch([None], jobs, stored, jobs, out, table=None, max_pixels=MAX_PIXELS, threads=1).any()
    os.close(fd)
