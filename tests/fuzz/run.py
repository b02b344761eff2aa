"""Fuzzes the native parts: with libFuzzer, by the branches taken, where atheris is; else by changes alone.

    make fuzz SECONDS=60                                   two processes, on a build for the sanitizers
    make fuzz INPUT=build/fuzz/crash-...                   one input again, such as one that was found
    python -m tests.fuzz.run --repeat                      whether memory grows when the first inputs come again

An input that ends the process, or for which something does not hold, is kept beside the corpus, and its name printed.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import random
import sys
import time
from pathlib import Path
from typing import Any

from tests.fuzz.inputs import MOST_NBYTES, first_inputs, mutate
from tests.fuzz.targets import check

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
COUNTERS = 1 << 16
"""As many as coverage.c has."""
SLOWEST_S = 20
MOST_MEMORY_MB = 4096
GROWTH_NBYTES = 64 << 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("inputs", nargs="*", type=Path, help="check these alone")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"), help="of the corpus and of what is found")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int, default=-1, help="inputs to try; -1: as many as there is time for")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--blind", action="store_true", help="by changes alone, whether or not there is libFuzzer")
    parser.add_argument("--repeat", action="store_true", help="look whether memory grows, and nothing else")
    options = parser.parse_args()
    for path in options.inputs:
        say(f"checking {path}")
        check(path.read_bytes())
    if options.inputs:
        return
    inputs = first_inputs(DATA, 0)
    if options.repeat:
        repeat(inputs)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    for data in inputs:
        keep(options.folder / f"current-{options.seed}", data)
        check(data)
    say(f"{len(inputs)} first inputs hold; seed {options.seed}")
    try:
        atheris = None if options.blind else importlib.import_module("atheris")
    except ImportError:
        say("atheris is not installed: fuzzing without knowing which branches are taken")
        atheris = None
    if atheris is None:
        fuzz_blindly(inputs, options)
    else:
        fuzz(atheris, inputs, options)


def fuzz(atheris: Any, inputs: list[bytes], options: argparse.Namespace) -> None:
    """With libFuzzer; does not return."""

    def change(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.25:
            return bytes(atheris.Mutate(data, most))
        return mutate(data, inputs, rng)[:most]

    corpus = options.folder / "corpus"  # of all fuzzers at once; they read what the others add
    corpus.mkdir(exist_ok=True)
    for number, data in enumerate(inputs):
        keep(corpus / f"first-{number}", data)
    arguments = {
        "seed": options.seed,
        "max_total_time": options.seconds,
        "runs": options.runs,
        "max_len": MOST_NBYTES,
        "len_control": 0,
        "timeout": SLOWEST_S,
        "rss_limit_mb": MOST_MEMORY_MB,
        "artifact_prefix": f"{options.folder}/",
        "print_final_stats": 1,
        "verbosity": 0,
    }
    given = [sys.argv[0], *(f"-{name}={value}" for name, value in arguments.items()), str(corpus)]
    atheris.Setup(given, check, custom_mutator=change)
    count_branches(str(importlib.import_module("atheris.core_with_libfuzzer").__file__))
    atheris.Fuzz()


def count_branches(libfuzzer: str) -> None:
    """Tell libFuzzer of the counters in coverage.c, if that is loaded."""
    process, fuzzer = ctypes.CDLL(None), ctypes.CDLL(libfuzzer)
    for array, announce, nbytes in (
        ("fuzz_counters", "__sanitizer_cov_8bit_counters_init", COUNTERS),
        ("fuzz_places", "__sanitizer_cov_pcs_init", 16 * COUNTERS),
    ):
        try:
            begin = ctypes.addressof((ctypes.c_uint8 * nbytes).in_dll(process, array))
        except ValueError:
            say("coverage.c is not preloaded: libFuzzer does not know which branches are taken")
            return
        getattr(fuzzer, announce)(ctypes.c_void_p(begin), ctypes.c_void_p(begin + nbytes))


def fuzz_blindly(inputs: list[bytes], options: argparse.Namespace) -> None:
    rng = random.Random(options.seed)
    end = time.monotonic() + options.seconds
    done = 0
    while done != options.runs and time.monotonic() < end:
        data = mutate(rng.choice(inputs), inputs, rng)
        current = keep(options.folder / f"current-{options.seed}", data)
        try:
            check(data)
        except BaseException:
            say(f"kept as {current.rename(options.folder / f'crash-{options.seed}-{done}')}")
            raise
        done += 1
    say(f"{done} inputs, seed {options.seed}: nothing found")


def repeat(inputs: list[bytes]) -> None:
    """Check all inputs several times and see that the last times left no more memory in use."""
    allocated = ctypes.CDLL(None).__sanitizer_get_current_allocated_bytes
    allocated.restype = ctypes.c_size_t
    rng = random.Random(0)
    changed = [mutate(data, inputs, rng) for data in inputs]
    used = []
    for _ in range(6):
        for data in [*inputs, *changed]:
            check(data)
        gc.collect()
        used.append(allocated())
    growth = used[-1] - used[2]
    say(f"{len(inputs) * 2} inputs again and again: memory in use after each round {used}")
    if growth > GROWTH_NBYTES:
        raise MemoryError(f"three more rounds left {growth} bytes in use: something is not given back")


def keep(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def say(line: str) -> None:
    sys.stderr.write(f"fuzz: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
