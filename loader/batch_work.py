"""What is done to one batch on its way: read, decode, make, assemble. It knows no threads; the engine has them.

Batches are planned one after the other. Each is filled by one thread, decoded as a whole by another, what is left of
it is made by any number of them, each sample in its own place, and it is assembled by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forebay.cache import ShardStore
from forebay.errors import SampleError
from forebay.loader.audio_store import AudioStore
from forebay.loader.bad_samples import REPLACEMENT_TRIES, replacement_rows
from forebay.loader.decoded_choice import StoreDecision
from forebay.loader.decoded_output import DecodedOutput
from forebay.loader.decoded_pass import DecodedPass
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
from forebay.sharding import Kind

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
        decision: whether decoded samples are stored, when that is to be found out.

    Raises:
        CacheError: the decoded cache cannot be used.
    """

    def __init__(
        self,
        settings: EngineSettings,
        store: ShardStore,
        memory: LoaderMemory,
        decision: StoreDecision | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._programs = settings.maker.programs
        self._slots = memory.slots
        self._expected = memory.expected
        self._pool = ReaderPool(
            store,
            settings.data.schema,
            settings.maker.columns,
            blocks=memory.reads,
            in_use=settings.plan.window,
        )
        self._gate = Gate() if settings.decoder == "native" else None
        self._decoded: DecodedPass | None = None
        if settings.decoded is not None:
            self._decoded = DecodedPass(
                settings.decoded,
                settings.data,
                self._programs,
                self._pool,
                native=settings.decoder == "native",
                decision=decision,
            )
        self._audio: dict[str, AudioStore] = {}
        if settings.decoded is not None and self._decoded is not None:
            columns = dict.fromkeys(name for program in self._programs for name in program.columns)
            self._audio = {
                name: AudioStore(settings.decoded.cache, settings.data, name, self._pool, self._decoded.keeps)
                for name in columns
                if settings.data.schema[name].kind is Kind.AUDIO
            }
        apart = () if self._decoded is None else self._decoded.programs
        self.rules = settings.maker.head_rules(settings.decoder, apart)
        """Which programs have a head, and what decodes it."""
        self.given = [
            settings.decoder == "dali" and head is not None and program.all_head
            for program, head in zip(self._programs, self.rules.heads, strict=True)
        ]
        """By program, whether the decoder brings the memory of its output."""
        names = [type(transform).__name__ for transform in settings.batch_transforms]
        self._batch_keys = [f"{name}#{names[:k].count(name)}" for k, name in enumerate(names)]

    @property
    def read_nbytes(self) -> int:
        """Bytes that were read so far."""
        return self._pool.read_nbytes

    def decoded_stats(self) -> dict[str, int | str]:
        """What the decoded cache did; empty without one."""
        return {} if self._decoded is None else self._decoded.stats()

    def close(self) -> None:
        """Close the shards, and the files of decoded samples."""
        for store in self._audio.values():
            store.close()
        if self._decoded is not None:
            self._decoded.close()
        self._pool.close()

    def plan(self, batch: PendingBatch) -> None:
        """Find the samples, draw their numbers. Batch after batch."""
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

    def fill(self, batch: PendingBatch) -> int:
        """Read the bytes of a planned batch.

        Returns:
            Bytes of memory that the batch takes.
        """
        s = self._settings
        outs = self._take_slots(batch)
        if self._decoded is not None:
            batch.decoded = self._decoded.begin(batch.shards, batch.rows, batch.draws, outs)
        unread = {} if self._decoded is None else self._decoded.unread(batch.decoded)
        batch.raw = self._pool.read_batch(
            batch.shards, batch.rows, batch.heads.rows if self.rules.columns else None, unread
        )
        batch.heads.add(batch.raw.pictures)
        if self._decoded is not None:
            self._decoded.add(batch.decoded, batch.raw.pictures)
        if s.partial:
            shares = s.data.shard_nbytes[batch.shards] / s.data.shard_rows[batch.shards]
            batch.unread_nbytes = max(0.0, float(shares.sum()) - batch.raw.nbytes)
        slots_nbytes = sum(slot.nbytes for slots in batch.slots for slot in slots if slot is not None)
        return slots_nbytes + batch.raw.nbytes

    def _take_slots(self, batch: PendingBatch) -> list[Tensor | None]:
        """Memory for the outputs of a batch. By program that takes decoded samples, where the kernel finishes these."""
        count = len(batch.rows)
        batch.slots = [
            tuple(
                None if given or (sure := spec or self._expected.get((p, k))) is None else self._slots.take(count, sure)
                for k, spec in enumerate(program.specs)
            )
            for p, (program, given) in enumerate(zip(self._programs, self.given, strict=True))
        ]
        batch.made = [[()] * count for _ in self._programs]
        outs: list[Tensor | None] = []
        for program, head, slots in zip(self._programs, self.rules.heads, batch.slots, strict=True):
            out = slots[0] if head is not None and program.all_head else None  # None where it is given
            if head is not None and out is None and self._gate is not None:  # the other steps go on from its pixels
                out = self._slots.take(count, TensorSpec((3, *head.size), head.dtype, channels_last=True))
            outs.append(out)
        batch.heads = BatchHeads(self.rules, batch.draws, count, outs)
        of_decoded: list[Tensor | None] = [None] * len(self._programs)
        for p, rest in enumerate(() if self._decoded is None or self._gate is None else self._decoded.rests):
            if rest is None:
                continue
            whole = rest.end == len(self._programs[p].steps)
            spec = TensorSpec((3, *rest.size), rest.dtype, channels_last=True)
            of_decoded[p] = batch.slots[p][0] if whole else self._slots.take(count, spec)
        return of_decoded

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
            if self._decoded is not None:
                self._decoded.run(batch.decoded, self._settings.threads, self._gate)
        complete = np.ones(count, np.bool_)
        for p, program in enumerate(self._programs):
            if program.scalar:
                batch.made[p] = [(value,) for value in batch.raw.values[program.columns[0]]]
            elif p in batch.decoded and batch.decoded[p].ends(program):
                complete &= batch.decoded[p].done
            elif program.all_head and p not in batch.decoded:
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
            raw = self._with_stores(batch.raw.sample(i), batch.shards[i], batch.rows[i])
            self._make_from(raw, batch, i, batch.heads, batch.decoded)
        except MemoryError as lack:
            lack.add_note(f"{self._place(batch, i)}: lower num_workers, prefetch_factor or the size of a batch")
            raise
        except StageFailed as failed:
            name = self._settings.data.shard_name(batch.shards[i])
            error = failed.at(dataset=self._settings.data.name, shard=name, row=batch.rows[i])
            if self._settings.on_error == "raise":
                raise error from failed.__cause__
            self._replace(batch, i, error)

    def _with_stores(self, raw: dict[str, Any], shard: int, row: int) -> dict[str, Any]:
        """What was read of a sample, its audio with the place where that is kept decoded."""
        for name, store in self._audio.items():
            raw[name] = store.recording(raw[name], shard, row)
        return raw

    def _place(self, batch: PendingBatch, i: int) -> str:
        return f"{self._settings.data.name}: {Places(self._settings.data, batch)[i]}"

    def _make_from(
        self,
        raw: dict[str, Any],
        batch: PendingBatch,
        i: int,
        heads: BatchHeads | None,
        decoded: Mapping[int, DecodedOutput] | None = None,
    ) -> None:
        out = [tuple(None if pieces is None else pieces[i] for pieces in slots) for slots in batch.pieces]
        outputs = self._settings.maker.make(raw, batch.draws, i, out, heads, decoded)
        for made, values in zip(batch.made, outputs, strict=True):
            made[i] = values

    def _replace(self, batch: PendingBatch, i: int, error: SampleError) -> None:
        """Fill the place of a bad sample from its shard; the numbers drawn for the place stay as they are."""
        s, shard = self._settings, batch.shards[i]
        rows = int(s.data.shard_rows[shard])
        for row in replacement_rows(seed=s.seed, epoch=s.epoch, index=int(batch.indices[i]), rows=rows):
            try:
                self._make_from(self._with_stores(self._pool.read(shard, row), shard, row), batch, i, None)
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
        for decoded in batch.decoded.values():
            decoded.release()
        places = Places(s.data, batch)
        outputs: dict[str, Any] = {}
        for p, (program, slots, made) in enumerate(zip(self._programs, batch.slots, batch.made, strict=True)):
            for k, name in enumerate(program.names):
                slot = slots[k]
                if slot is None or (program.timed and not _lie_in(slot, [values[k] for values in made])):
                    slot = collate(
                        name,
                        [values[k] for values in made],
                        places,
                        ragged=program.ragged[k],
                        advice=program.advice(k),
                    )
                    if program.timed:
                        self._expect(p, k, slot)
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

    def _expect(self, p: int, k: int, value: Any) -> None:
        """Have memory ready for the next batches, in case they are like this one."""
        if isinstance(value, Tensor):
            frames = value.ndim == 5 and value.stride(2) == 1
            self._expected[p, k] = TensorSpec(tuple(value.shape[1:]), value.dtype, channels_last=frames)
        else:
            self._expected.pop((p, k), None)

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


def _lie_in(slot: Tensor, values: list[Any]) -> bool:
    """Whether every sample was made in its place; one of another shape was not."""
    step = slot.stride(0) * slot.element_size()
    return all(
        isinstance(value, Tensor) and value.data_ptr() == slot.data_ptr() + i * step for i, value in enumerate(values)
    )


def nbytes_of(value: Any) -> int:
    """Bytes of what a batch holds: tensors, arrays, views, and lists and dicts of them."""
    if isinstance(value, dict):
        return sum(map(nbytes_of, value.values()))
    if isinstance(value, list):
        return sum(map(nbytes_of, value))
    return int(getattr(value, "nbytes", 0))
