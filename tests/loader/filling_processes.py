"""Run as a program by the tests: forks loaders that fill one decoded cache, two at a time, and kills each of them.

Usage: filling_processes.py DATA CACHE KILLS. With KILLS 0, two loaders fill it side by side and end by themselves. It
forks because importing takes seconds; it has no threads.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys

from forebay import DataLoader, ShardDataset
from forebay import transforms as T


def read(folder: str, cache: str, seed: int, told: int, epochs: int) -> None:
    head = [T.Resize(shorter=40), T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
    dataset = ShardDataset(folder, cache=cache, decoded=True, transforms={"image": head})
    with DataLoader(dataset, 8, shuffle=True, seed=seed, num_workers=2) as loader:
        for _ in range(epochs):
            for _ in loader:
                os.write(told, b".")


def start(folder: str, cache: str, seed: int, epochs: int) -> tuple[int, int]:
    """Fork a loader; its process and the pipe on which it tells each batch."""
    hears, told = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(hears)
            read(folder, cache, seed, told, epochs)
            code = 0
        finally:
            os._exit(code)
    os.close(told)
    return child, hears


def kill(child: int, hears: int, batches: int, pause_s: float) -> None:
    for _ in range(batches):
        if os.read(hears, 1) != b".":
            sys.exit("a loader ended by itself")
    select.select([], [], [], pause_s)  # the moment of the kill is what varies
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        sys.exit("a loader ended by itself")
    os.close(hears)


def main() -> None:
    folder, cache, kills = sys.argv[1:]
    rng = random.Random(0)
    if kills == "0":
        both = [start(folder, cache, seed, 2) for seed in (1, 2)]
        for child, hears in both:
            while os.read(hears, 4096):
                continue
            if os.waitpid(child, 0)[1]:
                sys.exit("a loader failed")
            os.close(hears)
        return
    loaders = [start(folder, cache, 0, 1000)]
    for number in range(1, int(kills)):
        loaders.append(start(folder, cache, number, 1000))
        kill(*loaders.pop(0), rng.randrange(10), rng.random() * 0.02)
    kill(*loaders.pop(), 1, 0)


if __name__ == "__main__":
    main()
