from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay.benchmarks.range_server import Fault, RangeServer
from forebay.cache import RemoteConfig, RemoteSource, ShardStore, open_place, open_store
from forebay.errors import ClosedError, ConfigError, ManifestError, ShardCorruptError, SourceError
from forebay.sharding import StoredDataset, bring_near
from tests.cache.remote import IMPATIENT, QUICK, check_shard, one_in, told

MakeDataset = Callable[..., StoredDataset]
CONTENT = bytes(range(256)) * 40


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    with RangeServer(tmp_path, silence_s=60) as running:
        yield running


def remote(server: RangeServer, config: RemoteConfig = QUICK, name: str = "data") -> StoredDataset:
    return open_place(f"{server.url}/{name}/", config)


@pytest.fixture
def store(server: RangeServer, make_dataset: MakeDataset) -> Iterator[ShardStore]:
    make_dataset()
    opened = open_store(remote(server), None)
    yield opened
    opened.close()


class TestFilesOverHttp:
    def test_a_read_gives_exactly_the_bytes_asked_for(self, server: RangeServer, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(CONTENT)
        file = RemoteSource(server.url, QUICK).open("file")
        assert file.nbytes == len(CONTENT)
        assert file.read(0, len(CONTENT)) == CONTENT
        assert file.read(300, 17) == CONTENT[300:317]
        assert bytes(file.read(len(CONTENT), 0)) == b""
        assert file.fileno() == -1
        view = file.read(5, 100)
        file.close()
        file.close()
        assert view.readonly
        assert view == CONTENT[5:105]
        with pytest.raises(ClosedError):
            file.read(0, 1)

    def test_a_read_past_the_end_is_an_error_that_names_the_file(self, server: RangeServer, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(CONTENT)
        file = RemoteSource(server.url, QUICK).open("file")
        for offset, nbytes in ((len(CONTENT) - 1, 2), (-1, 1)):
            with pytest.raises(SourceError, match="file of http"):
                file.read(offset, nbytes)

    @pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../secret", "", ".", "a\0b"])
    def test_a_path_that_leaves_the_place_is_refused(self, server: RangeServer, path: str) -> None:
        with pytest.raises(SourceError, match="not a path"):
            RemoteSource(server.url, QUICK).open(path)

    def test_a_missing_file_is_named_at_once(self, server: RangeServer) -> None:
        with pytest.raises(SourceError, match=r"absent.*no such file") as caught:
            RemoteSource(server.url, QUICK).open("absent")
        assert caught.value.missing

    def test_ranges_of_many_files_come_together_and_near_ones_as_one(self, server: RangeServer, tmp_path: Path) -> None:
        for name in "abc":
            (tmp_path / name).write_bytes(CONTENT)
        source = RemoteSource(server.url, QUICK)
        files = [source.open_sized(name, len(CONTENT)) for name in "abc"]
        bring_near([(file, offset, 100) for file in files for offset in (0, 200, 5000)])
        asked = sorted((request.path, request.begin, request.end) for request in server.requests)
        assert asked == [(name, *bounds) for name in "abc" for bounds in ((0, 300), (5000, 5100))]
        for file in files:
            for offset in (0, 200, 5000):
                assert file.read(offset, 100) == CONTENT[offset : offset + 100]
        assert len(server.requests) == 6, "what was brought near was not asked for again"

    def test_no_more_connections_than_configured(self, server: RangeServer, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(CONTENT * 20)
        server.delay_s = 0.01
        file = RemoteSource(server.url, RemoteConfig(connections=3, merge_nbytes=0)).open("file")
        bring_near([(file, 1000 * i, 10) for i in range(60)])
        assert server.most_at_once <= 3

    def test_it_works_where_an_event_loop_runs_already(self, server: RangeServer, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(CONTENT)

        async def in_a_notebook() -> bytes:
            return bytes(RemoteSource(server.url, QUICK).open("file").read(3, 4))

        assert asyncio.run(in_a_notebook()) == CONTENT[3:7]

    def test_a_source_pickles(self, server: RangeServer, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(CONTENT)
        again = pickle.loads(pickle.dumps(RemoteSource(server.url, QUICK)))  # noqa: S301
        assert again.config == QUICK
        assert again.open("file").read(0, 9) == CONTENT[:9]


class TestDataSetsOverHttp:
    def test_opening_reads_manifest_and_index_and_no_shard(
        self, server: RangeServer, make_dataset: MakeDataset
    ) -> None:
        local = make_dataset()
        data = remote(server)
        assert data.fingerprint == local.fingerprint
        assert {request.path for request in server.requests} == {"data/manifest.json", "data/index.arrow"}

    def test_samples_are_read_by_ranges_and_no_size_is_asked_for(
        self, server: RangeServer, make_dataset: MakeDataset, store: ShardStore
    ) -> None:
        local = make_dataset("same")
        before = len(server.requests)
        reader = store.open_shard(2)
        reader.read(1, "payload")
        reader.close()
        with local.open_shard(2) as origin:
            offset, nbytes, _ = origin.places(1, "payload")
        end = int(local.shard_nbytes[2])
        asked = [(request.begin, request.end) for request in server.requests[before:]]
        assert asked == [(end - int(local.footer_nbytes[2]), end), (offset, offset + nbytes)]

    def test_all_rows_are_those_of_the_folder(self, make_dataset: MakeDataset, store: ShardStore) -> None:
        local = make_dataset("same")
        for shard, reader in enumerate(store.open_shards(range(local.num_shards))):
            check_shard(reader, local, shard)
        assert store.stats()["misses"] == local.num_shards
        assert store.stats()["requested_nbytes"] > 0

    def test_a_place_without_a_manifest_says_so(self, server: RangeServer) -> None:
        with pytest.raises(ManifestError, match="no data set"):
            remote(server)

    def test_after_the_store_is_closed_nothing_is_read(self, store: ShardStore) -> None:
        reader = store.open_shard(0)
        store.close()
        with pytest.raises(ClosedError):
            reader.read(0, "payload")
        with pytest.raises(ClosedError):
            store.open_shard(1)
        reader.close()

    def test_closing_the_store_ends_a_read_that_waits(self, server: RangeServer, store: ShardStore) -> None:
        reader = store.open_shard(0)
        silent = threading.Event()

        def fall_silent(_: object) -> Fault:
            silent.set()
            return Fault.SILENT

        server.fault = fall_silent
        raised: list[BaseException] = []

        def read() -> None:
            try:
                reader.read(0, "payload")
            except ClosedError as error:
                raised.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        assert silent.wait(20)
        store.close()
        thread.join()
        reader.close()
        assert "was closed while it was read" in str(raised[0])


class TestFaults:
    @pytest.mark.parametrize(
        "faults",
        [(Fault.ERROR_500, Fault.ERROR_503), (Fault.CUT,), (Fault.SHORT,), (Fault.FLIP,)],
        ids=lambda faults: "+".join(fault.name for fault in faults),
    )
    def test_one_request_in_five_at_fault_costs_a_retry_and_no_byte(
        self, faults: tuple[Fault, ...], server: RangeServer, make_dataset: MakeDataset, store: ShardStore
    ) -> None:
        local = make_dataset("same")
        server.fault = one_in(5, *faults)
        for shard, reader in enumerate(store.open_shards(range(local.num_shards))):
            check_shard(reader, local, shard)
        assert store.stats()["retries"] > 0 or faults == (Fault.FLIP,)

    def test_a_silent_request_is_made_a_second_time(
        self, server: RangeServer, make_dataset: MakeDataset, store: ShardStore
    ) -> None:
        local = make_dataset("same")
        server.fault = one_in(7, Fault.SILENT)  # for 60 s: whoever waited for it would not return in time
        for shard, reader in enumerate(store.open_shards(range(local.num_shards))):
            check_shard(reader, local, shard)
        assert store.stats()["hedges"] > 0

    def test_bytes_that_are_always_wrong_are_an_error_that_names_the_sample(
        self, server: RangeServer, store: ShardStore
    ) -> None:
        reader = store.open_shard(3)
        server.fault = lambda _: Fault.FLIP
        with pytest.raises(ShardCorruptError, match=r"row 1, column 'payload'"):
            reader.read(1, "payload")
        reader.close()

    def test_a_file_that_was_cut_short_is_not_tried_for_long(
        self, server: RangeServer, tmp_path: Path, store: ShardStore
    ) -> None:
        shard = next((tmp_path / "data").glob("*3.arrow"))
        shard.write_bytes(shard.read_bytes()[:-1])
        with pytest.raises(SourceError, match="cut short"):
            store.open_shard(3)

    @pytest.mark.parametrize(
        ("fault", "message"), [(Fault.FORBIDDEN, r"denied.*credentials"), (Fault.ERROR_501, "no such request")]
    )
    def test_what_trying_again_will_not_mend_is_an_error_at_once(
        self, server: RangeServer, store: ShardStore, fault: Fault, message: str
    ) -> None:
        server.fault = lambda _: fault
        before = len(server.requests)
        with pytest.raises(SourceError, match=message):
            store.open_shard(0)
        assert len(server.requests) == before + 1

    def test_a_server_that_ignores_ranges_is_named_as_such(self, server: RangeServer, store: ShardStore) -> None:
        server.fault = lambda _: Fault.WHOLE
        with pytest.raises(SourceError, match="range"):
            store.open_shard(0)

    def test_a_server_gone_for_good_is_an_error_within_the_limit(
        self, tmp_path: Path, make_dataset: MakeDataset
    ) -> None:
        make_dataset()
        with RangeServer(tmp_path) as server:
            opened = open_store(remote(server, IMPATIENT), None)
        with pytest.raises(SourceError, match=r"00000000.arrow of http.*tries failed within 0.3 s.*check the network"):
            opened.open_shard(0)
        opened.close()

    def test_a_server_that_comes_back_goes_on(self, tmp_path: Path, make_dataset: MakeDataset) -> None:
        local = make_dataset()
        with RangeServer(tmp_path) as server:
            opened = open_store(remote(server), None)
        done: list[int] = []

        def read() -> None:
            check_shard(opened.open_shard(0), local, 0)
            done.append(0)

        with told("trying again", times=4) as tried:
            thread = threading.Thread(target=read)
            thread.start()
            assert tried.wait(30)
        with RangeServer(tmp_path, port=server.port):
            thread.join()
        opened.close()
        assert done == [0]


class TestAddresses:
    def test_secrets_in_a_url_are_shown_nowhere(self, server: RangeServer) -> None:
        host = server.url.removeprefix("http://")
        source = RemoteSource(f"http://me:hush@{host}/data?sig=hush", IMPATIENT)
        assert source.name == f"http://{host}/data"
        server.fault = lambda _: Fault.ERROR_500
        with pytest.raises(SourceError) as caught:
            source.open("x")
        assert "hush" not in repr(source) + "".join(traceback.format_exception(caught.value))

    @pytest.mark.parametrize("url", ["s3://", "http://[broken/x", "://bucket"])
    def test_an_address_that_cannot_be_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigError):
            open_place(url)

    def test_an_unknown_kind_of_address_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="nosuch://"):
            open_place("nosuch://bucket/data")

    @pytest.mark.parametrize(("module", "url"), [("obstore", "s3://bucket/data"), ("fsspec", "memory://data")])
    def test_a_missing_package_is_named_with_the_command_that_installs_it(self, module: str, url: str) -> None:
        program = (
            f"import sys\nfor name in ('', '.store', '.core'):\n    sys.modules[{module!r} + name] = None\n"
            f"from forebay.cache import open_place\nopen_place({url!r})"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "pip install 'forebay[remote]'" in run.stderr

    def test_settings_for_a_url_are_refused_with_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="remote="):
            open_place(tmp_path, RemoteConfig())

    def test_a_data_set_in_fsspecs_memory_is_read(self, make_dataset: MakeDataset, tmp_path: Path) -> None:
        import fsspec

        local = make_dataset()
        files = fsspec.filesystem("memory")
        files.put(str(tmp_path / "data"), "/bucket/data", recursive=True)
        opened = open_store(open_place("memory://bucket/data", QUICK), None)
        for shard, reader in enumerate(opened.open_shards(range(local.num_shards))):
            check_shard(reader, local, shard)
        with pytest.raises(ManifestError, match="no data set"):
            open_place("memory://bucket/other", QUICK)
        opened.close()
        files.rm("/bucket", recursive=True)


def test_a_forked_child_is_told_what_to_do_instead_of_hanging(server: RangeServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    program = f"""
import os
from forebay.cache import RemoteSource
file = RemoteSource({server.url!r}).open("file")
file.read(0, 1)
if os.fork() == 0:
    try:
        file.read(0, 1)
    except OSError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert "was forked" in run.stdout
    assert "spawn" in run.stdout
