from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay.errors import ConfigError, SampleError, SchemaError
from forebay.loader.function_identity import function_identity
from forebay.loader.tables_function import UnitFunction

TABLE = pa.table({"a": [1, 2, 3]})
FACTOR = 2


def scale(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(0, "a", pc.multiply(batch["a"], FACTOR))


def made_of(text: str) -> Any:
    """A function by its text, as from a file that was edited."""
    space: dict[str, Any] = {"pc": pc, "np": np}
    exec(text, space)  # noqa: S102 - what an edit does
    return space["f"]


def test_equal_code_is_one_function_and_every_change_another() -> None:
    texts = [
        "def f(b):\n  return pc.add(b, 1)",
        "def f(b):\n  return pc.add(b, 2)",
        "def f(b):\n  return pc.subtract(b, 1)",
        "def f(b, k=1):\n  return pc.add(b, 1)",
        "def f(b, k=2):\n  return pc.add(b, 1)",
        "def g(b):\n  return b\ndef f(b):\n  return g(b)",
        "def g(b):\n  return -b\ndef f(b):\n  return g(b)",
        "k = 1\ndef f(b):\n  return b * k",
        "k = 2\ndef f(b):\n  return b * k",
        "def f(b):\n  return [x + 1 for x in b]",
        "def f(b):\n  return [x + 2 for x in b]",
        "w = np.arange(3)\ndef f(b):\n  return b @ w",
        "w = np.arange(4)\ndef f(b):\n  return b @ w",
    ]
    identities = [function_identity(made_of(text)) for text in texts]
    assert len(set(identities)) == len(texts)
    assert identities == [function_identity(made_of(text)) for text in texts]
    assert function_identity(made_of("\n\n# moved\n" + texts[0])) == identities[0]


def test_closures_and_partials_are_told_apart_by_what_they_hold() -> None:
    def adding(number: int) -> Any:
        return lambda batch: pc.add(batch, number)

    assert function_identity(adding(1)) == function_identity(adding(1)) != function_identity(adding(2))
    partials = [functools.partial(made_of("def f(b, k): return b"), k=k) for k in (1, 2)]
    assert function_identity(partials[0]) != function_identity(partials[1])


def test_a_version_counts_alone() -> None:
    first, second = made_of("def f(b):\n  return b"), made_of("def f(b):\n  return b + 1")
    first.version = second.version = "3"
    assert function_identity(first) == function_identity(second)
    second.version = "4"
    assert function_identity(first) != function_identity(second)


def test_a_function_of_which_nothing_tells_when_it_changes_is_refused_until_it_has_a_version() -> None:
    source = random.Random(0)

    def noisy(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(int(source.random()))

    with pytest.raises(ConfigError, match=r'random\.Random.*noisy\.version = "1"'):
        function_identity(noisy)
    noisy.version = 1  # type: ignore[attr-defined]
    assert function_identity(noisy)


def test_frames_are_given_as_the_annotation_says() -> None:
    def of_table(table: pa.Table) -> dict[str, Any]:
        assert isinstance(table, pa.Table)
        return {"a": table["a"]}

    assert UnitFunction(of_table)(TABLE, 0, "here").equals(TABLE)
    assert UnitFunction(scale)(TABLE, 0, "here").to_pydict() == {"a": [2, 4, 6]}


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_frames_of_other_libraries_come_back_as_tables(library: str) -> None:
    pytest.importorskip(library)
    frame = {"polars": "pl.DataFrame", "pandas": "pd.DataFrame"}[library]

    def doubled(given: Any) -> Any:
        assert type(given).__module__.startswith(library)
        return given * 2

    doubled.__annotations__["given"] = frame
    assert UnitFunction(doubled)(TABLE, 0, "here").to_pydict() == {"a": [2, 4, 6]}


def test_random_numbers_belong_to_the_unit() -> None:
    def noisy(batch: pa.RecordBatch, rng: np.random.Generator) -> dict[str, Any]:
        return {"a": pa.array(rng.random(batch.num_rows))}

    function = UnitFunction(noisy)
    first = function(TABLE, 0, "here")
    assert function(TABLE, 0, "here").equals(first)
    assert not function(TABLE, 1, "here").equals(first)


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (lambda batch: batch.slice(1), SampleError, "gave 2 rows for 3.*filter="),
        (lambda batch: 7, SampleError, "it gave a int"),
        (lambda batch: batch["missing"], SampleError, "KeyError"),
    ],
)
def test_what_goes_wrong_names_function_and_place(function: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"on row group 4.*{said}|{said}.*"):
        UnitFunction(function)(TABLE, 0, "row group 4")


def test_a_function_that_does_not_bear_no_rows_is_told_so() -> None:
    def first(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.equal(batch["a"], batch["a"].to_pylist()[0]))

    with pytest.raises(SchemaError, match="no rows"):
        UnitFunction(first).schema_of(TABLE.schema, "here")
    with pytest.raises(ConfigError, match="takes nothing"):
        UnitFunction(lambda: 1)
    with pytest.raises(ConfigError, match="give a function"):
        UnitFunction(3)  # type: ignore[arg-type]
