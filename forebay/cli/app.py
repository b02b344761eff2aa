"""All commands under one name, and errors told in a sentence instead of a traceback."""

from __future__ import annotations

import signal
import sys
from importlib.metadata import version
from types import FrameType
from typing import Annotated

import typer
from rich.markup import escape

from forebay.cli.bench import bench_app
from forebay.cli.cache import cache_app
from forebay.cli.console import console, error_console
from forebay.cli.demo import demo
from forebay.cli.doctor import doctor
from forebay.cli.inspect import inspect
from forebay.cli.shard import shard
from forebay.cli.stats import stats
from forebay.cli.verify import verify
from forebay.cli.vocab import vocab
from forebay.errors import ForebayError

__all__ = ["app", "main"]

app = typer.Typer(
    name="forebay",
    help="Training data for PyTorch: shard it once, then train without waiting for it.",
    epilog="Begin with `forebay demo`; then `forebay shard PHOTOS SHARDS` on a folder of class folders of your own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
)
app.command()(demo)
app.command()(shard)
app.command()(inspect)
app.command()(verify)
app.command()(stats)
app.command()(vocab)
app.command()(doctor)
app.add_typer(cache_app, name="cache")
app.add_typer(bench_app, name="bench")


def _tell_version(wanted: bool) -> None:
    if wanted:
        console.print(f"forebay {version('forebay')}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run a command; an error of ours is one red sentence and exit code 1, Ctrl-C says so and is exit code 130."""
    signal.signal(signal.SIGINT, _interrupt)
    try:
        app()
    except ForebayError as error:
        error_console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # Said here, because typer turns a KeyboardInterrupt into its exit code without a word.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    error_console.print("\ninterrupted")
    raise KeyboardInterrupt
