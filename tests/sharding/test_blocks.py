"""Memory for reads: used again when nobody looks at it any more, and not a moment sooner."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from forebay.sharding import BlockPool, LocalFile, ReadMemory

BLOCK_NBYTES = 4 << 20


@given(sizes=st.lists(st.integers(1, 300_000), min_size=1, max_size=60), dropped=st.data())
def test_what_is_held_is_never_given_to_another(sizes: list[int], dropped: st.DataObject) -> None:
    memory = ReadMemory()
    held: dict[int, memoryview] = {}
    for number, nbytes in enumerate(sizes):
        held[number] = memory.take(nbytes)
        assert len(held[number]) == nbytes
        held[number][:] = bytes([number % 256]) * nbytes
        if dropped.draw(st.booleans()):
            del held[dropped.draw(st.sampled_from(sorted(held)))]
    for number, view in held.items():
        assert bytes(view) == bytes([number % 256]) * sizes[number]


def test_a_block_is_used_again_after_its_last_view() -> None:
    pool = BlockPool(idle_limit=2)
    lent = pool.lease(1000)
    address = lent.ctypes.data
    assert address % 64 == 0
    part = lent.data[10:20].toreadonly()
    del lent
    assert pool.lease(1000).ctypes.data != address
    part.release()
    del part
    assert address in {pool.lease(1000).ctypes.data for _ in range(3)}


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    """Blocks are lent and come home in a child that was forked while a thread of the parent was at it."""
    pool = BlockPool(idle_limit=2)
    lent = [pool.lease(100)]
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._lock:
            held.set()
            over.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    here, there = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        lent.clear()
        there.send(len(pool.lease(100)))
        os._exit(0)
    over.set()
    holder.join()
    answered = here.poll(60)
    if not answered:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert answered, "the child hangs"
    here.close()
    there.close()


def test_no_more_blocks_are_kept_than_allowed() -> None:
    pool = BlockPool(idle_limit=2)
    lent = [pool.lease(100) for _ in range(5)]
    lent.clear()
    assert pool.idle_nbytes == 200
    pool.close()
    assert pool.idle_nbytes == 0


def test_large_reads_have_memory_of_their_own() -> None:
    memory = ReadMemory()
    small = memory.take(1000)
    large = memory.take(BLOCK_NBYTES)
    assert large.obj is not small.obj


def test_views_outlive_their_file_and_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 1000)
    memory = ReadMemory()
    file = LocalFile(path)
    views = [file.read(offset, 256, memory) for offset in range(0, 256_000, 256)]
    assert all(view.readonly for view in views)
    file.close()
    memory.close()
    assert b"".join(views) == path.read_bytes()
