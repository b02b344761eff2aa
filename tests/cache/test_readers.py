"""Readers' files: what one reader tells the others, and what is made of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from forebay.cache import CacheConfig
from forebay.cache.catalogue import Catalogue
from forebay.cache.folder import CacheFolder
from forebay.cache.future import until_next_use
from forebay.cache.locks import folder_lock
from forebay.cache.marker import LOCK
from forebay.cache.plan import UNUSED
from forebay.cache.reader_file import SUFFIX, OrderSettings, ReaderFile, Reading, read_reader_file
from forebay.cache.readers import Reader, Readers
from forebay.sharding import NodeOrder, StoredDataset
from tests.cache.orders import epoch_order

MakeDataset = Callable[..., StoredDataset]

READING = Reading(
    fingerprint="ab" * 16,
    sample_nbytes=100,
    order=OrderSettings(seed=-(2**70), epoch=3, shuffle=True, window=64),
    position=12,
)


def open_folder(path: Path) -> CacheFolder:
    return CacheFolder(CacheConfig(path=path, min_free=0), path)


def enter(folder: CacheFolder, data: StoredDataset) -> Reader:
    return folder.enter(data, stop=threading.Event())


def follow(folder: CacheFolder, reader: Reader, data: StoredDataset, seed: int, position: int = 0) -> None:
    folder.follow(reader, epoch_order(data, seed), position, stop=threading.Event())


def reader_files(path: Path) -> list[Path]:
    return sorted((path / "readers").iterdir())


def as_another_process(path: Path) -> Readers:
    """The readers of a folder, as whoever else evicts there sees them."""
    return Readers(path, Catalogue(path))


def test_a_living_reader_is_understood(tmp_path: Path) -> None:
    file = ReaderFile(tmp_path, READING)
    assert read_reader_file(file.path) == READING
    file.move(10**12)
    moved = read_reader_file(file.path)
    assert moved is not None
    assert moved.position == 10**12
    unplanned = Reading(fingerprint="cd" * 16, sample_nbytes=1, order=None)
    other = ReaderFile(tmp_path, unplanned)
    assert read_reader_file(other.path) == unplanned
    other.close()
    file.close()
    assert list(tmp_path.iterdir()) == []


ORDER = {"seed": 0, "epoch": 0, "shuffle": True, "window": 1, "node": 0, "nodes": 1}
GOOD = {"version": 1, "fingerprint": "ab" * 16, "sample_nbytes": 1, "order": None}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"0" * 20,
        b"0" * 20 + b"\n[]",
        b"0" * 20 + b"\nnull",
        b"[" * 5000,
        b"-" + b"0" * 19 + b"\n" + json.dumps(GOOD).encode(),
        b"9" * 20 + b"\n" + json.dumps(GOOD).encode(),
        *(
            b"0" * 20 + b"\n" + json.dumps(GOOD | wrong).encode()
            for wrong in (
                {"version": 2},
                {"fingerprint": "../../etc/passwd"},
                {"sample_nbytes": 0},
                {"sample_nbytes": 1 << 70},
                {"order": 7},
                {"order": {"seed": 0, "epoch": 0, "shuffle": True}},
                {"order": ORDER | {"window": 0}},
                {"order": ORDER | {"seed": 0.5}},
                {"order": ORDER | {"node": -1}},
                {"order": ORDER | {"nodes": 0}},
            )
        ),
    ],
)
def test_nonsense_under_a_lock_is_no_reader(tmp_path: Path, content: bytes) -> None:
    file = ReaderFile(tmp_path, READING)
    file.path.write_bytes(content)
    assert read_reader_file(file.path) is None
    file.close()


def test_a_shard_is_needed_in_this_epoch_or_else_in_the_next(make_dataset: MakeDataset) -> None:
    data = make_dataset()
    order = epoch_order(data, 5)
    shards = [span.shard for span in order.spans()]
    following = {span.shard: span.first for span in epoch_order(data, 5, epoch=1).spans()}
    position = 2 * 4  # two shards of four rows have been read
    until = until_next_use(order, np.arange(6), position).tolist()
    for place, shard in enumerate(shards):
        assert until[shard] == (4 * place - position if place >= 2 else data.rows - position + following[shard])


def test_a_shard_is_needed_when_the_first_of_all_readers_needs_it(tmp_path: Path, make_dataset: MakeDataset) -> None:
    data = make_dataset()
    folder = open_folder(tmp_path / "cache")
    readers = [enter(folder, data), enter(folder, data)]
    follow(folder, readers[0], data, 1)
    follow(folder, readers[1], data, 2, position=8)
    keys = [(data.fingerprint, data.shard_name(shard)) for shard in range(6)]
    nbytes = data.manifest.nbytes // data.rows
    soonest = np.minimum(
        until_next_use(epoch_order(data, 1), np.arange(6), 0), until_next_use(epoch_order(data, 2), np.arange(6), 8)
    )
    assert as_another_process(folder.path).next_uses(keys) == (soonest * nbytes).tolist()
    readers[0].advance(12)
    readers[1].close()
    alone = until_next_use(epoch_order(data, 1), np.arange(6), 12) * nbytes
    assert as_another_process(folder.path).next_uses(keys) == alone.tolist()
    readers[0].close()
    assert as_another_process(folder.path).next_uses(keys) == [UNUSED] * 6


def test_others_know_that_a_node_needs_its_own_shards_alone(tmp_path: Path, make_dataset: MakeDataset) -> None:
    data = make_dataset()
    folder = open_folder(tmp_path / "cache")
    reader = enter(folder, data)
    order = NodeOrder(epoch_order(data, 1), node=1, nodes=2)
    folder.follow(reader, order, 8, stop=threading.Event())
    keys = [(data.fingerprint, data.shard_name(shard)) for shard in range(6)]
    expected = until_next_use(order, np.arange(6), 8) * (data.manifest.nbytes // data.rows)
    assert as_another_process(folder.path).next_uses(keys) == expected.tolist()
    reader.close()


def test_readers_of_two_data_sets_are_compared_by_the_bytes_that_they_read_before(
    tmp_path: Path, make_dataset: MakeDataset
) -> None:
    small, large = make_dataset("small", nbytes=500), make_dataset("large", nbytes=5000, seed=1)
    folder = open_folder(tmp_path / "cache")
    readers = [enter(folder, small), enter(folder, large)]
    for reader, data in zip(readers, (small, large), strict=True):
        folder.follow(reader, epoch_order(data), 0, stop=threading.Event())
    keys = [(data.fingerprint, data.shard_name(1)) for data in (small, large)]
    uses = as_another_process(folder.path).next_uses(keys)
    assert uses == [4 * (data.manifest.nbytes // data.rows) for data in (small, large)]
    for reader in readers:
        reader.close()


def test_shards_read_in_an_unknown_order_are_an_epoch_away_and_strange_files_are_unused(
    tmp_path: Path, make_dataset: MakeDataset
) -> None:
    data = make_dataset()
    folder = open_folder(tmp_path / "cache")
    reader = enter(folder, data)
    keys = [(data.fingerprint, data.shard_name(0)), (data.fingerprint, "stranger"), ("f" * 32, data.shard_name(0))]
    epoch = data.rows * (data.manifest.nbytes // data.rows)
    assert as_another_process(folder.path).next_uses(keys) == [epoch, UNUSED, UNUSED]
    reader.close()


def test_a_reader_touches_its_file_under_the_lock_of_the_folder_alone(
    tmp_path: Path, make_dataset: MakeDataset
) -> None:
    data = make_dataset()
    folder = open_folder(tmp_path / "cache")
    reader = enter(folder, data)
    stop = threading.Event()
    with folder_lock(tmp_path / "cache" / LOCK, stop=stop):
        before = [(path, path.read_bytes()) for path in reader_files(tmp_path / "cache")]
        steps = [
            threading.Thread(target=folder.enter, args=[data], kwargs={"stop": stop}),
            threading.Thread(target=folder.follow, args=[reader, epoch_order(data), 0], kwargs={"stop": stop}),
        ]
        for step in steps:
            step.start()
            step.join(0.1)
            assert step.is_alive()  # it waits for the lock
        assert [(path, path.read_bytes()) for path in reader_files(tmp_path / "cache")] == before
    for step in steps:
        step.join()
    assert [(path, path.read_bytes()) for path in reader_files(tmp_path / "cache")] != before
    reader.close()


def test_a_reader_whose_folder_cannot_be_locked_says_nothing_rather_than_what_is_not_so(
    tmp_path: Path, make_dataset: MakeDataset
) -> None:
    data = make_dataset()
    folder = open_folder(tmp_path / "cache")
    reader = enter(folder, data)
    (tmp_path / "cache" / LOCK).unlink()
    (tmp_path / "cache" / LOCK).mkdir()
    follow(folder, reader, data, seed=1)
    assert reader_files(tmp_path / "cache") == []
    (tmp_path / "cache" / LOCK).rmdir()
    follow(folder, reader, data, seed=2)
    assert len(reader_files(tmp_path / "cache")) == 1
    reader.close()


def test_a_killed_reader_does_not_count_and_the_next_opener_removes_its_file(
    tmp_path: Path, make_dataset: MakeDataset
) -> None:
    data = make_dataset()
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from forebay.cache import CacheConfig, open_store; from forebay.sharding import open_dataset\n"
        "store = open_store(open_dataset(sys.argv[1]), CacheConfig(path=Path(sys.argv[2])))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, data.name, str(tmp_path / "cache")], check=False, timeout=60)
    assert len(reader_files(tmp_path / "cache")) == 1
    keys = [(data.fingerprint, data.shard_name(0))]
    assert as_another_process(tmp_path / "cache").next_uses(keys) == [UNUSED]
    open_folder(tmp_path / "cache")
    assert reader_files(tmp_path / "cache") == []


def test_a_forked_child_keeps_no_dead_reader_alive(tmp_path: Path) -> None:
    file = ReaderFile(tmp_path, READING)
    told, waits = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(told[1], b"x")
        os.read(waits[0], 1)  # lives on while the parent looks
        os._exit(0)
    os.read(told[0], 1)
    path = file.path
    file.close.detach()
    os.close(file._fd)  # as the death of the parent does: without LOCK_UN
    assert read_reader_file(path) is None
    os.write(waits[1], b"x")
    os.waitpid(child, 0)
    for fd in (*told, *waits):
        os.close(fd)


def test_a_reader_that_nobody_has_any_more_is_gone(tmp_path: Path, make_dataset: MakeDataset) -> None:
    folder = open_folder(tmp_path / "cache")
    enter(folder, make_dataset())
    assert len(reader_files(tmp_path / "cache")) == 1
    del folder
    assert reader_files(tmp_path / "cache") == []


def test_a_data_set_is_written_down_as_long_as_its_shards_or_readers_are_there(
    tmp_path: Path, make_dataset: MakeDataset
) -> None:
    data = make_dataset()
    folder = open_folder(tmp_path / "cache")
    reader = enter(folder, data)
    known = Catalogue(tmp_path / "cache")
    assert known.origin(data.fingerprint) == data.name
    found = known.get(data.fingerprint)
    assert found is not None
    assert found.shard_checksums.tolist() == data.shard_checksums.tolist()
    open_folder(tmp_path / "cache")
    assert Catalogue(tmp_path / "cache").get(data.fingerprint) is not None
    reader.close()
    open_folder(tmp_path / "cache")
    assert Catalogue(tmp_path / "cache").get(data.fingerprint) is None


def test_what_is_written_down_counts_and_is_never_more_than_a_thousandth_of_the_budget(
    tmp_path: Path, make_dataset: MakeDataset
) -> None:
    data = make_dataset()
    known = Catalogue(tmp_path / "cache")
    known.keep(data, budget=10**6)
    assert known.nbytes() == 0
    known.keep(data, budget=10**7)
    assert known.nbytes() == sum(file.stat().st_size for file in (tmp_path / "cache").glob("datasets/*/*")) > 0


def test_a_data_set_that_is_written_down_wrongly_is_not_known(tmp_path: Path, make_dataset: MakeDataset) -> None:
    data, other = make_dataset(), make_dataset("other", seed=1)
    Catalogue(tmp_path / "cache").keep(data, budget=10**9)
    datasets = tmp_path / "cache" / "datasets"
    (datasets / data.fingerprint).rename(datasets / other.fingerprint)
    assert Catalogue(tmp_path / "cache").get(other.fingerprint) is None
    assert Catalogue(tmp_path / "cache").get("../other") is None


def test_only_files_of_readers_are_looked_at(tmp_path: Path) -> None:
    open_folder(tmp_path / "cache")
    (tmp_path / "cache" / "readers").mkdir(exist_ok=True)
    (tmp_path / "cache" / "readers" / "notes.txt").write_text("mine")
    (tmp_path / "cache" / "readers" / f"1-0{SUFFIX}").write_text("left over")
    open_folder(tmp_path / "cache")
    assert [file.name for file in reader_files(tmp_path / "cache")] == ["notes.txt"]
