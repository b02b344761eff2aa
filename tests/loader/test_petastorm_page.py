"""The page for those who come from Petastorm: what it names exists, and its code does what it says."""

from __future__ import annotations

import inspect
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay import DataLoader, ShardDataset
from forebay.loader import transforms as T

PAGE = Path(__file__).resolve().parents[2] / "docs" / "petastorm.md"


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_every_declaration_and_argument_on_the_page_exists(text: str) -> None:
    assert set(re.findall(r"\bT\.(\w+)", text)) <= set(T.__all__)
    here = "|".join(line.split("|")[2] for line in text.splitlines() if line.count("|") == 3)
    arguments = {*inspect.signature(ShardDataset).parameters, *inspect.signature(DataLoader).parameters}
    of_declarations = {"cut", "lengths"}
    assert set(re.findall(r"(?:^|[(`, ])(\w+)=(?!=)", here)) - {"f"} <= arguments | of_declarations


def test_a_field_of_arrays_is_decoded_as_the_page_says(text: str) -> None:
    block = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def decode" in block)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - the page's own code
    values = []
    for row in range(10):
        file = io.BytesIO()
        np.save(file, np.full(4, row, np.float32))
        values.append(file.getvalue())
    batch = names["decode"](pa.record_batch({"id": range(10), "matrix": values}))
    assert batch["matrix"].to_pylist() == [[row] * 4 for row in range(10)]
    assert names["decode"](batch.slice(0, 0).set_column(1, "matrix", pa.array([], pa.binary()))).schema == batch.schema


def test_the_first_script_of_the_page_gives_what_its_comment_says(tmp_path: Path) -> None:
    columns = {"f0": np.arange(20, dtype=np.float32), "f1": np.zeros(20, np.float32), "label": np.arange(20)}
    pq.write_table(pa.table(columns), tmp_path / "clicks.parquet")
    data = ShardDataset(tmp_path, columns=["f0", "f1", "label"], stack={"features": ["f0", "f1"]}, cache="")
    with DataLoader(data, batch_size=20, shuffle=True) as loader:
        loader.set_epoch(0)
        (batch,) = loader
    assert [(name, str(one.dtype), one.shape[1:]) for name, one in batch.items()] == [
        ("label", "torch.int64", ()),
        ("features", "torch.float32", (2,)),
    ]
    assert batch["features"][:, 0].tolist() == batch["label"].tolist()
    assert sorted(batch["label"].tolist()) == list(range(20))
