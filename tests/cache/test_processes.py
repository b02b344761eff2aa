"""Real processes on one cache folder, ended by real signals."""

from __future__ import annotations

import json
import os
import random
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

PROGRAM = Path(__file__).with_name("reading_process.py")


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


def used_nbytes(cache: Path) -> int:
    """Bytes of shard files, unfinished ones included. One that moves meanwhile may be missed; none counts twice."""
    total = 0
    seen = set()
    for file in cache.glob("*/*"):
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        if status.st_ino not in seen:
            seen.add(status.st_ino)
            total += status.st_size
    return total


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


def leftovers(cache: Path) -> list[Path]:
    return list(cache.glob("*/*.part"))


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


def test_a_kill_at_any_moment_leaves_a_cache_that_the_next_run_uses(tmp_path: Path, data: StoredDataset) -> None:
    cache, budget = tmp_path / "cache", 3 * int(data.shard_nbytes.max())
    rng = random.Random(0)
    with Watch(cache) as watch:
        for round_number in range(15):
            with reading(data, cache, budget, seed=round_number, epochs=1000) as process:
                assert line_of(process) == "ready"
                for _ in range(rng.randrange(30)):
                    assert line_of(process).isdigit()
                threading.Event().wait(rng.random() * 0.01)  # the moment of the kill is what varies
                process.send_signal(signal.SIGKILL)
                process.wait()
    assert watch.largest <= budget
    store = open_store(data, CacheConfig(path=cache, budget=budget))
    assert leftovers(cache) == []
    for shard in range(data.num_shards):
        with store.open_shard(shard) as reader, data.open_shard(shard) as origin:
            for row in range(reader.rows):
                assert reader.read(row, "payload") == origin.read(row, "payload")
    assert store.stats()["hits"] >= 1
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


def test_a_full_disk_is_a_smaller_budget(tmp_path: Path, data: StoredDataset) -> None:
    room = int(2.5 * int(data.shard_nbytes.max()))
    cache = tmp_path / "cache"
    cache.mkdir()
    mounted = f'mount -t tmpfs -o size={room} none \'{cache}\' && exec "$0" "$@"'
    command = [sys.executable, str(PROGRAM), data.name, str(cache), str(100 * room), "1", "3"]
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*own_mounts, "true"], check=False).returncode != 0:
        pytest.skip("needs a mount namespace of its own for a small disk")
    done = subprocess.run([*own_mounts, "sh", "-c", mounted, *command], capture_output=True, text=True, check=True)
    stats = json.loads(done.stdout.splitlines()[-1])
    assert stats["hits"] + stats["misses"] == 24
    assert stats["fetched"] >= 2
    assert done.stderr.count("is full before the budget") == 1


def test_a_script_that_closes_nothing_still_ends(tmp_path: Path, data: StoredDataset) -> None:
    script = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from forebay.cache import CacheConfig, open_store; from forebay.sharding import EpochOrder, open_dataset\n"
        "data = open_dataset(sys.argv[1])\n"
        "store = open_store(data, CacheConfig(path=Path(sys.argv[2])))\n"
        "order = EpochOrder(data.shard_rows, fingerprint=data.fingerprint, seed=0, epoch=0, shuffle=True)\n"
        "store.follow(order.spans(), order.next_use)\n"
    )
    subprocess.run([sys.executable, "-c", script, data.name, str(tmp_path / "cache")], timeout=60, check=True)
    assert leftovers(tmp_path / "cache") == []
