"""`python -m forebay.run script.py`: an unchanged training script on this loader, and where its time went.

It puts the loader in torch's place, runs the script as Python would, and prints a table at the end. It changes nothing
in processes that the script starts as programs of their own.
"""

from __future__ import annotations

import argparse
import atexit
import json
import multiprocessing.spawn
import multiprocessing.util
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["main"]

_HELP = """\
Run a training script as it is, with forebay's DataLoader wherever it says torch.utils.data.DataLoader:
the same batches for the same arguments and seeds, sooner. At its end a table on standard error tells how long each
loader kept the script waiting, and what to try.
"""
_EPILOG = """\
examples:
  python -m forebay.run train.py --epochs 90                 options after the script are the script's
  python -m forebay.run -m package.train --epochs 90         a module, as python -m runs it
  python -m forebay.run --json time.json train.py            keep the numbers, too
  torchrun --nproc-per-node 8 -m forebay.run train.py        on every rank (this -m is torchrun's)
  accelerate launch -m forebay.run train.py                  likewise

Processes that the script starts by multiprocessing are served too, and tell their own time; there FILE becomes
FILE-pid1234 (before its suffix), and under torchrun FILE-rank0 and so on. Programs that it starts by subprocess are
not served. To keep it, change one import in the script: from forebay import DataLoader.
"""
_OWN_FILES = (__file__, runpy.__file__, "<frozen runpy>")


def main() -> None:
    """Run the script that the command line names; it ends as the script does."""
    parser = argparse.ArgumentParser(
        "python -m forebay.run",
        usage="python -m forebay.run [--json FILE] (script.py | -m package.module) [arguments of the script]",
        description=_HELP,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE as JSON")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module instead of a file")
    parser.add_argument("script", help="a Python file, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")
    options = parser.parse_args()
    script: str = options.script
    if options.json is not None and not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.absolute().parent}")
    if not options.module and not os.path.exists(script):
        parser.error(f"there is no file {script}; give a script, or -m and the name of a module")

    _begin(options.json)
    atexit.register(_tell, os.getpid(), options.json)  # the first one registered is the last one called
    sys.argv = [script, *options.arguments]
    if not options.module and os.path.isfile(script) and not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    try:
        if options.module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(os.path.abspath(script), run_name="__main__")  # the __file__ that Python gives a script
    except KeyboardInterrupt as error:
        _without_own_frames(sys.excepthook)(type(error), error, error.__traceback__)
        sys.exit(128 + signal.SIGINT)  # `python -m` would make it 1, but a script that is stopped ends with 130
    except BaseException:
        sys.excepthook = _without_own_frames(sys.excepthook)
        raise


def _without_own_frames(hook: Callable[..., Any]) -> Callable[..., Any]:
    """An excepthook that is told of the script's frames alone."""

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FILES:
            trace = trace.tb_next
        hook(kind, error.with_traceback(trace), trace)

    return told


def _begin(json_path: Path | None) -> None:
    """Put the loader in torch's place, here and in the processes that multiprocessing will start from here."""
    from forebay.run_loader import take_torchs_place  # imports torch

    take_torchs_place()
    prepare = multiprocessing.spawn.get_preparation_data

    def prepare_with_loader(name: str) -> dict[str, Any]:
        data = prepare(name)
        for key in ("init_main_from_path", "init_main_from_name"):
            if key in data:
                data[key] = _MainName(data[key], json_path)
        return data

    multiprocessing.spawn.get_preparation_data = prepare_with_loader
    multiprocessing.util.register_after_fork(_begin_in_child, lambda begin: begin(json_path))


def _begin_in_child(json_path: Path | None) -> None:
    """In a process that multiprocessing has started: tell its own time when it ends."""
    from forebay.run_loader import records

    records.clear()  # of a forked one: they are its parent's
    multiprocessing.util.Finalize(None, _tell, (os.getpid(), json_path, f"pid{os.getpid()}"), exitpriority=0)


class _MainName(str):
    """The script's file or module as it is told to a spawned process, which begins with `_arrive` on reading it."""

    __slots__ = ("json_path",)

    def __new__(cls, name: str, json_path: Path | None) -> Self:
        new = super().__new__(cls, name)
        new.json_path = json_path
        return new

    json_path: Path | None

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (str(self), self.json_path)


def _arrive(name: str, json_path: Path | None) -> str:
    """In a spawned process, before it imports the script."""
    _begin(json_path)
    _begin_in_child(json_path)
    return name


def _tell(pid: int, json_path: Path | None, child: str | None = None) -> None:
    """Print the report of this process, and write it.

    Args:
        pid: the process whose it is: one that was forked behind our back has the same records, and stays silent.
        json_path: where the numbers go, but for what makes the name one of this process's own.
        child: what tells this process from the one that was started by hand.
    """
    from forebay.run_loader import records

    if os.getpid() != pid or (child is not None and not records):
        return  # a process without loaders is a worker, most likely
    from forebay.cli.console import error_console
    from forebay.run_report import report, sum_up

    rank = f"rank{os.environ['RANK']}" if "RANK" in os.environ else None
    which = "-".join(filter(None, (rank, child))) or None
    times = sum_up(records)
    title = f"forebay.run{f', {which}' if which else ''}"
    error_console.print(report(times, title=title, cores=len(os.sched_getaffinity(0))))
    if json_path is not None:
        path = json_path if which is None else json_path.with_stem(f"{json_path.stem}-{which}")
        path.write_text(json.dumps({"process": which, "loaders": [time.to_dict() for time in times]}, indent=2) + "\n")


if __name__ == "__main__":
    from forebay.run import main as main_of_the_module  # not this copy: what is pickled is found by its module's name

    main_of_the_module()
