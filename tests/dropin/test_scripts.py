"""Scripts as users write them: that end early, leave a loader open, have no main guard, or hold locks and threads.

Exit codes, silence, and clear words; a script that hangs is stopped by a limit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dropin.programs import run


@pytest.mark.parametrize(
    ("settings", "ending"),
    [
        ("", "next(iter(loader))"),
        (", persistent_workers=True", "iterator = iter(loader); next(iterator)"),
        (", persistent_workers=True", "kept = [batch for batch, _ in zip(loader, range(3))]"),
        ("", "iterator = iter(loader); sys.exit(0)"),
        ("", "iterators = [iter(loader), iter(DataLoader(Stream(999), num_workers=1))]; next(iterators[1])"),
    ],
)
def test_a_script_that_stops_early_ends_with_zero_and_in_silence(tmp_path: Path, settings: str, ending: str) -> None:
    done = run(tmp_path, f"loader = DataLoader(Numbers(1000, 20_000), 4, num_workers=2{settings})\n{ending}\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("ending", ["raise LookupError('the user')", "os._exit(3)"])
def test_a_script_that_fails_in_the_loop_fails_with_its_own_words_alone(tmp_path: Path, ending: str) -> None:
    done = run(tmp_path, f"for batch in DataLoader(Numbers(1000, 20_000), 4, num_workers=2):\n    {ending}\n")
    assert done.returncode == (3 if "_exit" in ending else 1)
    assert done.stderr.count("Traceback") <= ("raise" in ending)
    assert "_exit" in ending or done.stderr.rstrip().endswith("the user")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_without_a_main_guard_spawned_workers_are_a_clear_error_not_a_hang(tmp_path: Path, method: str) -> None:
    """Each worker runs the script again; the words that say so are Python's or ours."""
    done = run(
        tmp_path,
        f"""
        print("begin", flush=True)
        list(DataLoader(Numbers(8), 2, num_workers=1, multiprocessing_context="{method}"))
        """,
    )
    assert done.returncode != 0
    assert done.stdout.count("begin") <= 2
    assert "__main__" in done.stderr or "freeze_support" in done.stderr
    assert "pid" in done.stderr or "bootstrapping phase" in done.stderr


def test_with_a_main_guard_spawned_workers_find_the_script_s_classes(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        if __name__ == "__main__":
            loader = DataLoader(Numbers(8), 4, num_workers=1, multiprocessing_context="spawn")
            print([batch.flatten().tolist() for batch in loader])
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[[0, 1, 2, 3], [4, 5, 6, 7]]\n"


def test_a_lambda_under_spawn_is_an_error_that_names_it(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        if __name__ == "__main__":
            loader = DataLoader(Numbers(8), num_workers=1, multiprocessing_context="spawn", collate_fn=lambda b: b)
            try:
                iter(loader)
            except Exception as error:
                assert "lambda" in str(error), error
                print("named")
        """,
        options=("-W", "ignore"),
    )
    assert (done.returncode, done.stdout) == (0, "named\n"), done.stderr


def test_twenty_starts_by_fork_beside_threads_that_hold_locks_do_not_hang(tmp_path: Path) -> None:
    """Locks of the allocator, imports, logging, torch and a loader's own threads are held at the fork."""
    done = run(
        tmp_path,
        """
        import importlib, logging
        stop, held = threading.Event(), threading.Lock()
        logging.getLogger("busy").addHandler(logging.NullHandler())
        def hold():
            with held:
                while not stop.is_set():
                    torch.ones(64) @ torch.ones(64)
                    logging.getLogger("busy").warning("x")
                    sys.modules.pop("colorsys", None)
                    importlib.import_module("colorsys")
        threads = [threading.Thread(target=hold) for _ in range(2)]
        for thread in threads:
            thread.start()
        class Works(Numbers):
            def __getitem__(self, index):
                logging.getLogger("busy").warning("sample %d", index)
                return torch.ones(200, 200) @ torch.ones(200, 200)
        other = iter(DataLoader(Numbers(1000, 3000), 2, num_workers=1))
        for _ in range(20):
            next(other)
            assert len(list(DataLoader(Works(4), 2, num_workers=2))) == 2
        stop.set()
        for thread in threads:
            thread.join()
        print("done")
        """,
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_workers_start_after_torch_and_opencv_have_used_their_threads(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import cv2
        torch.set_num_threads(2)
        picture = np.zeros((500, 500, 3), np.uint8)
        cv2.resize(picture, (1000, 1000))
        torch.rand(500, 500) @ torch.rand(500, 500)
        class Resizes(Numbers):
            def __getitem__(self, index):
                small = cv2.resize(picture, (100, 100))
                return torch.from_numpy(small), torch.rand(300, 300) @ torch.rand(300, 300)
        for _ in range(3):
            assert len(list(DataLoader(Resizes(6), 2, num_workers=2))) == 3
        print(torch.get_num_threads())
        """,
    )
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr


def test_a_loader_inside_a_worker_of_a_user_s_own_process_works(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        def train():
            print(sum(int(batch.sum()) for batch in DataLoader(Numbers(10), 2, num_workers=2)), flush=True)
        process = multiprocessing.get_context("fork").Process(target=train)
        process.start()
        process.join()
        sys.exit(process.exitcode)
        """,
    )
    assert (done.stdout, done.returncode, done.stderr) == ("45\n", 0, "")


def test_a_fork_of_the_user_s_in_the_middle_of_a_pass_leaves_the_parent_s_workers_alone(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        iterator = iter(DataLoader(Numbers(40), 2, num_workers=2))
        first = next(iterator)
        child = os.fork()
        if child == 0:
            del iterator
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(int(first.sum()) + sum(int(batch.sum()) for batch in iterator))
        """,
    )
    assert (done.stdout, done.returncode, done.stderr) == (f"{sum(range(40))}\n", 0, "")
