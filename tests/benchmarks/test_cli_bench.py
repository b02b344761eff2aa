"""`forebay bench` tells people in tables and programs in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forebay.cli.app import app

TINY = ["--size=16", "--batch-size=8", "--images=16", "--rounds=1", "--threads=1"]


@pytest.mark.parametrize(
    ("command", "words", "key"),
    [
        (["loader", "--workers=0"], ("torch, Pillow", "torch, OpenCV", "forebay is", "Read for an image"), "sides"),
        (["decode"], ("simplejpeg", "native kernel:", "99.9 %", "have an addressable form"), "sides"),
        (["overhead"], ("beside a busy", "are the same as without", "First batch after", "share"), "rows"),
    ],
)
def test_a_benchmark_prints_a_table_or_json(
    photographs: Path, command: list[str], words: tuple[str, ...], key: str
) -> None:
    name, *options = command
    arguments = ["bench", name, str(photographs), *TINY, *options]
    told = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert told.exit_code == 0, told.output
    text = " ".join(told.stdout.split())
    for word in words:
        assert word in text
    assert " ×" in text
    values = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert len(values[key]) >= 3
    assert values["images"] == 16
