from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from forebay.benchmarks.range_server import Fault, RangeServer, Request
from forebay.cache import CacheConfig, RemoteConfig, ShardStore, open_place, open_store
from forebay.errors import ClosedError, ShardCorruptError, SourceError
from forebay.sharding import ShardSpan, StoredDataset
from tests.cache.on_disk import shard_files
from tests.cache.remote import IMPATIENT, QUICK, check_rows, check_shard, one_in, told

MakeDataset = Callable[..., StoredDataset]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    with RangeServer(tmp_path, silence_s=60) as running:
        yield running


@pytest.fixture
def local(make_dataset: MakeDataset) -> StoredDataset:
    return make_dataset()


@pytest.fixture
def open_cached(server: RangeServer, tmp_path: Path, local: StoredDataset) -> Iterator[Callable[..., ShardStore]]:
    stores: list[ShardStore] = []

    def open_one(shards: float = 100, config: RemoteConfig = QUICK) -> ShardStore:
        budget = int(shards * int(local.shard_nbytes.max()))
        cache = CacheConfig(path=tmp_path / "cache", budget=budget)
        stores.append(open_store(open_place(f"{server.url}/data", config), cache))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


class GivenOrder:
    """Shards in a given order, each used for as long as the next `window` shards. Conforms to the cache's `Order`."""

    def __init__(self, data: StoredDataset, order: list[int], window: int) -> None:
        self.samples = data.rows
        self._order = order
        self._starts = {shard: int(data.shard_rows[order[:i]].sum()) for i, shard in enumerate(order)}
        self._ends = {shard: int(data.shard_rows[order[: i + window]].sum()) for i, shard in enumerate(order)}

    def spans(self, start: int = 0) -> Iterator[ShardSpan]:
        starts, ends = self._starts, self._ends
        return (ShardSpan(s, max(starts[s], start), ends[s]) for s in self._order if ends[s] > start)

    def next_use(self, shards: npt.NDArray[np.int64], position: int) -> npt.NDArray[np.int64]:
        starts, ends = self._starts, self._ends
        uses = [max(starts[s], position) if position < ends.get(s, 0) else self.samples for s in shards.tolist()]
        return np.array(uses, np.int64)

    def following(self) -> GivenOrder:
        return self


def follow(store: ShardStore, data: StoredDataset, order: list[int], *, window: int = 1) -> None:
    store.follow(GivenOrder(data, order, window))


def read_epoch(store: ShardStore, local: StoredDataset, order: list[int]) -> None:
    follow(store, local, order)
    position = 0
    for shard in order:
        store.advance(position)
        check_shard(store.open_shard(shard), local, shard)
        position += int(local.shard_rows[shard])


def files_of(tmp_path: Path) -> list[str]:
    return [file.name for file in shard_files(tmp_path / "cache")]


def test_a_cold_epoch_asks_for_each_byte_once(
    server: RangeServer, local: StoredDataset, open_cached: Callable[..., ShardStore], tmp_path: Path
) -> None:
    store = open_cached()
    follow(store, local, list(range(6)), window=6)
    readers = store.open_shards([3, 1, 5])
    for reader, shard in zip(readers, (3, 1, 5), strict=True):
        with reader, local.open_shard(shard) as origin:
            check_rows(reader, origin, [2, 0])
    for shard in range(6):
        check_shard(store.open_shard(shard), local, shard)
    store.close()
    asked = sum(request.end - request.begin for request in server.requests if "000" in request.path)
    assert asked <= 1.02 * local.manifest.nbytes
    assert store.stats()["requested_nbytes"] == asked
    assert not [name for name in files_of(tmp_path) if name.endswith(".part")]


def test_samples_are_read_while_the_rest_of_their_shard_is_on_its_way(
    server: RangeServer, local: StoredDataset, open_cached: Callable[..., ShardStore], tmp_path: Path
) -> None:
    store = open_cached()
    with local.open_shard(4) as origin:
        offset, nbytes, _ = origin.places(2, "payload")
    footer = int(local.shard_nbytes[4] - local.footer_nbytes[4])
    held = threading.Event()

    def hold_up_all_but_the_sample(request: Request) -> Fault | None:
        of_sample = request.begin < offset + nbytes and offset < request.end
        return None if of_sample or request.end > footer or held.is_set() else Fault.ERROR_503

    server.fault = hold_up_all_but_the_sample
    with told("trying again", times=2) as held_up:
        follow(store, local, [4], window=1)
        reader = store.open_shard(4)
        assert held_up.wait(30)
        with local.open_shard(4) as origin:
            assert reader.read(2, "payload") == origin.read(2, "payload")
        assert not [name for name in files_of(tmp_path) if not name.endswith(".part")]
        held.set()
        check_shard(reader, local, 4)


def test_what_was_fetched_is_whole_for_the_next_store(
    local: StoredDataset, server: RangeServer, open_cached: Callable[..., ShardStore]
) -> None:
    first = open_cached()
    read_epoch(first, local, [0, 1, 2, 3, 4, 5])
    wait_until_fetched(first, 6)
    first.close()
    before = len(server.requests)
    second = open_cached()
    read_epoch(second, local, [3, 0, 5, 1, 2, 4])
    assert second.stats()["hits"] == 6
    assert {request.path for request in server.requests[before:]} == {"data/manifest.json", "data/index.arrow"}


def wait_until_fetched(store: ShardStore, shards: int) -> None:
    tick = threading.Event()
    while store.stats()["fetched"] < shards:
        tick.wait(0.005)


