"""Batches as messages: everything arrives as it was sent, lies where it should, and shares what it shared."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Iterator
from multiprocessing import resource_sharer
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forebay.loader.shared_batch import INLINE_NBYTES, pack, unpack
from forebay.loader.shared_memory import BatchMemory
from forebay.loader.shared_segments import Bytes, LentSegments, SegmentPool, SegmentRef
from tests.dropin.same import assert_same


class Wire:
    """Both ends in this process."""

    def __init__(self, limit: int = 4) -> None:
        self.pool = SegmentPool(limit)
        self.memory = BatchMemory(self.pool)
        self.lent = LentSegments()

    def send(self, batch: Any) -> Any:
        packed = pack(batch, self.memory)
        fds = iter(packed.fds)

        def open_segments(references: list[SegmentRef], dropped: list[int]) -> list[Bytes]:
            self.lent.drop(dropped)
            return [self.lent.open(ref, next(fds) if ref[2] else None) for ref in references]

        received = unpack(b"".join(packed.parts), open_segments)
        home, kept = self.lent.returns()
        self.pool.returned(home, kept=kept)
        return received


class Pair(NamedTuple):
    left: Any
    right: Any


DTYPES = [torch.float32, torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.bool, torch.complex64]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 7, 60, 300]), max_size=3))
    tensor = torch.arange(int(np.prod(shape))).remainder(251).reshape(shape).to(draw(st.sampled_from(DTYPES)))
    match draw(st.integers(0, 6)):
        case 1 if tensor.ndim:
            return tensor[1:]
        case 2 if tensor.ndim:
            return tensor[..., ::2]
        case 3 if tensor.ndim > 1:
            return tensor.transpose(0, -1)
        case 4:
            return tensor.unsqueeze(0).expand(3, *tensor.shape)
        case 5:
            return tensor.sum() if tensor.numel() else tensor
    return tensor


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    shape = draw(st.lists(st.sampled_from([0, 1, 3, 40, 500]), max_size=2))
    dtype = draw(st.sampled_from(["f4", ">i4", "u1", "?", "U3", "S2", "M8[ns]", "c8", "f2,i8", "O", "U0"]))
    array = np.arange(int(np.prod(shape))).reshape(shape)
    converted: np.ndarray[Any, Any] = array.astype(dtype) if dtype != "f2,i8" else np.zeros(shape, dtype)
    match draw(st.integers(0, 3)):
        case 1:
            return np.asfortranarray(converted)
        case 2 if converted.ndim:
            return converted[::-2]
    return converted


leaves = st.one_of(
    tensors(),
    arrays(),
    st.text(max_size=20),
    st.integers(),
    st.none(),
    st.floats(allow_nan=False),
    st.binary(max_size=40),
)
batches = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(st.lists(batches, min_size=1, max_size=3))
@settings(deadline=None, max_examples=150)
def test_any_nested_batch_arrives_as_it_was_sent(sent: list[Any]) -> None:
    wire = Wire()
    received = [wire.send(batch) for batch in sent]
    for a, b in zip(sent, received, strict=True):
        assert_same(a, b)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50), st.integers(1, 3)), min_size=1, max_size=5),
    st.booleans(),
)
@settings(deadline=None, max_examples=100)
def test_what_shares_memory_before_shares_it_afterwards(views: list[tuple[int, int, int]], large: bool) -> None:
    whole = torch.arange(101 * (300 if large else 1)).reshape(101, -1)
    sent = [whole[start : start + length : step] for start, length, step in views]
    received = Wire().send(sent)
    assert_same(sent, received)
    for k, part in enumerate(received):
        part.fill_(-1 - k)
        sent[k].fill_(-1 - k)
        assert_same(sent, received)


def test_one_tensor_twice_is_one_tensor_afterwards() -> None:
    x = torch.arange(10_000)
    a, b = Wire().send((x, x))
    assert a is b


def test_a_view_of_much_is_sent_without_the_rest() -> None:
    table = torch.arange(2_000_000).reshape(2, 1_000_000).T
    wire = Wire()
    for sent in (table[:10_000, 0], table[5:9]):
        received = wire.send(sent)
        assert torch.equal(sent, received)
        assert received.untyped_storage().nbytes() <= 4 * sent.nbytes


def test_each_tensor_has_a_storage_of_its_own_size() -> None:
    a, b = Wire().send((torch.zeros(30_000), torch.ones(40_000)))
    assert a.untyped_storage().nbytes() == a.nbytes
    assert b.untyped_storage().nbytes() == b.nbytes
    assert len(pickle.dumps(a)) < a.nbytes + 1000


def test_channels_last_stays_channels_last() -> None:
    x = torch.rand(4, 3, 40, 40).contiguous(memory_format=torch.channels_last)
    y = Wire().send(x)
    assert y.stride() == x.stride()
    assert torch.equal(x, y)


def test_conjugates_keep_their_values() -> None:
    x = torch.complex(torch.rand(5000), torch.rand(5000))
    y, z = Wire().send((x.conj(), x.conj().imag))
    assert torch.equal(x.conj(), y)
    assert torch.equal(x.conj().imag, z)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(
    "odd",
    [
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3, requires_grad=True),
        torch.eye(3).to_sparse(),
    ],
    ids=["parameter", "with gradient", "sparse"],
)
def test_other_tensors_go_as_torch_sends_them(odd: Tensor) -> None:
    # Both ends are one process, so torch's own transport finds the storage it sent.
    y = Wire().send(odd)
    resource_sharer.stop(timeout=5)  # the thread that serves the descriptors
    assert type(y) is type(odd)
    assert y.requires_grad == odd.requires_grad
    assert torch.equal(y.to_dense(), odd.to_dense())


def test_large_pickles_and_many_tensors_make_small_messages() -> None:
    wire = Wire()
    for batch in (
        ["word" * 100] * 3000,
        [f"{i}" * 10 for i in range(20_000)],
        [torch.ones(3) * i for i in range(5000)],
    ):
        packed = pack(batch, wire.memory)
        assert sum(len(part) for part in packed.parts) <= 4 * INLINE_NBYTES
        for fd in packed.fds:
            os.close(fd)
        assert_same(batch, Wire().send(batch))


def test_a_kept_batch_is_never_overwritten() -> None:
    wire = Wire()
    kept: list[tuple[int, Any]] = []
    for i in range(50):
        x = wire.send(torch.full((20_000,), i))
        kept.append((i, [x[5:], x.numpy(), x[::2], x.__dlpack__()][i % 4]))
    for i, view in kept:
        alive = (
            view
            if not hasattr(view, "__class__") or type(view).__name__ != "PyCapsule"
            else torch.utils.dlpack.from_dlpack(view)
        )
        assert (alive == i).all()


def test_memory_is_used_again_once_the_last_view_is_gone() -> None:
    wire = Wire()
    addresses = set()
    for i in range(50):
        x = wire.send(torch.full((200_000,), i))
        addresses.add(x.data_ptr())
        view = x.numpy()[7:9]
        del x
        assert (view == i).all()
        del view
    assert len(addresses) <= 3


@given(st.lists(st.integers(1, 400_000), max_size=40), st.integers(0, 5))
@settings(deadline=None, max_examples=30)
def test_batches_that_grow_and_shrink_stay_right_and_bounded(sizes: list[int], keep: int) -> None:
    wire = Wire()
    kept: list[tuple[int, Tensor]] = []
    for i, size in enumerate(sizes):
        kept.append((i, wire.send(torch.full((size,), i % 200, dtype=torch.uint8))))
        del kept[: -1 - keep]
        for j, tensor in kept:
            assert (tensor == j % 200).all()
    assert mapped_nbytes() <= 2 * (4 + 4 + keep + 2) * 500_000


def mapped_nbytes() -> int:
    gc.collect()
    return sum(int(last, 16) - int(first, 16) for first, last in segments())


def segments() -> Iterator[tuple[str, str]]:
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "memfd:forebay" in line:
                first, last = line.split()[0].split("-")
                yield first, last


def test_no_descriptor_stays_open_and_no_map_is_left() -> None:
    before, wire = len(os.listdir("/proc/self/fd")), Wire()
    kept = [wire.send(torch.full((20_000,), i)) for i in range(300)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert all((x == i).all() for i, x in enumerate(kept))
    assert len(list(segments())) < 100
    del kept, wire
    assert mapped_nbytes() == 0


def test_what_a_forked_process_sees_is_not_used_again() -> None:
    wire = Wire()
    x = wire.send(torch.full((20_000,), 7))
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(readable, 1)
        os._exit(0 if bool((x == 7).all()) else 1)
    del x
    for i in range(10):
        wire.send(torch.full((20_000,), i))
    os.write(writable, b"!")
    _, status = os.waitpid(child, 0)
    os.close(readable)
    os.close(writable)
    assert status == 0


def test_a_batch_that_does_not_pickle_gives_its_memory_back() -> None:
    wire = Wire()
    for _ in range(20):
        with pytest.raises((AttributeError, pickle.PicklingError)):
            wire.send([wire.memory.empty((50_000,), torch.float32), lambda: 0])
    assert mapped_nbytes() <= 200_000 * 3
