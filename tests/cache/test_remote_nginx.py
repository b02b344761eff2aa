"""A web server as others run it: nginx, where it is installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay.cache import CacheConfig, open_place, open_store
from forebay.errors import SourceError
from forebay.sharding import StoredDataset, verify_dataset
from tests.cache.remote import IMPATIENT, QUICK, check_shard, told

MakeDataset = Callable[..., StoredDataset]
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")

SETTINGS = """
daemon off; master_process off; worker_processes 1; pid {place}/nginx.pid; error_log {place}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off; keepalive_requests 20; sendfile on;
    client_body_temp_path {place}/1; proxy_temp_path {place}/2; fastcgi_temp_path {place}/3;
    uwsgi_temp_path {place}/4; scgi_temp_path {place}/5;
    limit_req_zone $server_name zone=all:1m rate=200r/s;
    server {{
        listen 127.0.0.1:{port}; root {place};
        location /data/ {{ }}
        location /busy/ {{ alias {place}/data/; limit_req zone=all burst=2 nodelay; limit_req_status 503; }}
        location /whole/ {{ alias {place}/data/; max_ranges 0; }}
        location /slow/ {{ alias {place}/data/; limit_rate 100k; }}
    }}
}}
"""


class Nginx:
    """One that serves a folder, and can be stopped and started again on its port."""

    def __init__(self, place: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._settings = place / "nginx.conf"
        self._settings.write_text(SETTINGS.format(place=place, port=port))
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert NGINX is not None
        self._process = subprocess.Popen([NGINX, "-e", "stderr", "-c", str(self._settings)], stderr=subprocess.PIPE)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
            except ConnectionRefusedError:
                assert self._process.poll() is None, self._process.stderr.read()  # type: ignore[union-attr]
            else:
                return

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Nginx]:
    server = Nginx(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("place", ["data", "busy", "slow"])
@pytest.mark.parametrize("cached", [False, True])
def test_all_rows_are_those_of_the_folder(
    nginx: Nginx, place: str, cached: bool, tmp_path: Path, make_dataset: MakeDataset
) -> None:
    """Also where it closes connections in between, refuses what is too much at once with 503, or is slow."""
    local = make_dataset(nbytes=9000)
    far = open_place(f"{nginx.url}/{place}/", QUICK)
    store = open_store(far, CacheConfig(path=tmp_path / "cache", budget=10**8) if cached else None)
    for shard, reader in enumerate(store.open_shards(range(far.num_shards))):
        check_shard(reader, local, shard)
    store.close()


def test_every_checksum_of_a_far_data_set_holds(nginx: Nginx, make_dataset: MakeDataset) -> None:
    make_dataset()
    assert verify_dataset(open_place(f"{nginx.url}/data/", QUICK)) == []


def test_a_server_that_ignores_ranges_is_named_as_such(nginx: Nginx, make_dataset: MakeDataset) -> None:
    make_dataset()
    with pytest.raises(SourceError, match="range"):
        open_store(open_place(f"{nginx.url}/whole/", QUICK), None).open_shard(0)


def test_a_server_that_is_started_again_goes_on(nginx: Nginx, make_dataset: MakeDataset) -> None:
    local = make_dataset()
    store = open_store(open_place(f"{nginx.url}/data/", QUICK), None)
    check_shard(store.open_shard(0), local, 0)
    reader = store.open_shard(1)
    nginx.stop()
    with told("trying again", times=2) as tried:
        thread = threading.Thread(target=lambda: check_shard(reader, local, 1))
        thread.start()
        assert tried.wait(30)
    nginx.start()
    thread.join()
    store.close()


def test_a_server_gone_for_good_is_an_error_within_the_limit(nginx: Nginx, make_dataset: MakeDataset) -> None:
    make_dataset()
    store = open_store(open_place(f"{nginx.url}/data/", IMPATIENT), None)
    nginx.stop()
    with pytest.raises(SourceError, match=r"tries failed within 0.3 s"):
        store.open_shard(0)
    store.close()
