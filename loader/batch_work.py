"""What is done to one batch on its way: read, decode, make, assemble. It knows no threads; the engine has them.

A batch is filled by one thread, decoded as a whole by another, what is left of it is made by any number of them, each
sample in its own place, and it is assembled by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from forebay.cache import ShardStore
from forebay.errors import SampleError
from forebay.loader.bad_samples import REPLACEMENT_TRIES, replacement_rows
from forebay.loader.encoded import RawBatch
from forebay.loader.engine_settings import EngineSettings
from forebay.loader.head_work import BatchHeads
from forebay.loader.kernel import Gate
from forebay.loader.outputs import TensorSpec
from forebay.loader.pending_batch import PendingBatch, Places
from forebay.loader.randomness import DrawKey, generator
from forebay.loader.readers import ReaderPool
from forebay.loader.samples import INDEX, VALID, WEIGHT, StageFailed, collate
from forebay.loader.slots import LoaderMemory

__all__ = ["BatchWork", "nbytes_of"]

_ADVICE = {
    "decode": "the shard is refused; write it again from its source",
    "transform": "mend the transform, which fails on all of them",
}


class BatchWork:
    """The work of one pass. `close` when nobody is at work any more.

    Args:
        settings: of the pass.
        store: opens shards; stays the caller's.
        memory: to read and decode into; stays the caller's.
    """

    def __init__(self, settings: EngineSettings, store: ShardStore, memory: LoaderMemory) -> None:
        self._settings = settings
        self._store = store
        self._programs = settings.maker.programs
        self.rules = settings.maker.head_rules(settings.decoder)
        """Which programs have a head, and what decodes it."""
        self.given = [
            settings.decoder == "dali" and head is not None and program.all_head
            for program, head in zip(self._programs, self.rules.heads, strict=True)
        ]
        """By program, whether the decoder brings the memory of its output."""
        self._slots = memory.slots
        self._pool = ReaderPool(
            store,
            settings.data.schema,
            settings.maker.columns,
            blocks=memory.reads,
            in_use=settings.plan.window,
        )
        self._gate = Gate() if settings.decoder == "native" else None
        names = [type(transform).__name__ for transform in settings.batch_transforms]
        self._batch_keys = [f"{name}#{names[:k].count(name)}" for k, name in enumerate(names)]

    @property
    def read_nbytes(self) -> int:
        """Bytes that were read so far."""
        return self._pool.read_nbytes

    def close(self) -> None:
        """Close the shards."""
        self._pool.close()

    def fill(self, batch: PendingBatch) -> int:
        """Find the samples, draw their numbers, read their bytes.

        Returns:
            Bytes of memory that the batch takes.
        """
        s = self._settings
        planned = s.plan.samples(batch.number)
        self._store.advance(planned.position)
        batch.start, batch.valid = planned.start, planned.valid
        batch.weight, batch.excess = planned.weight, planned.excess
        batch.shards, batch.rows = planned.shards.tolist(), planned.rows.tolist()
        batch.indices = s.data.shard_starts[planned.shards] + planned.rows
        batch.draws = [
            program.draw(seed=s.seed, epoch=s.epoch, indices=batch.indices, occurrences=planned.occurrences)
            for program in self._programs
        ]
        self._take_slots(batch)
        before = self._pool.read_nbytes
        batch.raw = self._pool.read_batch(batch.shards, batch.rows, batch.heads.rows if self.rules.columns else None)
        batch.heads.add(batch.raw.pictures)
        if s.partial:
            shares = s.data.shard_nbytes[planned.shards] / s.data.shard_rows[planned.shards]
            batch.unread_nbytes = max(0.0, float(shares.sum()) - (self._pool.read_nbytes - before))
        slots_nbytes = sum(slot.nbytes for slots in batch.slots for slot in slots if slot is not None)
        return slots_nbytes + batch.raw.nbytes

    def _take_slots(self, batch: PendingBatch) -> None:
        count = len(batch.rows)
        batch.slots = [
            tuple(None if spec is None or given else self._slots.take(count, spec) for spec in program.specs)
            for program, given in zip(self._programs, self.given, strict=True)
        ]
        batch.made = [[()] * count for _ in self._programs]
        outs: list[Tensor | None] = []
        for program, head, slots in zip(self._programs, self.rules.heads, batch.slots, strict=True):
            out = slots[0] if head is not None and program.all_head else None  # None where it is given
            if head is not None and out is None and self._gate is not None:  # the other steps go on from its pixels
                out = self._slots.take(count, TensorSpec((3, *head.size), head.dtype, channels_last=True))
            outs.append(out)
        batch.heads = BatchHeads(self.rules, batch.draws, count, outs)

    def cancel(self) -> None:
        """Let the kernel begin nothing more."""
        if self._gate is not None:
            self._gate.cancel()

    def decode(self, batch: PendingBatch) -> list[int]:
        """Let the kernel do what it can, after DALI has; return the places that something is left to do for."""
        count = len(batch.rows)
        if self.rules.decoder == "library":
            return self._left(batch, list(range(count)))
        if self._gate is not None:
            batch.heads.run(self._settings.threads, self._gate)
        complete = np.ones(count, np.bool_)
        for p, program in enumerate(self._programs):
            if program.scalar:
                batch.made[p] = [(value,) for value in batch.raw.values[program.columns[0]]]
            elif program.all_head:
                complete &= batch.heads.done(p)
            else:
                complete[:] = False
        left: list[int] = np.flatnonzero(~complete).tolist()
        return self._left(batch, left)

    @staticmethod
    def _left(batch: PendingBatch, places: list[int]) -> list[int]:
        if places:
            batch.left = places
            batch.pieces = [
                tuple(None if slot is None or slot.is_cuda else torch.split(slot, 1) for slot in slots)
                for slots in batch.slots
            ]
        else:
            batch.raw = RawBatch()  # the bytes are done with
        return places

    def make(self, batch: PendingBatch, i: int) -> None:
        """Do what is left for the sample at place `i`, or fill the place.

        Raises:
            SampleError: the sample is bad, and the settings say so or no other fills its place.
            SourceError, MemoryError: as they come.
        """
        try:
            self._make_from(batch.raw.sample(i), batch, i, batch.heads)
        except MemoryError as lack:
            lack.add_note(f"{self._place(batch, i)}: lower num_workers, prefetch_factor or the size of a batch")
            raise
        except StageFailed as failed:
            name = self._settings.data.shard_name(batch.shards[i])
            error = failed.at(dataset=self._settings.data.name, shard=name, row=batch.rows[i])
            if self._settings.on_error == "raise":
                raise error from failed.__cause__
            self._replace(batch, i, error)

    def _place(self, batch: PendingBatch, i: int) -> str:
        return f"{self._settings.data.name}: {Places(self._settings.data, batch)[i]}"

    def _make_from(self, raw: dict[str, Any], batch: PendingBatch, i: int, heads: BatchHeads | None) -> None:
        out = [tuple(None if pieces is None else pieces[i] for pieces in slots) for slots in batch.pieces]
        for made, values in zip(batch.made, self._settings.maker.make(raw, batch.draws, i, out, heads), strict=True):
            made[i] = values

    def _replace(self, batch: PendingBatch, i: int, error: SampleError) -> None:
        """Fill the place of a bad sample from its shard; the numbers drawn for the place stay as they are."""
        s, shard = self._settings, batch.shards[i]
        rows = int(s.data.shard_rows[shard])
        for row in replacement_rows(seed=s.seed, epoch=s.epoch, index=int(batch.indices[i]), rows=rows):
            try:
                self._make_from(self._pool.read(shard, row), batch, i, None)
            except StageFailed:
                continue
            batch.rows[i] = row
            batch.indices[i] = s.data.shard_starts[shard] + row
            batch.valid[i] = False
            batch.bad[i] = error
            return
        raise SampleError(
            f"{error.dataset}: shard {error.shard}: row {error.row} is bad, and so were {REPLACEMENT_TRIES} rows "
            f"drawn to fill its place: {_ADVICE[error.stage]}. "
            f"The first reason: {error.reason}",
            dataset=error.dataset,
            shard=error.shard,
            row=error.row,
            stage=error.stage,
            reason=error.reason,
        )

    def assemble(self, batch: PendingBatch) -> dict[str, Any]:
        """Put the outputs together."""
        s = self._settings
        places = Places(s.data, batch)
        outputs: dict[str, Any] = {}
        for program, slots, made in zip(self._programs, batch.slots, batch.made, strict=True):
            for k, name in enumerate(program.names):
                slot = slots[k]
                if slot is None:
                    slot = collate(name, [values[k] for values in made], places, ragged=program.ragged[k])
                elif slot.is_cuda:
                    for i in batch.left:  # what was made on the CPU joins in its place
                        if not made[i][k].is_cuda:
                            slot[i].copy_(made[i][k])
                outputs[name] = slot
        if INDEX in s.virtual:
            outputs[INDEX] = torch.from_numpy(batch.indices)
        if VALID in s.virtual:
            outputs[VALID] = torch.from_numpy(batch.valid)
        if WEIGHT in s.virtual:
            outputs[WEIGHT] = torch.tensor(batch.weight, dtype=torch.float64)
        return outputs

    def finish(self, batch: PendingBatch, outputs: dict[str, Any]) -> dict[str, Any]:
        """Do what is done to the batch as a whole, where its tensors are: pointwise steps, batch transforms."""
        s = self._settings
        for program, tail in zip(self._programs, s.tails, strict=True):
            if tail is not None:
                pixels = outputs[program.names[0]]
                outputs[program.names[0]] = tail.run(
                    pixels, None if pixels.is_cuda else self._slots.take(len(pixels), tail.spec)
                )
        for key, transform in zip(self._batch_keys, s.batch_transforms, strict=True):
            rng = generator(DrawKey(s.seed, "forebay.batch", key, s.epoch), index=batch.start, occurrence=s.plan.rank)
            outputs = transform(outputs, rng, s.data.schema)
        return self.pin(outputs)

    def pin(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """Pin what is on the CPU and not pinned yet, where that is wanted."""
        if not self._settings.pin_memory:
            return outputs
        loose = {name for name, value in outputs.items() if isinstance(value, Tensor) and not value.is_cuda}
        return {
            name: value.pin_memory() if name in loose and not value.is_pinned() else value
            for name, value in outputs.items()
        }


def nbytes_of(value: Any) -> int:
    """Bytes of what a batch holds: tensors, arrays, views, and lists and dicts of them."""
    if isinstance(value, dict):
        return sum(map(nbytes_of, value.values()))
    if isinstance(value, list):
        return sum(map(nbytes_of, value))
    return int(getattr(value, "nbytes", 0))
