"""DALI driven by us, on its CPU mode: every batch comes out once, in order, whatever is cut, broken or left."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import DecodeError
from forebay.loader.dali_graph import Columns, HeadShape, build_pipeline, graph_columns
from forebay.loader.dali_pipeline import DaliBatch, DaliPipeline, DaliSettings
from forebay.loader.geometry import View, Views

SIZE = 24
SHAPE = HeadShape(SIZE, SIZE, resizes=True, crops=False, flips=True)


@pytest.fixture(scope="module")
def jpegs(jpeg_kinds: Callable[..., dict[str, bytes]]) -> list[bytes]:
    return [data for kind, data in jpeg_kinds(40, 56).items() if kind != "lying on its side"]


def view(number: int) -> View:
    """A window of a picture of 40 x 56 that depends on the number."""
    return View.of_window(
        (number % 13, number % 17, 20 + number % 7, 25 + number % 11), (SIZE, SIZE), flipped=number % 2 == 1
    )


def batch(jpegs: Sequence[bytes], ticket: int, size: int, broken: frozenset[int] = frozenset()) -> DaliBatch:
    numbers = range(100 * ticket, 100 * ticket + size)
    encoded = [b"GIF89a" * 9 if i in broken else jpegs[n % len(jpegs)] for i, n in enumerate(numbers)]
    return DaliBatch(ticket, [(encoded, Views.of([view(n) for n in numbers]).fields())])


def settings_of(**given: Any) -> DaliSettings:
    return DaliSettings(**{"shapes": (SHAPE,), "batch_size": 8, "threads": 2, **given})


@contextlib.contextmanager
def pipeline(**given: Any) -> Iterator[DaliPipeline]:
    with contextlib.closing(DaliPipeline(settings_of(**given))) as made:
        yield made


@pytest.fixture(scope="module")
def expected(
    jpegs: list[bytes], by_library: Callable[[bytes, View], torch.Tensor]
) -> Callable[[int, int], torch.Tensor]:
    """What the libraries make of picture i of a batch: uint8 (SIZE, SIZE, 3)."""

    def find(ticket: int, i: int) -> torch.Tensor:
        number = 100 * ticket + i
        return by_library(jpegs[number % len(jpegs)], view(number))[0].permute(1, 2, 0)

    return find


def assert_right(pictures: Any, expected: Callable[[int, int], torch.Tensor]) -> None:
    (pixels,) = pictures.pixels
    assert pixels.shape == (len(pictures.batch), SIZE, SIZE, 3)
    for i in set(range(len(pixels))) - set(pictures.failures):
        difference = (pixels[i].float() - expected(pictures.batch.ticket, i).float()).abs()
        assert difference.mean() < 1.0, (pictures.batch.ticket, i)


@settings(max_examples=25, deadline=None)
@given(
    depth=st.integers(1, 3),
    epochs=st.lists(st.lists(st.integers(1, 8), max_size=5), min_size=1, max_size=3),
    broken=st.sets(st.tuples(st.integers(0, 4), st.integers(0, 7)), max_size=4),
)
def test_every_batch_of_every_epoch_comes_once_and_in_order(
    jpegs: list[bytes],
    expected: Callable[[int, int], torch.Tensor],
    depth: int,
    epochs: list[list[int]],
    broken: set[tuple[int, int]],
) -> None:
    with pipeline(depth=depth) as dali:
        for sizes in epochs:
            given = [
                batch(jpegs, k, size, frozenset(i for number, i in broken if number == k))
                for k, size in enumerate(sizes)
            ]
            came = list(dali.decode(iter(given)))
            assert [pictures.batch for pictures in came] == given
            for k, pictures in enumerate(came):
                assert set(pictures.failures) == {i for number, i in broken if number == k and i < sizes[k]}
                assert_right(pictures, expected)


@pytest.mark.parametrize("taken", [0, 1, 2, 5])
def test_a_pass_that_is_left_early_does_not_disturb_the_next(
    jpegs: list[bytes], expected: Callable[[int, int], torch.Tensor], taken: int
) -> None:
    with pipeline() as dali:
        first = dali.decode(batch(jpegs, k, 4) for k in range(10))
        for _ in range(taken):
            next(first)
        first.close()
        came = list(dali.decode(batch(jpegs, k, 3) for k in range(20, 24)))
        assert [pictures.batch.ticket for pictures in came] == [20, 21, 22, 23]
        for pictures in came:
            assert_right(pictures, expected)


def test_what_the_source_raises_comes_after_the_batches_before_it(jpegs: list[bytes]) -> None:
    def source() -> Iterator[DaliBatch]:
        yield from (batch(jpegs, k, 4) for k in range(3))
        raise KeyError("the reader failed")

    came: list[Any] = []
    with pipeline() as dali:
        with pytest.raises(KeyError, match="the reader failed"):
            came.extend(dali.decode(source()))
        again = list(dali.decode([batch(jpegs, 7, 2)]))
    assert [pictures.batch.ticket for pictures in again] == [7]


def test_a_picture_that_fails_is_named_and_the_others_of_its_batch_are_as_in_a_good_one(jpegs: list[bytes]) -> None:
    with pipeline() as dali:
        (good,) = dali.decode([batch(jpegs, 3, 8)])
        (bad,) = dali.decode([batch(jpegs, 3, 8, frozenset({2, 5}))])
        assert dali.rebuilds == 1
    assert set(bad.failures) == {2, 5}
    assert all("DALI" in reason for reason in bad.failures.values())
    kept = [0, 1, 3, 4, 6, 7]
    assert torch.equal(bad.pixels[0][kept], good.pixels[0][kept])


@pytest.mark.parametrize("jpeg", ["a cut one", "no picture", "nothing"])
def test_damage_of_any_kind_costs_one_picture(jpegs: list[bytes], jpeg: str) -> None:
    damaged = {"a cut one": jpegs[0][: len(jpegs[0]) // 2], "no picture": b"\0" * 500, "nothing": b"\xff\xd8"}[jpeg]
    whole = batch(jpegs, 1, 6)
    encoded, fields = whole.heads[0]
    with pipeline() as dali:
        (pictures,) = dali.decode([DaliBatch(1, [([*encoded[:4], damaged, encoded[5]], fields)])])
    assert set(pictures.failures) == {4}


def test_a_thousand_batches_stay_as_they_were_while_the_consumer_lags(jpegs: list[bytes]) -> None:
    kept: list[tuple[int, torch.Tensor, int]] = []
    with pipeline(batch_size=4) as dali:
        for pictures in dali.decode(batch(jpegs, k % 50, 1 + k % 4) for k in range(1000)):
            kept.append((pictures.batch.ticket, pictures.pixels[0], int(pictures.pixels[0].sum())))
            if len(kept) > 20:  # twenty batches behind
                _, pixels, total = kept.pop(0)
                assert int(pixels.sum()) == total
        sums: dict[tuple[int, int], int] = {}
        for pictures in dali.decode(batch(jpegs, k % 50, 1 + k % 4) for k in range(200)):
            key = pictures.batch.ticket, len(pictures.batch)
            assert sums.setdefault(key, int(pictures.pixels[0].sum())) == int(pictures.pixels[0].sum())


def test_a_batch_that_comes_out_of_turn_is_an_error_and_not_used(jpegs: list[bytes]) -> None:
    """A graph whose tickets are those of another batch stands for a DALI that loses or swaps one."""

    def build(shapes: Sequence[HeadShape], source: Callable[[], Columns], **given: Any) -> Any:
        def shifted() -> Columns:
            *columns, tickets = source()
            return (*columns, tickets + 1)

        return build_pipeline(shapes, shifted, **given)

    said = pytest.raises(DecodeError, match=r"DALI gave batch \[6\] of 4 pictures where batch 5 of 4 was due")
    with contextlib.closing(DaliPipeline(settings_of(), build=build)) as dali, said:
        list(dali.decode([batch(jpegs, 5, 4)]))


def short_of_memory(most: int) -> Callable[..., Any]:
    """Builds a graph that has no memory for more than `most` iterations at once."""

    def build(shapes: Sequence[HeadShape], source: Callable[[], Columns], *, depth: int, **given: Any) -> Any:
        if depth <= most:
            return build_pipeline(shapes, source, depth=depth, **given)
        return build_failing(source, depth=depth, **given)

    return build


def build_failing(source: Callable[[], Columns], **given: Any) -> Any:
    """DALI's own pipeline around a Python operator that says what CUDA says."""
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline

    def fail(_: Any) -> Any:
        raise RuntimeError("CUDA allocation failed: out of memory")

    made = Pipeline(given["batch_size"], 1, None, prefetch_queue_depth=given["depth"], exec_dynamic=True)
    dtypes = [types.UINT8, types.INT32, types.INT32, types.FLOAT, types.INT64]
    with made:
        columns = fn.external_source(
            source=source, num_outputs=5, batch=True, cycle=None, ndim=[1, 1, 1, 1, 0], dtype=dtypes
        )
        made.set_outputs(fn.python_function(columns[-1], function=fail), *columns)
    made.build()
    return made


