"""`python -m forebay.run`: real scripts in processes of their own end as Python ends them, on this loader."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from forebay.run_report import LoaderTime, advice

HANGS_AFTER_S = 120
"""A guard; no test measures by it."""

HEAD = """
import gc, multiprocessing, os, sys
import torch
import torch.utils.data
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.dataloader import DataLoader as AlsoDataLoader

class Numbers(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.tensor(index)
"""


def write(folder: Path, body: str) -> Path:
    path = folder / "train.py"
    path.write_text(HEAD + textwrap.dedent(body))
    return path


@pytest.fixture(autouse=True)
def the_script_s_folder_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is where nobody has said otherwise."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)


def run(folder: Path, *arguments: str | Path, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", *before, "-m", "forebay.run", *map(str, arguments)]
    return subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=HANGS_AFTER_S)


def test_an_unchanged_script_gets_this_loader_everywhere_and_each_line_s_time_is_told(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import forebay

        class Mine(DataLoader[torch.Tensor]):
            def __init__(self, count):
                super().__init__(Numbers(count), batch_size=5)

        def total(loader: DataLoader[torch.Tensor]) -> int:
            assert isinstance(loader, AlsoDataLoader) and isinstance(loader, torch.utils.data.DataLoader)
            return sum(int(batch.sum()) for batch in loader)

        for _ in range(3):
            print(total(DataLoader(Numbers(10), 2, num_workers=1)))  # three loaders, each gone before the next
        print(total(Mine(20)), total(forebay.DataLoader(Numbers(30), 3)))
        next(iter(Mine(40)))
        DataLoader(Numbers(5))  # never used
        gc.collect()
        print(__name__, __file__, sys.argv[1:], sys.path[0])
        """,
    )
    done = run(tmp_path, "--json", "time.json", "train.py", "--json", "-m", "x")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "45",
        "45",
        "45",
        "190 435",
        f"__main__ {tmp_path / 'train.py'} ['--json', '-m', 'x'] {tmp_path}",
    ]
    told = json.loads((tmp_path / "time.json").read_text())
    assert told["process"] is None
    lines = [(each["name"].split(":")[0], each["made"], each["workers"], each["samples"]) for each in told["loaders"]]
    assert lines == [
        ("DataLoader at train.py", 3, 1, 30),
        ("Mine at train.py", 1, 0, 20),
        ("DataLoader at train.py", 1, 0, 30),
        ("Mine at train.py", 1, 0, 5),
    ], done.stderr
    assert all(0 <= each["stall_s"] <= each["seconds"] and each["busy_s"] > 0 for each in told["loaders"])
    assert "waited for data" in done.stderr
    assert "(3 of" in " ".join(done.stderr.split())


def test_records_keep_no_loader_and_loaders_of_shards_are_told_too(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import weakref
        from forebay import DataLoader as Ours, ShardDataset, ShardWriter
        with ShardWriter("shards", columns={"label": "int64"}) as writer:
            for number in range(12):
                writer.write({"label": number})
        dataset = ShardDataset("shards")
        print(sum(int(batch["label"].sum()) for batch in Ours(dataset, 3, num_workers=2)))
        gone = [weakref.ref(DataLoader(Numbers(4))), weakref.ref(Ours(dataset)), weakref.ref(dataset)]
        del dataset
        gc.collect()
        print([ref() for ref in gone])
        """,
    )
    done = run(tmp_path, "--json", "time.json", "train.py")
    assert (done.returncode, done.stdout) == (0, "66\n[None, None, None]\n"), done.stderr
    (told,) = json.loads((tmp_path / "time.json").read_text())["loaders"]
    assert (told["workers"], told["samples"], told["made"]) == (2, 12, 1)


def test_an_error_is_told_as_python_tells_it_and_then_where_the_time_went(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        def train():
            for batch in DataLoader(Numbers(10), 2):
                raise LookupError("the user's")
        train()
        """,
    )
    done = run(tmp_path, "train.py")
    plain = subprocess.run(
        [sys.executable, "train.py"], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=HANGS_AFTER_S
    )
    assert done.returncode == plain.returncode == 1
    assert done.stderr.startswith(plain.stderr)
    assert "waited for data" in done.stderr.removeprefix(plain.stderr)


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("sys.exit(3)", 3, "no torch DataLoader gave a batch"),
        ("sys.exit('in words')", 1, "in words"),
        ("x = (", 1, "SyntaxError"),
    ],
)
def test_exit_codes_are_the_script_s(tmp_path: Path, body: str, code: int, words: str) -> None:
    write(tmp_path, body)
    done = run(tmp_path, "train.py")
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "runpy" not in done.stderr