@pytest.mark.parametrize(
    "faults",
    [(Fault.ERROR_500, Fault.ERROR_503), (Fault.CUT, Fault.SHORT), (Fault.FLIP,), (Fault.SILENT,)],
    ids=lambda faults: "+".join(fault.name for fault in faults),
)
@pytest.mark.parametrize("shards", [100, 3, 0.5])
def test_faults_change_no_byte(
    shards: float,
    faults: tuple[Fault, ...],
    server: RangeServer,
    local: StoredDataset,
    open_cached: Callable[..., ShardStore],
) -> None:
    store = open_cached(shards)
    server.fault = one_in(7, *faults)
    read_epoch(store, local, [4, 1, 0, 5, 3, 2])
    read_epoch(store, local, [0, 1, 2, 3, 4, 5])


def test_a_damaged_shard_is_an_error_that_names_the_sample(
    server: RangeServer, tmp_path: Path, local: StoredDataset, open_cached: Callable[..., ShardStore]
) -> None:
    store = open_cached()
    with local.open_shard(2) as origin:
        offset, _, _ = origin.places(1, "payload")
    path = tmp_path / "data" / local.shard_name(2)
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    follow(store, local, [0, 1, 2, 3])
    with store.open_shard(2) as reader:
        with pytest.raises(ShardCorruptError, match=r"row 1, column 'payload'"):
            reader.read(1, "payload")
        reader.read(0, "payload")
    check = store.open_shard(3)
    check.close()


def test_closing_ends_a_read_that_waits_and_leaves_no_unfinished_file(
    server: RangeServer, tmp_path: Path, local: StoredDataset, open_cached: Callable[..., ShardStore]
) -> None:
    store = open_cached()
    silent = threading.Event()

    def fall_silent(_: object) -> Fault:
        silent.set()
        return Fault.SILENT

    server.fault = fall_silent
    follow(store, local, [0, 1])
    raised: list[BaseException] = []

    def read() -> None:
        try:
            store.open_shard(0)
        except ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert silent.wait(20)
    store.close()
    thread.join()
    assert raised
    assert files_of(tmp_path) == []


def test_a_dead_server_is_an_error_and_costs_no_hang(
    tmp_path: Path, local: StoredDataset, open_cached: Callable[..., ShardStore], server: RangeServer
) -> None:
    store = open_cached(config=IMPATIENT)
    server.fault = lambda _: Fault.ERROR_503
    follow(store, local, [0, 1, 2])
    with pytest.raises(SourceError, match="tries failed within"):
        store.open_shard(0)
    server.fault = lambda _: None
    check_shard(store.open_shard(0), local, 0)


def test_what_is_removed_from_the_cache_is_fetched_again(
    tmp_path: Path, local: StoredDataset, open_cached: Callable[..., ShardStore]
) -> None:
    store = open_cached()
    read_epoch(store, local, [0, 1, 2, 3, 4, 5])
    wait_until_fetched(store, 6)
    for path in (tmp_path / "cache").glob("*/*.arrow"):
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 1
        path.write_bytes(content)
    read_epoch(store, local, [5, 4, 3, 2, 1, 0])


def test_without_a_plan_a_shard_is_fetched_whole(local: StoredDataset, open_cached: Callable[..., ShardStore]) -> None:
    store = open_cached()
    check_shard(store.open_shard(1), local, 1)
    assert store.stats()["fetched"] == 1
    check_shard(store.open_shard(1), local, 1)
    assert store.stats()["hits"] == 1


def test_two_stores_share_what_comes(local: StoredDataset, open_cached: Callable[..., ShardStore]) -> None:
    first, second = open_cached(), open_cached()
    orders = ([0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4])
    threads = [
        threading.Thread(target=read_epoch, args=(store, local, order))
        for store, order in zip((first, second), orders, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fetched = first.stats()["fetched"] + second.stats()["fetched"]
    assert fetched <= 6


def test_a_shard_that_another_store_fetches_is_read_meanwhile_and_from_its_copy_then(
    server: RangeServer, local: StoredDataset, open_cached: Callable[..., ShardStore], tmp_path: Path
) -> None:
    first, second = open_cached(), open_cached()
    released = threading.Event()

    def hold_up_the_first_sample(request: Request) -> Fault | None:
        return Fault.ERROR_503 if request.begin == 0 and "0000" in request.path and not released.is_set() else None

    server.fault = hold_up_the_first_sample
    with told("trying again") as held_up:
        follow(first, local, [0])
        assert held_up.wait(30)
    follow(second, local, [0])
    reader = second.open_shard(0)
    with local.open_shard(0) as origin:
        assert reader.read(3, "payload") == origin.read(3, "payload")
    released.set()
    wait_until_fetched(first, 1)
    asked = second.stats()["requests"]
    check_shard(reader, local, 0)
    assert second.stats()["requests"] == asked


def test_a_copy_that_rots_while_it_is_open_is_read_from_the_source(
    local: StoredDataset, open_cached: Callable[..., ShardStore], tmp_path: Path
) -> None:
    store = open_cached()
    follow(store, local, [2])
    reader = store.open_shard(2)
    wait_until_fetched(store, 1)
    assert reader.fileno() >= 0
    path = next((tmp_path / "cache").glob("*/*.arrow"))
    content = bytearray(path.read_bytes())
    content[: int(local.shard_nbytes[2] - local.footer_nbytes[2])] = bytes(
        int(local.shard_nbytes[2] - local.footer_nbytes[2])
    )
    path.write_bytes(content)
    check_shard(reader, local, 2)
