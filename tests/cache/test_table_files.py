from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("table_peer.py")


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> dict[str, dict]:  # type: ignore[type-arg]
    """What came of each file, by forebay and by pyarrow, each file in a process of its own."""
    folder: Path = request.getfixturevalue("data_dir") / "parquet"
    paths = sorted(str(path) for path in folder.rglob("*") if path.is_file() and path.name != "INDEX.csv")
    if not paths:
        pytest.skip(f"there are no Parquet files in {folder}")
    told = subprocess.run(
        [sys.executable, str(CHILD)], input="\n".join(paths), capture_output=True, text=True, timeout=540, check=True
    )
    found = [json.loads(line) for line in told.stdout.splitlines()]
    assert [each["path"] for each in found] == paths
    return {each.pop("path"): each for each in found}


def test_no_file_kills_its_reader(outcomes: dict[str, dict]) -> None:  # type: ignore[type-arg]
    assert [path for path, told in outcomes.items() if "died" in told["ours"]] == []


def test_every_file_is_read_as_pyarrow_reads_it_or_refused_by_name(outcomes: dict[str, dict]) -> None:  # type: ignore[type-arg]
    wrong = []
    for path, told in outcomes.items():
        ours, theirs = told["ours"], told["theirs"]
        if "rows" in ours and not told.get("equal"):
            wrong.append((path, "other rows than pyarrow's", theirs))
        if "rows" not in ours and Path(path).name not in ours.get("refused", ""):
            wrong.append((path, "not refused by name", ours))
    assert wrong == []


def test_nothing_is_refused_that_pyarrow_reads(outcomes: dict[str, dict]) -> None:  # type: ignore[type-arg]
    assert [path for path, told in outcomes.items() if "rows" in told["theirs"] and "rows" not in told["ours"]] == []
