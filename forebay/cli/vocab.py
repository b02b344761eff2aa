"""`forebay vocab`: a vocabulary of a column, counted in one pass with bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from forebay.cli.console import console, counted, error_console, print_json
from forebay.cli.table_pass import SchemaChange, open_for_pass, take_all
from forebay.errors import ConfigError

__all__ = ["vocab"]


def vocab(
    path: Annotated[str, typer.Argument(help="A Parquet file, a folder or tree of them, a glob or a URL.")],
    column: Annotated[str, typer.Option(help="Of texts, bytes or whole numbers; a field is user.city.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Ends in .json or .arrow.")],
    min_count: Annotated[int, typer.Option(min=1, help="Leave out values that come less often.")] = 1,
    max_size: Annotated[
        int | None, typer.Option(min=1, help="Keep this many values at most, the most frequent ones.")
    ] = None,
    max_values: Annotated[
        int, typer.Option(min=1, help="Different values that are counted at once: about 100 bytes of memory each.")
    ] = 10_000_000,
    schema_change: Annotated[SchemaChange, typer.Option(help="What may differ between the files' schemas.")] = "error",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Count a column's values and write them as a vocabulary, the most frequent first: code 0 is every other value.

    In training: `vocabularies={"city": T.Vocabulary.load("city.json")}`; `len(vocabulary)` is the size of an embedding.

    With more different values than `--max-values`, the rarest are dropped on the way and counts may be too small by a
    number that is told and kept in the file. No value is lost that comes more often than that.
    """
    from forebay.loader.table_columns import find_columns  # imports torch
    from forebay.loader.value_counts import ValueCounts

    if output.suffix not in (".json", ".arrow"):
        raise ConfigError(f"-o {output}: give a name that ends in .json or .arrow")
    table = open_for_pass(path, schema_change)
    found = find_columns(table.schema, [column])
    if len(found) > 1:
        raise ConfigError(f"--column {column} is a struct of {len(found)} fields; give one: {found[0].name}")
    counts = ValueCounts(found[0], max_values=max_values)
    take_all("counting", table, [found[0].path[0]], counts)
    vocabulary = counts.vocabulary(min_count=min_count, max_size=max_size)
    vocabulary.save(output)
    numbers = vocabulary.counts or []
    report: dict[str, Any] = {
        "path": path,
        "column": column,
        "output": str(output),
        "values": counts.values,
        "nulls": counts.nulls,
        "distinct": counts.distinct,
        "kept": len(numbers),
        "covered": sum(numbers) / counts.values if counts.values else 1.0,
        "counts_short_by": counts.short_by,
    }
    if json:
        print_json(report)
        return
    covered = "" if counts.short_by else f", {report['covered']:.2%} of all"
    console.print(
        f"{escape(str(output))}: {counted(len(numbers), 'value')} of {report['distinct']:,} in "
        f"{counts.values:,} rows{covered}",
        soft_wrap=True,
    )
    if counts.short_by:
        error_console.print(
            f"[yellow]counts are too small by up to {counts.short_by:,}[/]: there were more than {max_values:,} "
            "different values at once; give a larger --max-values for exact ones",
            soft_wrap=True,
        )
