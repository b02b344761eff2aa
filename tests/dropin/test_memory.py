"""How much memory workers take: of a data set of a million Python strings no more than with torch, and no growth.

Proportional set size, summed over the processes, so shared pages count once.
"""

from __future__ import annotations

from pathlib import Path

from tests.dropin.programs import run

STRINGS = """
class Strings:
    def __init__(self):
        self.strings = [f"sample number {i} of a data set" for i in range(1_000_000)]
    def __len__(self):
        return 200_000
    def __getitem__(self, index):
        return len(self.strings[index * 5])

def pss(iterator):
    total = 0
    for pid in [os.getpid(), *(worker.pid for worker in iterator._workers)]:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024

def measure(Loader, data):
    loader = Loader(data, 500, num_workers=2, persistent_workers=True)
    measured = []
    for _ in range(3):
        iterator = iter(loader)
        for i, batch in enumerate(iterator):
            if i == 398:
                measured.append(pss(iterator))
    loader._iterator = None
    return measured
"""


def test_a_million_strings_take_no_more_than_with_torch_and_do_not_grow(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        STRINGS
        + """
data = Strings()
torch_s, ours = measure(TorchLoader, data), measure(DataLoader, data)
print(torch_s, ours)
assert max(ours) < 1.05 * max(torch_s) + 20, "more than torch"
assert ours[2] < ours[1] + 10, "it grows from epoch to epoch"
""",
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_memory_does_not_grow_with_the_number_of_batches(tmp_path: Path) -> None:
    """The parent's own memory after 200 and after 2000 batches of 400 kB, of changing size, each dropped."""
    done = run(
        tmp_path,
        """
        class Sizes:
            def __len__(self):
                return 2000
            def __getitem__(self, index):
                return torch.zeros(100_000 - index * 37 % 50_000)
        def resident():
            with open("/proc/self/smaps_rollup") as lines:
                return next(int(line.split()[1]) for line in lines if line.startswith("Rss:")) / 1024
        early = None
        for i, batch in enumerate(DataLoader(Sizes(), 1, num_workers=2)):
            del batch
            if i == 200:
                early = resident()
        assert resident() < early + 30, (early, resident())
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_row_kept_of_each_batch_does_not_keep_more_than_the_batches(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        def used():
            with open("/proc/self/smaps_rollup") as lines:
                return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
        before = used()
        rows = [batch[0] for batch in DataLoader(Numbers(400, 25_000), 4, num_workers=2)]
        assert len(rows) == 100
        grown, whole = used() - before, 400 * 25_000 * 8 / 2**20
        assert grown < 2 * whole + 40, (grown, whole)
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr
