"""Checking every byte of a data set against its checksums, and saying which samples are damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from forebay.errors import ShardCorruptError, SourceError
from forebay.sharding.checksum import shard_checksum
from forebay.sharding.schema import Column, Kind
from forebay.sharding.shard_file import ShardReader
from forebay.sharding.stored import StoredDataset

__all__ = ["Problem", "verify_dataset"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Something in a data set that is not as it was written."""

    shard: str | None
    """None when it is the manifest or the index."""
    row: int | None
    """The damaged sample, or the first one of the damaged record batch; None when it is the shard as a whole."""
    column: str | None
    reason: str


def verify_dataset(data: StoredDataset, *, progress: Callable[[int], None] | None = None) -> list[Problem]:
    """Read all shards and compare every checksum. Goes on after a problem.

    Args:
        data: an opened data set; opening has checked manifest and index.
        progress: called with the number of bytes after each read; their sum is at most `data.shard_nbytes.sum()`.

    Returns:
        What is wrong: for each damaged shard the shard itself, and each of its damaged samples. Empty when all is well.
    """
    return [problem for shard in range(data.num_shards) for problem in _verify_shard(data, shard, progress)]


def _verify_shard(data: StoredDataset, shard: int, progress: Callable[[int], None] | None) -> Iterator[Problem]:
    name = data.shard_name(shard)
    try:
        file = data.source.open(name)
        try:
            found = shard_checksum(file, progress) if file.nbytes == data.shard_nbytes[shard] else None
        finally:
            file.close()
        written = data.shard_checksums[shard].tobytes()
        if found is not None and found != written:
            yield Problem(
                shard=name,
                row=None,
                column=None,
                reason=f"it has checksum {found.hex()}, and the index says {written.hex()}",
            )
        with data.open_shard(shard) as reader:
            if found != written:
                for column in data.schema:
                    yield from _damaged_samples(reader, column)
    except SourceError as error:
        yield Problem(shard=name, row=None, column=None, reason=str(error))


def _damaged_samples(reader: ShardReader, column: Column) -> Iterator[Problem]:
    told = set()  # a damaged batch of scalars or shapes is met at each row, and told once
    for row in range(reader.rows):
        try:
            if column.kind is Kind.SCALAR:
                reader.scalars(column.name)
            else:
                reader.read(row, column.name)
            if column.kind is Kind.TENSOR:
                reader.shape(row, column.name)
        except SourceError as error:
            place = error.row if isinstance(error, ShardCorruptError) else row
            if place not in told:
                told.add(place)
                yield Problem(shard=reader.shard, row=place, column=column.name, reason=str(error))
