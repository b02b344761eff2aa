from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from forebay.cache import CacheConfig
from forebay.cache.file_system import file_system_magic, refuse_shared_file_system, refuse_without_flock
from forebay.cache.folder import CacheFolder, Refusal
from forebay.cache.locks import folder_lock, is_locked
from forebay.cache.reservation import Reservation
from forebay.errors import CacheError, ClosedError
from tests.cache.on_disk import shard_files

MINE = "0" * 32
OTHER = "f" * 32


def open_folder(path: Path, budget: int = 100) -> CacheFolder:
    return CacheFolder(CacheConfig(path=path, budget=budget, min_free=0), path)


def reserve(folder: CacheFolder, name: str, nbytes: int, *, fingerprint: str = MINE) -> Reservation | Refusal:
    room, _ = folder.reserve(fingerprint, name, nbytes, far=False, stop=threading.Event())
    return room


def put(folder: CacheFolder, name: str, data: bytes, *, fingerprint: str = MINE) -> None:
    room = reserve(folder, name, len(data), fingerprint=fingerprint)
    assert isinstance(room, Reservation)
    with room:
        room.allocate()
        room.write(0, memoryview(data))
        room.commit()


def files(path: Path) -> set[str]:
    """Shard files, whole or not, below a cache folder."""
    return {str(file.relative_to(path)) for file in shard_files(path)}


def test_a_missing_folder_is_made_and_marked(tmp_path: Path) -> None:
    open_folder(tmp_path / "a" / "b")
    marker = json.loads((tmp_path / "a" / "b" / "forebay-cache.json").read_text())
    assert marker == {"format": "forebay-cache", "version": 1}


def test_a_folder_that_the_cache_did_not_make_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(CacheError, match=r"thesis\.txt"):
        open_folder(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_the_root_of_a_fresh_disk_is_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    open_folder(tmp_path)


@pytest.mark.parametrize("marker", ["", "{", "[]", '{"format": "zip", "version": 1}', '{"format": "forebay-cache"}'])
def test_a_marker_that_is_none_is_refused(tmp_path: Path, marker: str) -> None:
    (tmp_path / "forebay-cache.json").write_text(marker)
    with pytest.raises(CacheError, match="not the marker"):
        open_folder(tmp_path)


def test_a_cache_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "forebay-cache.json").write_text('{"format": "forebay-cache", "version": 2}')
    with pytest.raises(CacheError, match="upgrade"):
        open_folder(tmp_path)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be used"):
        open_folder(tmp_path / "file")


@pytest.mark.parametrize(
    ("magic", "kind"), [(0x6969, "NFS"), (0xFF534D42, "CIFS"), (0x0BD00BD0, "Lustre"), (0x65735546, "FUSE")]
)
def test_a_file_system_of_other_machines_is_refused_by_name(tmp_path: Path, magic: int, kind: str) -> None:
    with pytest.raises(CacheError, match=kind):
        refuse_shared_file_system(tmp_path, magic_of=lambda _: magic)


def test_local_file_systems_are_told_by_their_magic() -> None:
    assert file_system_magic(Path("/proc")) == 0x9FA0
    refuse_shared_file_system(Path("/proc"))


def test_a_lock_that_excludes_nobody_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("")
    with pytest.raises(CacheError, match="excludes nobody"):
        refuse_without_flock(tmp_path, tmp_path / "lock")  # nobody holds it: as where locks do nothing


def test_the_folder_lock_gives_up_in_time_and_says_who_to_look_for(tmp_path: Path) -> None:
    stop = threading.Event()
    with (
        folder_lock(tmp_path / "lock", stop=stop),
        pytest.raises(TimeoutError, match="fuser"),
        folder_lock(tmp_path / "lock", stop=stop, timeout_s=0.01),
    ):
        pass


def test_a_wait_for_the_folder_lock_ends_when_the_cache_is_closed(tmp_path: Path) -> None:
    stop = threading.Event()
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            with folder_lock(tmp_path / "lock", stop=stop, timeout_s=600):
                pass
        except ClosedError as error:
            outcome.append(error)

    with folder_lock(tmp_path / "lock", stop=threading.Event()):
        thread = threading.Thread(target=wait)
        thread.start()
        stop.set()
        thread.join()
    assert len(outcome) == 1


def test_a_lock_on_a_file_that_was_replaced_counts_for_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with folder_lock(lock, stop=threading.Event()):
        lock.unlink()
        with folder_lock(lock, stop=threading.Event(), timeout_s=5):
            assert is_locked(lock)


