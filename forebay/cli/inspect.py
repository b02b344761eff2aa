"""`forebay inspect`: what is in a data set, without reading more than a few samples."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image
from rich.markup import escape
from rich.table import Table

from forebay.cache import open_place
from forebay.cli.console import console, print_json
from forebay.cli.contact_sheet import draw_sheet, sheet_column
from forebay.errors import ConfigError, SourceError
from forebay.sharding import Column, Kind, ShardReader, StoredDataset

__all__ = ["inspect"]

CELL_LETTERS = 60
CLASSES_SHOWN = 8


def inspect(
    path: Annotated[str, typer.Argument(help="Folder or URL of a data set.")],
    rows: Annotated[int, typer.Option(min=0, help="How many samples to show.")] = 5,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the first pictures into this file: a contact sheet.")
    ] = None,
    images: Annotated[int, typer.Option(min=1, max=1000, help="How many pictures the sheet shows, at most.")] = 24,
    column: Annotated[
        str | None, typer.Option(help="Which column the sheet shows.", show_default="the first of images, or of masks")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show what a data set holds: columns, classes, sizes, the writer's settings, and the first samples.

    Reads the manifest, the index, and the first samples only: a bucket of millions of shards answers at once.

    With `--sheet first.png` also draws the first 24 pictures, upright, with their labels. Those that do not decode are
    grey tiles; masks are coloured by their values.
    """
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise ConfigError(f"--sheet {sheet}: the sheet is a PNG; give a name that ends in .png")
    data = open_place(path)
    summary = summarise(data, rows)
    if sheet is not None:
        _save_sheet(draw_sheet(data, sheet_column(data, column), images), sheet)
        summary["sheet"] = str(sheet)
    if json:
        print_json(summary)
        return
    _print_tables(summary)
    if sheet is not None:
        console.print(f"contact sheet: {escape(str(sheet))}", soft_wrap=True)


def summarise(data: StoredDataset, rows: int) -> dict[str, Any]:
    """What `inspect` shows, as JSON has it."""
    quantiles = np.quantile(data.shard_nbytes, [0, 0.5, 1]).astype(np.int64).tolist() if data.num_shards else [0, 0, 0]
    return {
        "path": data.name,
        "fingerprint": data.fingerprint,
        "parent": data.manifest.parent,
        "rows": data.rows,
        "shards": data.num_shards,
        "nbytes": data.manifest.nbytes,
        "shard_nbytes": dict(zip(("smallest", "median", "largest"), quantiles, strict=True)),
        "writer": data.manifest.writer,
        **data.schema.to_json(),
        "addressable": _count_addressable(data),
        "samples": _first_samples(data, rows),
    }


def _first_samples(data: StoredDataset, rows: int) -> list[dict[str, str]]:
    samples: list[dict[str, str]] = []
    for shard in range(data.num_shards):
        if len(samples) >= rows:
            break
        with data.open_shard(shard) as reader:
            for row in range(min(reader.rows, rows - len(samples))):
                samples.append({column.name: _describe(reader, row, column) for column in data.schema})  # noqa: PERF401
    return samples


def _count_addressable(data: StoredDataset) -> dict[str, dict[str, int]]:
    """Of each column of images: how many of the first shard's are crop-addressable JPEGs. Reads its footer."""
    names = [column.name for column in data.schema if column.kind is Kind.IMAGE]
    shard = int(np.argmax(data.shard_rows > 0)) if data.rows else 0  # some may be empty
    if not names or not data.rows:
        return {}
    with data.open_shard(shard, names) as reader:
        return {
            name: {
                "rows": reader.rows,
                "addressable": sum(reader.jpeg_layout(row, name) is not None for row in range(reader.rows)),
            }
            for name in names
        }


def _describe(reader: ShardReader, row: int, column: Column) -> str:
    value = reader.value(row, column.name)
    match column.kind:
        case Kind.IMAGE | Kind.MASK:
            addressable = column.kind is Kind.IMAGE and reader.jpeg_layout(row, column.name) is not None
            return f"{_describe_image(value)}{', addressable' if addressable else ''}, {len(value)} bytes"
        case Kind.BYTES | Kind.AUDIO | Kind.VIDEO:
            return f"{len(value)} bytes"
        case Kind.TENSOR:
            return f"{value.dtype} {'x'.join(map(str, value.shape))}"
        case Kind.SCALAR:
            name = "" if column.classes is None else f" ({column.classes[int(value)]})"
            return f"{value}{name}"
        case _:
            return str(value)


def _describe_image(value: bytes) -> str:
    try:
        with Image.open(io.BytesIO(value)) as image:  # the header only
            return f"{image.width}x{image.height} {image.format}"
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return "no image that Pillow knows"


def _save_sheet(picture: Image.Image, path: Path) -> None:
    try:
        picture.save(path, "PNG")
    except OSError as error:
        raise SourceError(
            f"the sheet cannot be written to {path}: {error.strerror or error}", path=str(path)
        ) from error


def _print_tables(summary: dict[str, Any]) -> None:
    facts = Table(title=escape(summary["path"]), show_header=False, title_justify="left")
    sizes = summary["shard_nbytes"]
    for name, text in {
        "samples": f"{summary['rows']:,}",
        "shards": f"{summary['shards']:,}",
        "size": human_size(summary["nbytes"]),
        "shard sizes": f"{human_size(sizes['smallest'])} to {human_size(sizes['largest'])}, "
        f"median {human_size(sizes['median'])}",
        "fingerprint": summary["fingerprint"],
        "grown from": summary["parent"] or "-",
        "writer": ", ".join(f"{key}={value}" for key, value in summary["writer"].items()),
        **{
            f"addressable JPEGs, {name}": f"{count['addressable']:,} of the {count['rows']:,} in the first shard"
            for name, count in summary["addressable"].items()
        },
    }.items():
        facts.add_row(escape(name), escape(text))
    console.print(facts)
    columns = Table("column", "type", "classes", title="columns", title_justify="left")
    for column in summary["columns"]:
        names = column.get("classes", [])
        more = f", ... ({len(names)} classes)" if len(names) > CLASSES_SHOWN else ""
        columns.add_row(escape(column["name"]), escape(column["type"]), escape(", ".join(names[:CLASSES_SHOWN]) + more))
    console.print(columns)
    if not summary["samples"]:
        return
    samples = Table(
        "", *(escape(column["name"]) for column in summary["columns"]), title="first samples", title_justify="left"
    )
    for row, sample in enumerate(summary["samples"]):
        samples.add_row(str(row), *(escape(_shorten(text)) for text in sample.values()))
    console.print(samples)


def _shorten(text: str) -> str:
    text = text.translate(
        {code: repr(chr(code))[1:-1] for code in (*range(32), 127)}
    )  # a name with a newline is one line
    return text if len(text) <= CELL_LETTERS else f"{text[: CELL_LETTERS - 3]}..."


def human_size(nbytes: int) -> str:
    """Bytes as a person reads them: 64.0 MiB."""
    size = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
