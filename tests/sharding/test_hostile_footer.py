"""Footers made to mislead: whoever made the shard made the index too, so the checksums hold."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.errors import ShardCorruptError
from forebay.sharding import Schema, ShardReader, open_dataset, sample_checksum
from forebay.sharding.footer import FOOTER_METADATA_KEY
from forebay.sharding.shard_layout import build_batch, lay_out_shard
from forebay.sharding.values import encode_sample

Sample = dict[str, Any]


class Memory:
    """A source file in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.nbytes = len(content)

    def read(self, offset: int, nbytes: int) -> memoryview:
        assert 0 <= offset <= offset + nbytes <= self.nbytes
        return memoryview(self.content)[offset : offset + nbytes]

    def close(self) -> None:
        pass


def open_hostile(schema: Schema, content: bytes, rows: int) -> ShardReader:
    footer_nbytes = int.from_bytes(content[-10:-6], "little", signed=True) + 10
    tail = content[max(0, len(content) - footer_nbytes) :]
    return ShardReader(
        Memory(content),
        dataset="d",
        shard="s",
        schema=schema,
        footer_nbytes=footer_nbytes,
        footer_checksum=sample_checksum(tail),
        rows=rows,
    )


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_hostile_footer_is_an_error_and_reads_nothing_outside_the_file(pristine: Path, data: st.DataObject) -> None:
    schema = open_dataset(pristine).schema
    content = bytearray((pristine / "00000000.arrow").read_bytes())
    rows = int(open_dataset(pristine).shard_rows[0])
    footer_nbytes = int.from_bytes(content[-10:-6], "little") + 10
    for _ in range(data.draw(st.integers(1, 4))):
        content[len(content) - data.draw(st.integers(1, footer_nbytes))] = data.draw(st.integers(0, 255))
    try:
        reader = open_hostile(schema, bytes(content), rows)
        for row in range(reader.rows):
            for name in schema.names:
                reader.value(row, name)
    except ShardCorruptError:
        pass


def forge(pristine: Path, samples: list[Sample], edit: Callable[[Any], Any]) -> tuple[Schema, bytes]:
    """A shard whose footer metadata `edit` has changed; everything else is as forebay writes it."""
    schema = open_dataset(pristine).schema
    batches = [build_batch(schema, [encode_sample(schema, sample, 0) for sample in samples[:3]])]
    metadata = pa.ipc.open_file(lay_out_shard(schema, batches).data).metadata
    content = edit(json.loads(metadata[FOOTER_METADATA_KEY]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema.arrow_schema, metadata={FOOTER_METADATA_KEY: json.dumps(content)}) as writer:
        for built in batches:
            writer.write_batch(built.batch)
    return schema, sink.getvalue().to_pybytes()


def packed(*values: int) -> str:
    return base64.b64encode(np.array(values, dtype="<i8").tobytes()).decode()


def edit_column(name: str, **arrays: Any) -> Callable[[Any], Any]:
    def edit(content: Any) -> Any:
        content["columns"][name] |= arrays
        return content

    return edit


LIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a newer version": (lambda content: content | {"version": 2}, "upgrade"),
    "no version": (lambda content: content | {"version": None}, "upgrade"),
    "no object": (lambda content: [], "not of forebay's form"),
    "an empty object": (lambda content: {}, "not of forebay's form"),
    "no columns": (lambda content: content | {"columns": {}}, "not of forebay's form"),
    "a row too few": (lambda content: content | {"batch_rows": packed(2)}, "the index says 3"),
    "row counts that wrap round": (
        lambda content: content | {"batch_rows": packed(*[2**62] * 4, 3)},
        "the index says 3",
    ),
    "a batch of -1 rows": (lambda content: content | {"batch_rows": packed(4, -1)}, "the index says 3"),
    "no base64": (lambda content: content | {"batch_rows": "####"}, "no base64"),
    "half a number": (lambda content: content | {"batch_rows": "AAAA"}, "not of forebay's form"),
    "a start before the file": (edit_column("image", starts=packed(-1)), "outside the file"),
    "a start far behind it": (edit_column("image", starts=packed(1 << 62)), "outside the file"),
    "a start that wraps round": (edit_column("image", starts=packed((1 << 63) - 1)), "outside the file"),
    "a start too many": (edit_column("image", starts=packed(0, 0)), "2 numbers where 1 are due"),
    "a sample longer than the file": (edit_column("image", nbytes=packed(1, 1, 1 << 40)), "longer than the file"),
    "a sample of -1 bytes": (edit_column("image", nbytes=packed(1, 1, -1)), "longer than the file"),
    "a length too few": (edit_column("image", nbytes=packed(1, 1)), "2 numbers where 3 are due"),
    "no checksums": (edit_column("image", checksums=packed()), "0 numbers where 3 are due"),
    "values far behind the file": (edit_column("label", starts=packed(1 << 62)), "outside the file"),
    "values before it": (edit_column("label", starts=packed(-8)), "outside the file"),
    "no starts": (edit_column("label", starts=None), "not of forebay's form"),
    "no shapes": (edit_column("sound", shapes={}), "not of forebay's form"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_footer_that_lies_is_refused(lie: str, pristine: Path, samples: list[Sample]) -> None:
    edit, says = LIES[lie]
    schema, content = forge(pristine, samples, edit)
    with pytest.raises(ShardCorruptError, match="shard s of d: ") as caught:
        open_hostile(schema, content, rows=3)
    assert says in str(caught.value)


def test_a_shard_of_another_schema_is_refused(pristine: Path, samples: list[Sample]) -> None:
    _, content = forge(pristine, samples, lambda content: content)
    other = Schema.from_spec({"image": "image"})
    with pytest.raises(ShardCorruptError, match="not of this data set"):
        open_hostile(other, content, rows=3)


def test_an_index_that_claims_giant_row_counts_costs_no_memory(pristine: Path, samples: list[Sample]) -> None:
    schema, content = forge(pristine, samples, lambda content: content | {"batch_rows": packed(1 << 61)})
    with pytest.raises(ShardCorruptError, match="cannot hold"):
        open_hostile(schema, content, rows=1 << 61)