def test_an_interrupt_is_told_in_the_script_s_frames_and_the_report_still_comes(tmp_path: Path) -> None:
    write(tmp_path, "for batch in DataLoader(Numbers(10**9), num_workers=1):\n    print('going', flush=True)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "forebay.run", "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANGS_AFTER_S)
    assert process.returncode == 128 + signal.SIGINT
    assert "KeyboardInterrupt\n" in err
    assert "runpy" not in err
    assert "DataLoader at" in err


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_that_the_script_starts_have_this_loader_and_tell_their_own_time(tmp_path: Path, method: str) -> None:
    """With workers started by the same method, whose classes are those of `__mp_main__`."""
    write(
        tmp_path,
        f"""
        class Mine(DataLoader):
            pass
        def train():
            loader = Mine(Numbers(10), 2, num_workers=1, multiprocessing_context="{method}")
            print(Mine.__mro__[2].__module__, sum(int(batch.sum()) for batch in loader), flush=True)
        if __name__ == "__main__":
            train()
            process = multiprocessing.get_context("{method}").Process(target=train)
            process.start()
            process.join()
            sys.exit(process.exitcode)
        """,
    )
    done = run(tmp_path, "--json", "time.json", "train.py")
    assert (done.returncode, done.stdout) == (0, "forebay.loader.dataloader 45\n" * 2), done.stderr
    assert done.stderr.count("waited for data") == 2
    (child,) = tmp_path.glob("time-pid*.json")
    for path in (child, tmp_path / "time.json"):
        assert [each["samples"] for each in json.loads(path.read_text())["loaders"]] == [10]


def test_a_module_runs_as_python_m_runs_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    write(package, "print(__name__, __package__, __spec__.name, sys.argv[1:], len(list(DataLoader(Numbers(7), 2))))\n")
    done = run(tmp_path, "-m", "package.train", "-m", "--help")
    assert (done.returncode, done.stdout) == (0, "__main__ package package.train ['-m', '--help'] 4\n"), done.stderr
    assert "DataLoader at train.py" in " ".join(done.stderr.split())


def test_every_rank_of_torchrun_tells_its_own_time(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        from torch.utils.data import DistributedSampler
        torch.distributed.init_process_group("gloo")
        data = TensorDataset(torch.arange(20))
        loader = DataLoader(data, 2, sampler=DistributedSampler(data, shuffle=False))
        rank = torch.distributed.get_rank()
        open(f"sum{rank}", "w").write(str(sum(int(x.sum()) for x, in loader)))
        torch.distributed.destroy_process_group()
        """,
    )
    launch = ["-W", "default", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run(tmp_path, "--json", "time.json", "train.py", before=launch)
    assert done.returncode == 0, done.stderr
    for rank, its_sum in (("rank0", "90"), ("rank1", "100")):
        assert (tmp_path / rank.replace("rank", "sum")).read_text() == its_sum
        told = json.loads((tmp_path / f"time-{rank}.json").read_text())
        assert (told["process"], told["loaders"][0]["samples"]) == (rank, 10)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required"),
        (["nothing.py"], "there is no file nothing.py"),
        (["--json", "no/folder/time.json", "train.py"], "there is no folder"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_the_help_teaches_modules_ranks_and_what_is_not_served(tmp_path: Path) -> None:
    done = run(tmp_path, "--help")
    for words in ("-m package.train", "torchrun --nproc-per-node 8 -m forebay.run", "subprocess", "FILE-rank0"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("stall_s", "workers", "busy_s", "words"),
    [
        (0.4, 2, 20, "hardly waited"),
        (5, 0, 5, "num_workers"),
        (5, 2, 19, "more workers"),
        (5, 4, 39, "no more workers (there are 4 cores)"),
        (5, 2, 2, "persistent_workers"),
    ],
)
def test_the_advice_follows_from_who_waited_for_whom(stall_s: float, workers: int, busy_s: float, words: str) -> None:
    time = LoaderTime(
        name="a", made=1, workers=workers, samples=9, batches=3, seconds=10, stall_s=stall_s, busy_s=busy_s, bad=0
    )
    assert words in advice(time, cores=4)
