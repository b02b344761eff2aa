"""`forebay stats`: what is in the columns of a table, in one pass: for people, and for transforms."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from forebay.cli.console import console, error_console, print_json
from forebay.cli.table_pass import SchemaChange, open_for_pass, take_all
from forebay.errors import SourceError

__all__ = ["stats"]

_SHOWN = ("0.01", "0.5", "0.99")


def stats(
    path: Annotated[str, typer.Argument(help="A Parquet file, a folder or tree of them, a glob or a URL.")],
    column: Annotated[
        list[str] | None,
        typer.Option(help="A column, or a field such as user.age, or several; if none, all."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.json", help="Also write the JSON into this file.")
    ] = None,
    schema_change: Annotated[SchemaChange, typer.Option(help="What may differ between the files' schemas.")] = "error",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Count, nulls, smallest, largest, mean, deviation, quantiles and different values of each column, in one pass.

    The JSON is what transforms read: `T.Standardize.of(T.load_statistics("stats.json")["price"])`, `T.Clip.of`,
    `T.Bucketize.of`. Memory is a few MiB a column, whatever the size of the table.

    Quantiles are exact up to 65,536 values, beyond that of a sketch whose ranks are within 0.1 %. Different values are
    counted up to 65,536, beyond that estimated, with a standard error of 0.4 %, and marked by "about".
    """
    from forebay.loader.column_statistics import STATISTICS_VERSION  # imports torch
    from forebay.loader.statistics_pass import StatisticsPass

    table = open_for_pass(path, schema_change)
    total = StatisticsPass(table.schema, column)

    num_rows = take_all("looking", table, total.columns, total)
    report = {
        "version": STATISTICS_VERSION,
        "path": path,
        "rows": num_rows,
        "columns": [asdict(statistics) for statistics in total.statistics()],
        "left_out": total.left_out,
    }
    if output is not None:
        try:
            output.write_text(json_format.dumps(report, indent=2), encoding="utf-8")
        except OSError as error:
            raise SourceError(f"{output} cannot be written: {error.strerror or error}", path=str(output)) from error
    if json:
        print_json(report)
    else:
        _print_table(report)


def _print_table(report: dict[str, Any]) -> None:
    names = ("column", "values", "min, max", "mean, std", "quantiles", "distinct")
    shown = Table(*names, title=f"{escape(report['path'])}: {report['rows']:,} rows", title_justify="left")
    shown.show_lines = True
    for one in report["columns"]:
        quantiles = [f"{float(at):.0%} {_short(one['quantiles'][at])}" for at in _SHOWN if at in one["quantiles"]]
        counts = [f"{one['count']:,}", f"{one['nulls']:,} null", f"{one['nans']:,} NaN" if one["nans"] else ""]
        cells = [
            (one["name"], one["type"]),
            [line for line in counts if line],
            (_short(one["min"]), _short(one["max"])),
            (_short(one["mean"]), _short(one["std"])),
            quantiles or ["-"],
            ([] if one["distinct_is_exact"] else ["about"]) + [f"{one['distinct']:,}"],
        ]
        shown.add_row(*(escape("\n".join(lines)) for lines in cells))
    console.print(shown)
    if report["left_out"]:
        names_left = ", ".join(report["left_out"])
        error_console.print(
            f"left out, for they hold no numbers or texts: {escape(names_left)}; --json says more", soft_wrap=True
        )


def _short(value: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= 20 else f"{text[:17]}..."
