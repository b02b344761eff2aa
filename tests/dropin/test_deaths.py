"""Workers that die, and parents that do: an error that names the process, everybody gone, and nothing left in /dev/shm.

Hangs are caught by the limit of a program's run; nothing here looks at a clock.
"""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from tests.dropin.programs import HANGS_AFTER_S, run

DYING = """
class Dying(Numbers):
    how = "SIGKILL"
    def __getitem__(self, index):
        if index == 13:
            if Dying.how == "exit":
                os._exit(7)
            if Dying.how == "segfault":
                import ctypes
                ctypes.string_at(0)
            os.kill(os.getpid(), getattr(signal, Dying.how))
        return super().__getitem__(index)

def consume(loader):
    try:
        for batch in loader:
            pass
    except RuntimeError as error:
        print(type(error).__name__, " ".join(str(error).split()))

def check():
    gc.collect()
    for child in multiprocessing.active_children():
        child.join()
    print("left", [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")])
"""


def assert_named(lines: list[str], deaths: int) -> None:
    """Each death was an error with the process, and at the end nothing was left."""
    *told, last = lines
    assert len(told) == deaths
    for line in told:
        assert line.startswith("RuntimeError DataLoader worker (pid"), line
        assert any(words in line for words in ("exited unexpectedly", "is killed by signal", "was killed by")), line
    assert last == "left []"


def test_a_worker_that_dies_in_the_middle_of_a_batch_is_an_error_that_names_it(tmp_path: Path) -> None:
    """In five ways, each with one loader twice over, which is not broken by it."""
    done = run(
        tmp_path,
        DYING
        + """
for Dying.how in ("SIGKILL", "segfault", "SIGBUS", "SIGTERM", "exit"):
    loader = DataLoader(Dying(40, 3000), 4, num_workers=2)
    consume(loader)
    consume(loader)
check()
""",
    )
    assert done.returncode == 0, done.stderr
    assert_named(done.stdout.splitlines(), 10)


def test_it_is_the_same_error_in_another_thread(tmp_path: Path) -> None:
    """Python delivers no signal there, so the loader must look for the dead itself."""
    done = run(
        tmp_path,
        DYING
        + """
loader = DataLoader(Dying(40, 3000), 4, num_workers=2)
reader = threading.Thread(target=consume, args=(loader,))
reader.start()
reader.join()
check()
""",
    )
    assert done.returncode == 0, done.stderr
    assert_named(done.stdout.splitlines(), 1)


def test_a_killed_worker_is_an_error_with_every_setting(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        DYING
        + """
for settings in ({"in_order": False}, {"persistent_workers": True}, {"timeout": 60}, {"prefetch_factor": 1}):
    loader = DataLoader(Dying(40, 3000), 4, num_workers=2, **settings)
    consume(loader)
    loader._iterator = None
check()
""",
    )
    assert done.returncode == 0, done.stderr
    assert_named(done.stdout.splitlines(), 4)


def test_a_worker_killed_while_it_waits_for_work_is_an_error(tmp_path: Path) -> None:
    """Persistent, and killed between two epochs."""
    done = run(
        tmp_path,
        DYING
        + """
loader = DataLoader(Numbers(40), 4, num_workers=2, persistent_workers=True)
consume(loader)
victim = loader._iterator._workers[1]
os.kill(victim.pid, signal.SIGKILL)
victim.join()
consume(loader)
loader._iterator = None
check()
""",
    )
    assert done.returncode == 0, done.stderr
    assert_named(done.stdout.splitlines(), 1)


def shared_memory() -> set[str]:
    """Names in this machine's shared memory."""
    return {path.name for path in Path("/", "dev", "shm").iterdir()}


def ended(pid: int) -> bool:
    """Whether a process has ended, or does so before the limit; it may be a zombie, for which nobody waits."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], HANGS_AFTER_S)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(("method", "busy"), [("fork", False), ("fork", True), ("forkserver", True)])
def test_when_the_parent_is_killed_its_workers_end_and_nothing_is_left(tmp_path: Path, method: str, busy: bool) -> None:
    before = shared_memory()
    done = run(
        tmp_path,
        f"""
        class Slow(Numbers):
            def __getitem__(self, index):
                if index > 8 and {busy}:
                    time.sleep(0.3)
                return super().__getitem__(index)
        if __name__ == "__main__":
            loader = DataLoader(Slow(4000, 30_000), 4, num_workers=2, multiprocessing_context="{method}")
            iterator = iter(loader)
            kept = [next(iterator), next(iterator)]
            print(*[worker.pid for worker in iterator._workers], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert done.returncode == -9, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert all(ended(pid) for pid in pids)
    left = {name for name in shared_memory() - before if name.startswith(("torch_", "forebay"))}
    assert not left


def test_ctrl_c_in_the_loop_ends_the_workers_and_says_it_once(tmp_path: Path) -> None:
    """The whole group is interrupted, as by a terminal; the only traceback is the main one's."""
    done = run(
        tmp_path,
        """
        loader = DataLoader(Numbers(100_000, 3000), 2, num_workers=2)
        for i, batch in enumerate(loader):
            if i == 5:
                os.killpg(0, signal.SIGINT)
        """,
    )
    assert done.returncode in (1, 130, -2), done.stderr
    assert done.stderr.count("Traceback (most recent call last)") == 1, done.stderr
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


def test_ctrl_c_while_the_loop_waits_for_a_batch_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    """The worker itself says when the loop is waiting."""
    done = run(
        tmp_path,
        """
        class Interrupts(Numbers):
            def __getitem__(self, index):
                if index == 5:
                    os.kill(os.getppid(), signal.SIGINT)
                    time.sleep(1000)
                return super().__getitem__(index)
        loader = DataLoader(Interrupts(100), None, num_workers=1)
        try:
            for batch in loader:
                pass
        except KeyboardInterrupt:
            print("interrupted")
        gc.collect()
        print(multiprocessing.active_children())
        """,
    )
    assert (done.stdout, done.returncode) == ("interrupted\n[]\n", 0), done.stderr


def test_a_keyboard_interrupt_inside_a_worker_is_an_error_not_a_hang(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        class Interrupted(Numbers):
            def __getitem__(self, index):
                if index == 5:
                    raise KeyboardInterrupt
                return super().__getitem__(index)
        try:
            list(DataLoader(Interrupted(100), None, num_workers=1, timeout=20))
        except RuntimeError as error:
            print(str(error).split(" (pid")[0])
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "DataLoader worker\n"


def test_a_killed_worker_does_not_take_the_batches_that_are_there(tmp_path: Path) -> None:
    """What was delivered before stays as it was."""
    done = run(
        tmp_path,
        DYING
        + """
kept = []
try:
    for batch in DataLoader(Dying(40, 3000), 4, num_workers=2):
        kept.append(batch)
except RuntimeError:
    pass
gc.collect()
assert kept and all((batch == torch.arange(4 * i, 4 * i + 4)[:, None]).all() for i, batch in enumerate(kept))
print("kept")
""",
    )
    assert (done.stdout, done.returncode) == ("kept\n", 0), done.stderr
