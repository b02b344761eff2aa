"""Real processes on one cache folder, ended by real signals."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from forebay.cache import CacheConfig, open_store
from forebay.cache.locks import is_locked
from forebay.sharding import StoredDataset
from tests.cache.on_disk import leftovers, used_nbytes

PROGRAM = Path(__file__).with_name("reading_process.py")
KILLER = Path(__file__).with_name("killed_readers.py")


@contextmanager
def reading(
    data: StoredDataset, cache: Path, budget: int, *, seed: int, epochs: int
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PROGRAM), data.name, str(cache), str(budget), str(seed), str(epochs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


class Watch:
    """Looks at the size of a cache again and again while other code runs; keeps the largest."""

    def __init__(self, cache: Path) -> None:
        self.largest = 0
        self.looks = 0
        self._cache = cache
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._done.wait(0.001):
            self.largest = max(self.largest, used_nbytes(self._cache))
            self.looks += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@pytest.fixture
def data(make_dataset: Callable[..., StoredDataset]) -> StoredDataset:
    return make_dataset(shards=8, rows=4, nbytes=100_000)


def test_two_processes_share_a_cache_of_three_shards(tmp_path: Path, data: StoredDataset) -> None:
    cache, budget = tmp_path / "cache", 3 * int(data.shard_nbytes.max())
    with (
        Watch(cache) as watch,
        reading(data, cache, budget, seed=1, epochs=6) as one,
        reading(data, cache, budget, seed=2, epochs=6) as two,
    ):
        outputs = [process.communicate()[0].splitlines() for process in (one, two)]
    assert [one.returncode, two.returncode] == [0, 0]
    for output in outputs:
        stats = json.loads(output[-1])
        assert stats["hits"] + stats["misses"] == 48
        assert stats["fetched"] + stats["bypassed"] <= 48 + 12
    assert watch.looks > 10
    assert 0 < watch.largest <= budget
    assert leftovers(cache) == []


def test_processes_that_read_the_same_order_fetch_each_shard_once(tmp_path: Path, data: StoredDataset) -> None:
    cache, budget = tmp_path / "cache", 2 * int(data.shard_nbytes.sum())
    with (
        reading(data, cache, budget, seed=1, epochs=1) as one,
        reading(data, cache, budget, seed=1, epochs=1) as two,
    ):
        stats = [json.loads(process.communicate()[0].splitlines()[-1]) for process in (one, two)]
    assert sum(each["fetched"] for each in stats) == 8
    assert sum(each["bypassed"] for each in stats) == 0


def test_two_jobs_of_two_processes_share_a_cache_of_three_shards(tmp_path: Path, data: StoredDataset) -> None:
    cache, budget = tmp_path / "cache", 3 * int(data.shard_nbytes.max())
    with Watch(cache) as watch, contextlib.ExitStack() as stack:
        started = [stack.enter_context(reading(data, cache, budget, seed=seed, epochs=5)) for seed in (1, 1, 2, 2)]
        outputs = [process.communicate()[0].splitlines() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0, 0]
    for output in outputs:
        shards = [int(line) for line in output[1:-1]]
        assert all(sorted(shards[low : low + 8]) == list(range(8)) for low in range(0, 40, 8))
        stats = json.loads(output[-1])
        assert stats["hits"] + stats["misses"] == 40
        assert stats["corrupt"] == 0
    assert watch.looks > 10
    assert 0 < watch.largest <= budget
    assert leftovers(cache) == []
    assert list((cache / "readers").iterdir()) == []


def test_kills_at_fifty_moments_leave_a_cache_that_the_next_run_uses(tmp_path: Path, data: StoredDataset) -> None:
    cache, budget = tmp_path / "cache", 3 * int(data.shard_nbytes.max())
    with Watch(cache) as watch:
        subprocess.run([sys.executable, str(KILLER), data.name, str(cache), str(budget), "50"], check=True, timeout=120)
    assert watch.largest <= budget
    store = open_store(data, CacheConfig(path=cache, budget=budget))
    assert leftovers(cache) == []
    assert len(list((cache / "readers").iterdir())) == 1  # the store's own
    for shard in range(data.num_shards):
        with store.open_shard(shard) as reader, data.open_shard(shard) as origin:
            for row in range(reader.rows):
                assert reader.read(row, "payload") == origin.read(row, "payload")
    assert store.stats()["hits"] >= 1
    assert store.stats()["corrupt"] == 0
    store.close()
    assert used_nbytes(cache) <= budget


def stop(process: subprocess.Popen[str]) -> None:
    """Stop a child, and return when it stands still: the signal alone takes effect some time later."""
    process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def test_a_stopped_fetcher_stops_nobody_else_and_its_death_frees_its_room(tmp_path: Path, data: StoredDataset) -> None:
    cache, budget = tmp_path / "cache", 3 * int(data.shard_nbytes.max())
    with reading(data, cache, budget, seed=0, epochs=1000) as stopped:
        for _ in range(5):
            line_of(stopped)
        stop(stopped)
        while is_locked(
            cache / "forebay-cache.lock"
        ):  # possible, and costs others 10 s a shard: not worth a test's time
            stopped.send_signal(signal.SIGCONT)
            stop(stopped)
        for part in leftovers(cache):
            os.utime(part, (0, 0))  # as if it had been stopped for long
        with reading(data, cache, budget, seed=5, epochs=2) as other:
            output = other.communicate()[0].splitlines()
        assert other.returncode == 0
        assert len(output) == 1 + 16 + 1
    open_store(data, CacheConfig(path=cache, budget=budget)).close()
    assert leftovers(cache) == []


def test_an_interrupt_leaves_no_unfinished_file(tmp_path: Path, data: StoredDataset) -> None:
    cache, budget = tmp_path / "cache", 3 * int(data.shard_nbytes.max())
    for shards_read in (0, 1, 2, 5, 9):
        with reading(data, cache, budget, seed=shards_read, epochs=1000) as process:
            for _ in range(1 + shards_read):
                line_of(process)
            process.send_signal(signal.SIGINT)
            process.communicate()
        assert process.returncode == -signal.SIGINT
        assert leftovers(cache) == []


def with_mounts(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a shell script that may mount: the reading program is in "$@"; skip where that is not allowed."""
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*own_mounts, "true"], check=False).returncode != 0:
        pytest.skip("needs a mount namespace of its own for a small disk")
    command = [*own_mounts, "sh", "-ec", script, sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_a_full_disk_is_a_smaller_budget(tmp_path: Path, data: StoredDataset) -> None:
    room = int(2.5 * int(data.shard_nbytes.max()))
    cache = tmp_path / "cache"
    cache.mkdir()
    done = with_mounts(
        f'mount -t tmpfs -o size={room} none \'{cache}\'; exec "$0" "$@"', data.name, cache, 100 * room, 1, 3
    )
    stats = json.loads(done.stdout.splitlines()[-1])
    assert stats["hits"] + stats["misses"] == 24
    assert stats["fetched"] >= 2
    assert done.stderr.count("is full before the budget") == 1


def test_a_disk_of_20_megabytes_that_others_fill_meanwhile_is_told_once_and_every_sample_is_right(
    tmp_path: Path, make_dataset: Callable[..., StoredDataset]
) -> None:
    data = make_dataset(shards=12, rows=4, nbytes=1_000_000)
    cache = tmp_path / "cache"
    cache.mkdir()
    script = (
        f"mount -t tmpfs -o size=20m none '{cache}'\n"
        'mkfifo PIPE; "$0" "$@" > PIPE & reader=$!\n'
        f"( head -n 4; head -c 30m /dev/zero > '{cache}/others' || true; cat ) < PIPE\n"
        "wait $reader\n"
    )
    done = with_mounts(script.replace("PIPE", str(tmp_path / "pipe")), data.name, cache, 10**9, 1, 4)
    stats = json.loads(done.stdout.splitlines()[-1])
    assert stats["hits"] + stats["misses"] == 48
    assert stats["corrupt"] == 0
    assert done.stderr.count("is full before the budget") == 1


def test_a_cache_that_is_begun_on_a_full_disk_is_one_when_there_is_room(tmp_path: Path, data: StoredDataset) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (
        f"mount -t tmpfs -o size=30m none '{disk}'\n"
        f"head -c 31m /dev/zero > '{disk}/others' || true\n"
        f'"$0" "$@"; "$0" "$@"; rm \'{disk}/others\'; "$0" "$@"\n'
    )
    done = with_mounts(script, data.name, disk / "cache", 10**9, 1, 3)
    stats = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [each["hits"] + each["misses"] for each in stats] == [24] * 3
    assert [each["fetched"] > 0 for each in stats] == [False, False, True]
    assert done.stderr.count("is full before the budget") == 2
    assert "removed while it was in use" not in done.stderr


@pytest.mark.parametrize("filled", [True, False])
def test_a_read_only_folder_serves_what_it_has_and_the_rest_is_read_from_the_source(
    tmp_path: Path, data: StoredDataset, filled: bool
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    if filled:
        store = open_store(data, CacheConfig(path=cache))
        for shard in range(5):
            store.open_shard(shard).close()
        store.close()
    done = with_mounts(f"mount --bind -o ro '{cache}' '{cache}'; exec \"$0\" \"$@\"", data.name, cache, 10**9, 1, 2)
    stats = json.loads(done.stdout.splitlines()[-1])
    assert stats["hits"] == (10 if filled else 0)
    assert stats["bypassed"] == 16 - stats["hits"]
    assert done.stderr.count("cannot be written to") == 1


def test_a_folder_removed_at_any_moment_is_made_again_and_every_sample_is_right(
    tmp_path: Path, data: StoredDataset
) -> None:
    cache, budget = tmp_path / "cache", 3 * int(data.shard_nbytes.max())
    with reading(data, cache, budget, seed=0, epochs=30) as process:
        for _ in range(12):
            for _ in range(7):
                line_of(process)
            shutil.rmtree(cache, ignore_errors=True)  # the reader may make it again meanwhile
        output, warnings = process.communicate()
    assert process.returncode == 0, warnings
    stats = json.loads(output.splitlines()[-1])
    assert stats["hits"] + stats["misses"] == 240
    assert warnings.count("made again") == 1
    open_store(data, CacheConfig(path=cache, budget=budget)).close()
    assert leftovers(cache) == []


def test_a_script_that_closes_nothing_still_ends(tmp_path: Path, data: StoredDataset) -> None:
    script = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from forebay.cache import CacheConfig, open_store; from forebay.sharding import EpochOrder, open_dataset\n"
        "data = open_dataset(sys.argv[1])\n"
        "store = open_store(data, CacheConfig(path=Path(sys.argv[2])))\n"
        "order = EpochOrder(data.shard_rows, fingerprint=data.fingerprint, seed=0, epoch=0, shuffle=True)\n"
        "store.follow(order)\n"
    )
    subprocess.run([sys.executable, "-c", script, data.name, str(tmp_path / "cache")], timeout=60, check=True)
    assert leftovers(tmp_path / "cache") == []
