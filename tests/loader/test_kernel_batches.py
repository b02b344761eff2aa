"""Batches for the native kernel: threads, vectors, tables, places without a source, an end in the middle."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from forebay.loader.decode import MAX_PIXELS, decode_image
from forebay.loader.geometry import View, Views
from forebay.loader.kernel import JOB_FIELDS, Gate, decode_batch, make_jobs
from forebay.sharding import read_header

_kernel = pytest.importorskip("forebay.loader._kernel", reason="forebay was installed without its native parts")

Kinds = Callable[[int, int], dict[str, bytes]]
DrawView = Callable[..., View]

SIZES = [(75, 101), (9, 130), (1, 77), (77, 1), (1, 1), (17, 33), (130, 18), (2, 3)]
SIZE = 8


@pytest.fixture
def all_vectors() -> Iterator[list[int]]:
    """Every number of rows that this processor takes at a time; the largest is in use again afterwards."""
    yield sorted({_kernel.use_vectors(most) for most in (1, 2, 4)})
    _kernel.use_vectors(4)


def upright_size(data: bytes) -> tuple[int, int]:
    header = read_header(memoryview(data))
    return (header.width, header.height) if header.orientation >= 5 else (header.height, header.width)


def draw_batch(
    jpeg_kinds: Kinds, draw_view: DrawView, seed: int, size: tuple[int, int], out: tuple[int, int]
) -> tuple[list[bytes], npt.NDArray[np.int32]]:
    """Pictures of every kind, with a view each of one output size."""
    rng = random.Random(seed)
    sources, jobs = [], []
    for data in jpeg_kinds(*size).values():
        header = read_header(memoryview(data))
        view = draw_view(rng, *upright_size(data))
        scaled = [max(side, length) for side, length in zip(out, (view.scaled_height, view.scaled_width), strict=True)]
        crop = [rng.randint(0, length - side) for side, length in zip(out, scaled, strict=True)]
        view = View(*view[:4], scaled[0], scaled[1], crop[0], crop[1], out[0], out[1], view.flipped)
        of_one = Views.of([view])
        jobs.append(make_jobs(of_one, orientations=header.orientation, heights=header.height, widths=header.width)[0])
        sources.append(data)
    return sources, np.array(jobs, dtype=np.int32)


def run(
    sources: list[bytes],
    jobs: npt.NDArray[np.int32],
    out: tuple[int, int],
    *,
    threads: int = 1,
    dtype: torch.dtype = torch.uint8,
    table: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.uint8]:
    """uint8 (n, H, W, 3 * itemsize), all of it done."""
    pixels = torch.empty((len(sources), *out, 3), dtype=dtype)
    done = decode_batch(
        sources,
        [None] * len(sources),
        jobs,
        pixels.permute(0, 3, 1, 2),
        table=table,
        max_pixels=MAX_PIXELS,
        threads=threads,
    )
    assert done.all()
    return pixels.view(torch.uint8).numpy()


@pytest.mark.parametrize("out", [(23, 37), (1, 1), (5, 64), (224, 224)], ids=str)
def test_vectors_of_any_width_give_the_same_bits(
    out: tuple[int, int], jpeg_kinds: Kinds, draw_view: DrawView, all_vectors: list[int]
) -> None:
    for size in SIZES:
        sources, jobs = draw_batch(jpeg_kinds, draw_view, 1, size, out)
        results = []
        for most in all_vectors:
            assert _kernel.use_vectors(most) == most
            results.append(run(sources, jobs, out))
        assert all(np.array_equal(result, results[0]) for result in results)


def test_any_number_of_threads_gives_the_same_bits(jpeg_kinds: Kinds, draw_view: DrawView) -> None:
    sources, jobs = draw_batch(jpeg_kinds, draw_view, 2, (75, 101), (31, 47))
    sources, jobs = sources * 5, np.tile(jobs, (5, 1))
    one = run(sources, jobs, (31, 47))
    for threads in (2, 4, 64, 10_000):
        assert np.array_equal(run(sources, jobs, (31, 47), threads=threads), one)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_tables_of_every_width_are_looked_up_by_channel(
    dtype: torch.dtype, jpeg_kinds: Kinds, draw_view: DrawView
) -> None:
    table = np.random.default_rng(1).integers(0, 2, (3, 256 * dtype.itemsize), dtype=np.uint8)
    entries = table.reshape(3, 256, dtype.itemsize)
    for out in ((23, 37), (1, 1)):
        sources, jobs = draw_batch(jpeg_kinds, draw_view, 3, (75, 101), out)
        plain = run(sources, jobs, out)
        found = run(sources, jobs, out, dtype=dtype, table=table)
        expected = np.stack([entries[c][plain[..., c]] for c in range(3)], axis=3)
        assert np.array_equal(found.reshape(expected.shape), expected)


def test_places_without_a_source_are_left_alone(jpeg_kinds: Kinds, draw_view: DrawView) -> None:
    sources, jobs = draw_batch(jpeg_kinds, draw_view, 4, (75, 101), (8, 8))
    some: list[bytes | None] = [None if i % 3 == 0 else data for i, data in enumerate(sources)]
    pixels = torch.full((len(some), 8, 8, 3), 7, dtype=torch.uint8)
    done = decode_batch(
        some,
        [None] * len(some),
        jobs,
        pixels.permute(0, 3, 1, 2),
        table=None,
        max_pixels=MAX_PIXELS,
        threads=2,
    )
    assert done.tolist() == [data is not None for data in some]
    assert (pixels[~torch.from_numpy(done)] == 7).all()
    assert np.array_equal(pixels.numpy()[done], run(sources, jobs, (8, 8))[done])


def test_a_batch_of_nothing_is_done_at_once() -> None:
    nothing = torch.empty((0, 8, 8, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    jobs = np.empty((0, JOB_FIELDS), np.int32)
    assert decode_batch([], [], jobs, nothing, table=None, max_pixels=1, threads=4).shape == (0,)


def test_another_thread_can_stop_a_batch(make_jpeg: Callable[..., bytes]) -> None:
    data, count = make_jpeg(600, 800), 20_000  # half a minute or more
    views = Views.of([View.of_window((0, 0, 600, 8), (600, 8))] * count)
    jobs = make_jobs(views, orientations=1, heights=600, widths=800)
    out = torch.empty((count, 600, 8, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    gate, called = Gate(), threading.Event()

    def stop() -> None:
        called.wait(60)
        gate.cancel()

    stopping = threading.Thread(target=stop)
    stopping.start()
    called.set()
    done = decode_batch(
        [data] * count,
        [None] * count,
        jobs,
        out,
        table=None,
        max_pixels=MAX_PIXELS,
        threads=2,
        gate=gate,
    )
    stopping.join()
    assert not done.all()
    assert not done[-1], "images are begun in order"
    cancelled = decode_batch([data], [None], jobs[:1], out[:1], table=None, max_pixels=MAX_PIXELS, threads=1, gate=gate)
    assert not cancelled.any()


def test_batches_go_through_a_gate_one_after_the_other(make_jpeg: Callable[..., bytes]) -> None:
    """Each of many callers at one gate gets all of its batch, and nobody is left waiting."""
    data, count = make_jpeg(64, 64), 6
    gate, pixels = Gate(), decode_image(data)
    views = Views.of([View.of_window((0, 0, 64, 64), (64, 64))] * count)
    jobs = make_jobs(views, orientations=1, heights=64, widths=64)
    outs = [torch.zeros((count, 64, 64, 3), dtype=torch.uint8).permute(0, 3, 1, 2) for _ in range(24)]
    done = []

    def run(out: Tensor) -> None:
        given = [data] * count, [None] * count, jobs, out
        done.append(decode_batch(*given, table=None, max_pixels=MAX_PIXELS, threads=3, gate=gate).all())

    callers = [threading.Thread(target=run, args=(out,)) for out in outs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
        assert not caller.is_alive()
    assert done == [True] * len(outs)
    for out in outs:
        assert np.array_equal(out.permute(0, 2, 3, 1).numpy(), np.stack([pixels] * count))


def call(**changed: Any) -> None:
    """`_kernel.decode` for one picture, with some of its arguments changed."""
    arguments: dict[str, Any] = {
        "heads": [b"no JPEG"],
        "bodies": [None],
        "jobs": np.zeros((1, JOB_FIELDS), np.int32),
        "out": np.zeros((1, SIZE, SIZE, 3), np.uint8),
        "height": SIZE,
        "width": SIZE,
        "table": None,
        "itemsize": 1,
        "status": np.zeros(1, np.int32),
        "max_pixels": MAX_PIXELS,
        "threads": 1,
        "gate": None,
    }
    _kernel.decode(*{**arguments, **changed}.values())


@pytest.mark.parametrize(
    "changed",
    [
        {"jobs": np.zeros((1, JOB_FIELDS - 1), np.int32)},
        {"jobs": np.zeros((2, JOB_FIELDS), np.int32)},
        {"jobs": np.zeros((1, JOB_FIELDS), np.int64)},
        {"jobs": b""},
        {"out": np.zeros((1, SIZE, SIZE), np.uint8)},
        {"out": np.zeros((2, SIZE, SIZE, 3), np.uint8)},
        {"status": np.zeros(2, np.int32)},
        {"status": np.zeros(1, np.int8)},
        {"table": np.zeros((3, 255), np.uint8)},
        {"table": np.zeros((3, 512), np.uint8)},
        {"itemsize": 4},
        {"itemsize": 3, "table": np.zeros((3, 768), np.uint8)},
        {"itemsize": 0},
        {"itemsize": -1},
        {"itemsize": 16, "table": np.zeros((3, 4096), np.uint8)},
        {"gate": b""},
        {"height": 0},
        {"width": -1},
        {"height": 65_536, "width": 1},
        {"height": 1 << 30, "width": 1 << 30},
        {"threads": 0},
        {"threads": -5},
        {"bodies": []},
        {"bodies": [None, None]},
        {"heads": []},
        {"heads": [b"", b""]},
    ],
    ids=range(26),
)
def test_sizes_that_do_not_fit_are_errors(changed: dict[str, Any]) -> None:
    call()
    with pytest.raises(ValueError, match=r"due|out of range|itemsize|PyCapsule"):
        call(**changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"heads": ["text"]},
        {"heads": [7]},
        {"heads": 7},
        {"bodies": [7]},
        {"jobs": None},
        {"out": bytes(SIZE * SIZE * 3)},
        {"out": np.zeros((SIZE, 2 * SIZE, 3), np.uint8)[:, ::2]},
        {"status": bytes(4)},
        {"heads": [np.zeros(40, np.uint8)[::2]]},
        {"threads": "1"},
    ],
    ids=range(10),
)
def test_what_is_no_memory_of_the_right_kind_is_an_error(changed: dict[str, Any]) -> None:
    with pytest.raises((TypeError, BufferError, ValueError)):
        call(**changed)
