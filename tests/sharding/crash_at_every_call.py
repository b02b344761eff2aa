"""Kill a writer at each of its system calls in turn, go on with `resume=True`, compare with an undisturbed write.

A process of its own: it forks a writer a kill, and the test that calls it has threads. Prints one JSON object.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from forebay.errors import ManifestError
from forebay.sharding import ShardWriter, open_dataset

ROWS = 12
CALLS = ("open", "write", "fsync", "rename", "ftruncate", "unlink", "close", "mkdir")


def write(path: Path, *, resume: bool) -> None:
    columns = {"image": "image", "label": "int64"}
    with ShardWriter(path, columns, shard_nbytes=1_000, batch_nbytes=400, resume=resume) as writer:
        for row in range(writer.rows_done, ROWS):
            writer.write({"image": bytes([row]) * 200, "label": row})


def kill_at(number: int, *, after: bool) -> None:
    """Let the `number`-th call of this process be its last: before it, or after (a write: after half of its bytes)."""
    count = itertools.count()

    def fatal(name: str) -> Any:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if next(count) != number:
                return real(*args, **kwargs)
            if after:
                real(*((args[0], args[1][: len(args[1]) // 2]) if name == "write" else args), **kwargs)
            return os.kill(os.getpid(), signal.SIGKILL)

        return call

    for name in CALLS:
        setattr(os, name, fatal(name))


def run_until_killed(path: Path, number: int, *, after: bool) -> bool:
    child = os.fork()
    if child == 0:
        kill_at(number, after=after)
        write(path, resume=True)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def main(folder: Path) -> None:
    write(folder / "whole", resume=False)
    expected = contents(folder / "whole")
    report: dict[str, Any] = {"kills": 0, "unfinished": 0, "wrong": []}
    for after in (False, True):
        for number in itertools.count():
            path = folder / "killed"
            if not run_until_killed(path, number, after=after):
                break
            report["kills"] += 1
            try:
                finished = open_dataset(path).rows == ROWS
            except ManifestError:
                report["unfinished"] += 1
                write(path, resume=True)
                finished = True
            found = contents(path)
            found.pop("unfinished.jsonl", None)  # killed between the manifest and the journal's removal
            if not finished or found != expected:
                report["wrong"].append([number, after, sorted(found)])
            shutil.rmtree(path)
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