def test_a_shard_is_seen_when_it_is_whole_and_not_before(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    room = reserve(folder, "a", 10)
    assert isinstance(room, Reservation)
    with room:
        assert folder.open_shard(MINE, "a") is None
        assert reserve(folder, "a", 10) is Refusal.BUSY
        room.write(0, memoryview(b"0123456789"))
        room.commit()
    assert reserve(folder, "a", 10) is Refusal.PRESENT
    file = folder.open_shard(MINE, "a")
    assert file is not None
    assert bytes(file.read(2, 3)) == b"234"


def test_an_unfinished_shard_counts_from_the_start_and_gives_its_room_back(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, budget=100)
    room = reserve(folder, "a", 60)
    assert isinstance(room, Reservation)
    with room:
        assert (tmp_path / MINE / "a.part").stat().st_size == 60
        assert reserve(folder, "b", 60) is Refusal.NO_ROOM
    assert files(tmp_path) == set()
    put(folder, "b", bytes(60))


def test_a_fetch_that_does_not_get_on_is_told_from_one_that_does(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    room = reserve(folder, "a", 10)
    assert isinstance(room, Reservation)
    with room:
        assert reserve(folder, "a", 10) is Refusal.BUSY
        os.utime(tmp_path / MINE / "a.part", (0, 0))
        assert reserve(folder, "a", 10) is Refusal.STALLED


def test_what_a_dead_process_left_is_removed_by_the_next_opener_and_a_live_fetch_is_not(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    room = reserve(folder, "live", 10)
    (tmp_path / MINE / "dead.part").write_bytes(bytes(50))
    assert isinstance(room, Reservation)
    with room:
        open_folder(tmp_path)
        assert files(tmp_path) == {f"{MINE}/live.part"}


def test_room_that_a_dead_process_holds_is_free(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, budget=100)
    put(folder, "a", bytes(10))
    (tmp_path / MINE / "b.part").write_bytes(bytes(90))  # killed while it fetched the very shard
    put(folder, "b", bytes(90))
    assert files(tmp_path) == {f"{MINE}/a", f"{MINE}/b"}


def test_other_data_sets_make_room_and_one_shard_never_serves_two(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, budget=100)
    put(folder, "shard", b"x" * 50, fingerprint=OTHER)
    put(folder, "shard", b"y" * 40)
    file = folder.open_shard(MINE, "shard")
    assert file is not None
    assert bytes(file.read(0, 1)) == b"y"
    put(folder, "more", b"z" * 40)
    assert files(tmp_path) == {f"{MINE}/shard", f"{MINE}/more"}


def test_an_evicted_shard_stays_readable_to_who_has_it_open(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, budget=100)
    put(folder, "a", b"x" * 60, fingerprint=OTHER)
    file = folder.open_shard(OTHER, "a")
    put(folder, "b", b"y" * 60)
    assert file is not None
    assert bytes(file.read(59, 1)) == b"x"
    assert files(tmp_path) == {f"{MINE}/b"}


def test_a_smaller_budget_evicts_when_the_cache_is_opened(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, budget=100)
    for name in "abc":
        put(folder, name, bytes(30))
        os.utime(tmp_path / MINE / name, ns=(0, ord(name)))
    open_folder(tmp_path, budget=60)
    assert files(tmp_path) == {f"{MINE}/b", f"{MINE}/c"}


def test_only_files_of_the_cache_are_counted_or_touched(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, budget=100)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "big").write_bytes(bytes(1000))
    (tmp_path / OTHER).symlink_to(tmp_path / "notes")
    put(folder, "a", bytes(100))
    open_folder(tmp_path, budget=50)
    assert (tmp_path / "notes" / "big").stat().st_size == 1000
    assert not (tmp_path / MINE).exists()  # evicted, and its empty folder removed


@pytest.mark.parametrize("rest", ["nothing", "an empty folder"])
def test_a_folder_removed_while_in_use_is_made_again_with_one_warning(
    tmp_path: Path, rest: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = open_folder(tmp_path / "cache")
    for _ in range(2):
        shutil.rmtree(tmp_path / "cache")
        if rest == "an empty folder":
            (tmp_path / "cache").mkdir()
        else:
            assert reserve(folder, "a", 10) is Refusal.NO_ROOM
        put(folder, "a", bytes(10))
        assert files(tmp_path / "cache") == {f"{MINE}/a"}
        assert open_folder(tmp_path / "cache").open_shard(MINE, "a") is not None
    assert [record.message for record in caplog.records if "made again" in record.message] == [caplog.messages[0]]


def test_a_folder_removed_during_a_fetch_costs_that_fetch(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "cache")
    room = reserve(folder, "a", 10)
    assert isinstance(room, Reservation)
    with room:
        shutil.rmtree(tmp_path / "cache")
        with pytest.raises(OSError, match="removed while in use") as caught:
            room.commit()
    assert folder.absorb(caught.value)
    put(folder, "a", bytes(10))


def test_locks_are_released_even_though_a_child_inherited_them(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    room = reserve(folder, "a", 10)
    assert isinstance(room, Reservation)
    held = os.dup(room._fd)  # as fork gives to a child
    try:
        with room:
            pass
        put(folder, "a", bytes(10))
        assert files(tmp_path) == {f"{MINE}/a"}
    finally:
        os.close(held)


def test_a_share_of_the_disk_is_the_budget(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    folder = CacheFolder(CacheConfig(path=tmp_path, disk_share=0.25), tmp_path)
    assert folder.budget == int(0.25 * disk.f_blocks * disk.f_frsize)


def test_the_floor_of_free_disk_comes_before_the_budget(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = os.statvfs(tmp_path)
    config = CacheConfig(path=tmp_path, budget=10**6, min_free=disk.f_blocks * disk.f_frsize)
    folder = CacheFolder(config, tmp_path)
    for _ in range(2):
        assert reserve(folder, "a", 10) is Refusal.NO_ROOM
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "free some space" in caplog.messages[0]


@pytest.mark.parametrize(
    ("error", "absorbed"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (OSError(errno.EROFS, "Read-only file system"), True),
        (OSError(errno.EACCES, "Permission denied"), True),
        (CacheError("the cache folder cannot be used", code=errno.EROFS), True),
        (CacheError("the cache folder cannot be used", code=errno.ENOSPC), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (OSError(errno.EMFILE, "Too many open files"), False),
    ],
)
def test_a_full_or_read_only_disk_is_one_warning_and_other_errors_are_errors(
    tmp_path: Path, error: OSError, absorbed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    folder = open_folder(tmp_path)
    put(folder, "a", bytes(10))
    assert [folder.absorb(error), folder.absorb(error)] == [absorbed, absorbed]
    assert len(caplog.records) == absorbed
    assert reserve(folder, "a", 10) is Refusal.PRESENT