def test_without_memory_fewer_iterations_are_on_their_way(jpegs: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    shape = HeadShape(SIZE, SIZE, resizes=True, crops=False, flips=False)
    given = settings_of(shapes=(shape,), depth=4)
    with contextlib.closing(DaliPipeline(given, build=short_of_memory(1))) as dali:
        came = [pictures.batch.ticket for pictures in dali.decode(batch(jpegs, k, 4) for k in range(5))]
    assert came == [0, 1, 2, 3, 4]
    assert [record.message for record in caplog.records] == [
        f"DALI has no memory left; it goes on with {depth} iteration(s) at once" for depth in (2, 1)
    ]


def test_without_memory_for_one_iteration_the_error_says_what_to_lower(jpegs: list[bytes]) -> None:
    shape = HeadShape(SIZE, SIZE, resizes=True, crops=False, flips=False)
    said = pytest.raises(MemoryError, match="no memory left for a batch of 4 pictures at a time: lower batch_size")
    with contextlib.closing(DaliPipeline(settings_of(shapes=(shape,)), build=short_of_memory(0))) as dali, said:
        list(dali.decode([batch(jpegs, 0, 4)]))


def test_what_is_not_resized_is_cut_by_the_decoder(jpegs: list[bytes], by_library: Callable[..., torch.Tensor]) -> None:
    shape = HeadShape(16, 20, resizes=False, crops=False, flips=False)
    views = [View(0, 0, 40, 56, 40, 56, top, left, 16, 20, False) for top, left in ((0, 0), (24, 36), (7, 11))]
    with pipeline(shapes=(shape,)) as dali:
        (pictures,) = dali.decode([DaliBatch(0, [(jpegs[:3], Views.of(views).fields())])])
    for pixels, data, shown in zip(pictures.pixels[0], jpegs, views, strict=False):
        assert (pixels.float() - by_library(data, shown)[0].permute(1, 2, 0).float()).abs().max() <= 1


def test_a_part_of_the_resized_window_is_cut_to_the_pixel(
    jpegs: list[bytes], by_library: Callable[..., torch.Tensor]
) -> None:
    shape = HeadShape(16, 16, resizes=True, crops=True, flips=True)
    views = [
        View(0, 0, 40, 56, 32, 45, 8, left, 16, 16, flipped) for left, flipped in ((0, False), (29, True), (14, True))
    ]
    with pipeline(shapes=(shape,)) as dali:
        (pictures,) = dali.decode([DaliBatch(0, [(jpegs[:3], Views.of(views).fields())])])
    for pixels, data, shown in zip(pictures.pixels[0], jpegs, views, strict=False):
        assert (pixels.float() - by_library(data, shown)[0].permute(1, 2, 0).float()).abs().mean() < 1


@pytest.mark.parametrize("resizes", [True, False])
def test_a_blank_is_a_picture_of_the_heads_size(resizes: bool) -> None:
    shape = HeadShape(30, 18, resizes=resizes, crops=False, flips=False)
    data, shown = shape.blank()
    with pipeline(shapes=(shape,)) as dali:
        (pictures,) = dali.decode([DaliBatch(0, [([data, data], Views.of([shown, shown]).fields())])])
    assert pictures.pixels[0].shape == (2, 30, 18, 3)
    assert int(pictures.pixels[0].min()) == int(pictures.pixels[0].max())


def test_bytes_are_fed_without_a_copy(jpegs: list[bytes]) -> None:
    ((encoded, *_),) = (graph_columns(0, [SHAPE], batch(jpegs, 0, 3).heads),)
    assert [np.frombuffer(data, np.uint8).ctypes.data for data in jpegs[:3]] == [array.ctypes.data for array in encoded]


def test_thirty_rebuilds_leave_no_threads_and_no_descriptors(jpegs: list[bytes]) -> None:
    with pipeline() as dali:
        list(dali.decode([batch(jpegs, 0, 4, frozenset({1}))]))
        before = threads_and_files()
        for k in range(30):
            list(dali.decode([batch(jpegs, k, 4, frozenset({1}))]))
        assert dali.rebuilds == 31
        after = threads_and_files()
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1]


def threads_and_files() -> tuple[int, int]:
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
