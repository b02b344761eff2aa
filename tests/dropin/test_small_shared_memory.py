"""A container's /dev/shm of a megabyte: batches larger than it come through, or an error says what to set.

Never a bus error. Root, or user namespaces, are needed to mount one; where neither is, that is said.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.dropin.programs import run

MOUNTED = [
    "unshare",
    "--mount",
    "--map-root-user",
    "sh",
    "-c",
    'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"',
    "-",
]

mountable = subprocess.run([*MOUNTED, "true"], capture_output=True, check=False).returncode == 0
needs_mount = pytest.mark.skipif(not mountable, reason="this user may not mount a tmpfs, not even in a namespace")


@needs_mount
@pytest.mark.parametrize(
    ("data", "more"),
    [
        ("Numbers(24, 500_000)", ", persistent_workers=True"),
        ("Numbers(24, 500_000)", ", collate_fn=lambda batch: tuple(batch)"),
        ("Stream(24, 500_000)", ""),
    ],
    ids=["map", "uncollated", "stream"],
)
def test_batches_larger_than_shared_memory_come_through(tmp_path: Path, data: str, more: str) -> None:
    """Batches of 16 MB, kept, over two epochs."""
    done = run(
        tmp_path,
        f"""
        assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 1 << 20
        loader = DataLoader({data}, 4, num_workers=2{more})
        for _ in range(2):
            kept = list(loader)
            found = sorted(int(row[0]) for batch in kept for row in batch)
            assert found == list(range(24)), found
            assert all(bool((row == row[0]).all()) for batch in kept for row in batch)
            del kept
        assert not os.listdir("/dev/shm"), os.listdir("/dev/shm")
        print("done")
        """,
        around=MOUNTED,
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


@needs_mount
def test_spawned_workers_come_through_too(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        if __name__ == "__main__":
            loader = DataLoader(Numbers(8, 500_000), 2, num_workers=1, multiprocessing_context="spawn")
            print([int(row[0]) for batch in loader for row in batch])
        """,
        around=MOUNTED,
    )
    assert (done.stdout, done.returncode) == (f"{list(range(8))}\n", 0), done.stderr


def test_memory_that_the_system_refuses_is_an_error_with_a_reason_not_a_death(tmp_path: Path) -> None:
    """The workers may make no file larger than a megabyte, as under a quota."""
    done = run(
        tmp_path,
        """
        def limit(worker):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            kept = list(DataLoader(Numbers(8, 500_000), 2, num_workers=1, worker_init_fn=limit))
        except Exception as error:
            assert "worker" in str(error), error
            print("error")
        else:
            assert [int(batch[0, 0]) for batch in kept] == [0, 2, 4, 6]
            print("batches")
        """,
    )
    assert done.stdout in ("error\n", "batches\n"), done.stderr
    assert done.returncode == 0
