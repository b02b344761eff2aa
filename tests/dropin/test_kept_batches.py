"""Batches that the user keeps: they are his for ever, in whatever form, and take no descriptors.

A loader that uses memory again must not do so while anything still points there.
"""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from forebay import DataLoader
from tests.dropin.programs import run
from tests.dropin.samples import Kinds, Numbers, Split, as_is

SIZE = 5000

KEEP: dict[str, Callable[[Tensor], Any]] = {
    "the batch": lambda batch: batch,
    "a slice": lambda batch: batch[1:, ::7],
    "a row": lambda batch: batch[0],
    "a transposed view": lambda batch: batch.T,
    "another dtype's view": lambda batch: batch.view(torch.float64),
    "an array": lambda batch: batch.numpy(),
    "a part of an array": lambda batch: batch.numpy()[1, 10:20],
    "an array's memory": lambda batch: batch.numpy().data,
    "by DLPack": lambda batch: from_dlpack(batch)[0],
    "by DLPack, as an array": lambda batch: np.from_dlpack(batch.numpy())[0],
    "a detached alias": lambda batch: batch.detach(),
    "a tensor of the storage": lambda batch: torch.empty(0, dtype=batch.dtype).set_(batch.untyped_storage()),
    "a saved tensor of autograd": lambda batch: (batch * torch.ones(1, requires_grad=True)).sum(),
}


def total(part: Any) -> float:
    if isinstance(part, Tensor) and part.grad_fn is not None:
        (gradient,) = torch.autograd.grad(part, part.grad_fn.next_functions[0][0].next_functions[1][0].variable)  # type: ignore[union-attr]
        return float(gradient.sum())
    return float(torch.as_tensor(np.asarray(part)).double().sum())


@pytest.mark.parametrize("how", sorted(KEEP))
def test_whatever_is_kept_of_a_batch_stays_as_it_was(how: str) -> None:
    """Every second batch is kept in some form and its own name dropped, so that its memory looks free."""
    kept, sums = [], []
    loader = DataLoader(Kinds("tensor", 200, SIZE), 2, num_workers=2)
    for i, batch in enumerate(loader):
        if i % 2:
            part = KEEP[how](batch)
            kept.append(part)
            sums.append(total(KEEP[how](batch.clone())))
            del part
        del batch
    assert len(kept) == 50
    gc.collect()
    assert [total(part) for part in kept] == pytest.approx(sums, rel=0, abs=0)


@pytest.mark.parametrize("persistent", [False, True])
def test_fifty_batches_kept_over_epochs_and_after_the_loader_have_their_sums(persistent: bool) -> None:
    loader = DataLoader(Kinds("nested", 50, SIZE), 2, num_workers=2, persistent_workers=persistent)
    kept: list[Any] = []
    for _ in range(2):
        kept.extend(loader)
    loader._iterator = None
    del loader
    gc.collect()
    assert len(kept) == 50
    for i, batch in enumerate(kept):
        first = i % 25 * 2
        x = torch.arange(SIZE).expand(2, SIZE) + torch.tensor([[first], [first + 1]])
        assert torch.equal(batch["a"][0][0], x)
        assert torch.equal(batch["a"][1].x, x * 2)


def test_views_handed_to_a_thread_stay_as_they_were() -> None:
    """The thread looks at each view only after the loop has dropped its batch and taken five more."""
    views: queue.Queue[tuple[int, Any] | None] = queue.Queue()
    wrong: list[int] = []

    def look() -> None:
        waiting: list[tuple[int, Any]] = []
        while (given := views.get()) is not None:
            waiting.append(given)
            if len(waiting) > 5:
                i, view = waiting.pop(0)
                wrong.extend([i] if (np.asarray(view) != i).any() else [])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for i, batch in enumerate(DataLoader(Numbers(150, SIZE), 1, num_workers=2)):
            views.put((i, batch.numpy()[0, 100:] if i % 2 else batch[0, 100:]))
            del batch
    finally:
        views.put(None)
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("data", [Kinds("array", 60, SIZE), Kinds("fortran array", 60, SIZE)])
def test_uncollated_arrays_are_kept_too(data: Any) -> None:
    kept = [part[0][..., :50] for part in DataLoader(data, 1, num_workers=2, collate_fn=as_is)]
    for i, part in enumerate(kept):
        assert np.array_equal(part, data[i][..., :50])


def test_what_the_user_writes_into_a_batch_is_in_no_other() -> None:
    for batch in DataLoader(Kinds("tensor", 120, SIZE), 2, num_workers=2):
        assert batch.max() < SIZE
        batch.fill_(1e9)
        del batch


def test_a_stream_s_batches_are_kept() -> None:
    kept = list(DataLoader(Split(60), None, num_workers=2))
    assert [sample[0] for sample in kept] == list(range(60))


def test_two_thousand_kept_batches_and_twenty_thousand_small_ones_need_few_descriptors(tmp_path: Path) -> None:
    """Under `ulimit -n 256`: what ends torch's loader, whose every tensor holds a descriptor."""
    done = run(
        tmp_path,
        """
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        kept = list(DataLoader(Numbers(2000, 3000), 1, num_workers=2))
        assert all((batch == i).all() for i, batch in enumerate(kept))
        del kept
        before = len(os.listdir("/proc/self/fd"))
        total = sum(int(batch) for batch in DataLoader(Numbers(20_000), 1, num_workers=2))
        assert total == sum(range(20_000))
        assert len(os.listdir("/proc/self/fd")) <= before
        lists = list(DataLoader(Numbers(600, 2000), 4, num_workers=2, collate_fn=lambda batch: batch))
        assert sum(int(x[0]) for batch in lists for x in batch) == sum(range(600))
        print("done")
        """,
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
