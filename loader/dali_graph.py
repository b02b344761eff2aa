"""The graph that DALI runs: encoded pictures and windows in, finished uint8 pictures out. It draws and reads nothing.

All numbers are inputs, taken from the loader's own views, so that every window equals that of the other decoders, and a
ticket passes through, so that a batch that comes out of turn is noticed.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg

from forebay.errors import ConfigError
from forebay.loader.geometry import View
from forebay.loader.heads import Head
from forebay.loader.jpeg_engines import hardware_share

__all__ = ["Columns", "DaliMode", "Encoded", "HeadShape", "build_pipeline", "graph_columns"]

DaliMode = Literal["region", "whole", "cpu_decode"]
"""Decode only the window on the GPU; decode all of it there and cut; decode on the CPU and resize on the GPU."""
Encoded = bytes | memoryview
Columns = tuple[Any, ...]

_BLANK_SIDE = 8


class HeadShape(NamedTuple):
    """What is the same in all views of a head: its size, and which of the operations they need."""

    height: int
    width: int
    resizes: bool = True
    crops: bool = True
    """Whether the resized window may be cut again."""
    flips: bool = True

    @classmethod
    def of(cls, head: Head) -> HeadShape:
        """Of the steps that a head is made of."""
        resizing = [k for k, step in enumerate(head.steps) if step.resizes]
        crops = bool(resizing) and any(step.crops for step in head.steps[resizing[-1] + 1 :])
        return cls(*head.size, bool(resizing), crops, any(step.flips for step in head.steps))

    def blank(self) -> tuple[bytes, View]:
        """A small grey JPEG that holds the place of a picture that something else decodes, and its view."""
        size = (_BLANK_SIDE, _BLANK_SIDE) if self.resizes else (self.height, self.width)
        return _grey_jpeg(*size), View.of_window((0, 0, *size), (self.height, self.width))


def graph_columns(
    ticket: int, shapes: Sequence[HeadShape], heads: Sequence[tuple[Sequence[Encoded], npt.NDArray[np.int64]]]
) -> Columns:
    """The inputs of one iteration, as the graph takes them; views of the bytes, not copies.

    Args:
        ticket: number of the batch.
        shapes: by head.
        heads: by head, the encoded pictures, and int64 (n, 11) with the fields of each `View`; a view's window is in
            the coordinates of these bytes.
    """
    columns: list[Any] = []
    count = 0
    for shape, (encoded, fields) in zip(shapes, heads, strict=True):
        count = len(encoded)
        window, scaled, cut, out = fields[:, 0:4], fields[:, 4:6], fields[:, 6:8], fields[:, 8:10]
        as_it_is = (window[:, 2:] == scaled).all(axis=1, keepdims=True)  # what keeps its size is cut by the decoder
        begin = np.where(as_it_is, window[:, :2] + cut, window[:, :2])
        extent, scaled = np.where(as_it_is, out, window[:, 2:]), np.where(as_it_is, out, scaled)
        cut = np.where(as_it_is, 0, cut)
        columns += [[np.frombuffer(data, np.uint8) for data in encoded], _dense(begin), _dense(extent)]
        columns += [_dense(scaled, np.float32)] if shape.resizes else []
        columns += [_dense(cut)] if shape.crops else []
        columns += [_dense(fields[:, 10])] if shape.flips else []
    return (*columns, np.full(count, ticket, np.int64))


def _dense(numbers: npt.NDArray[np.int64], dtype: type[np.generic] = np.int32) -> npt.NDArray[Any]:
    return np.ascontiguousarray(numbers, dtype)


def build_pipeline(
    shapes: Sequence[HeadShape],
    source: Callable[[], Columns],
    *,
    mode: DaliMode,
    batch_size: int,
    threads: int,
    device_id: int | None,
    depth: int,
) -> Any:
    """A DALI pipeline; its outputs are one (n, height, width, 3) by head, and the tickets (n,) on the CPU.

    Args:
        shapes: by head.
        source: gives `graph_columns` of the next batch; StopIteration ends an epoch. What it gave must stay in memory
            until its iteration came out.
        mode: how it decodes on a GPU.
        batch_size: of the largest batch.
        threads: of DALI's own that decode.
        device_id: number of the GPU; None runs the same graph on the CPU.
        depth: iterations that are on their way at once.

    Raises:
        ConfigError: DALI is not installed.
    """
    fn, types, pipeline_class = _dali()
    pipeline = pipeline_class(
        batch_size=batch_size, num_threads=threads, device_id=device_id, prefetch_queue_depth=depth, exec_dynamic=True
    )
    inputs: list[tuple[Any, int]] = []
    for shape in shapes:
        inputs += [(types.UINT8, 1), (types.INT32, 1), (types.INT32, 1)]
        inputs += (
            [(types.FLOAT, 1)] * shape.resizes + [(types.INT32, 1)] * shape.crops + [(types.INT32, 0)] * shape.flips
        )
    inputs.append((types.INT64, 0))
    with pipeline:
        *columns, tickets = fn.external_source(
            source=source,
            num_outputs=len(inputs),
            batch=True,
            cycle=None,
            no_copy=True,
            dtype=[dtype for dtype, _ in inputs],
            ndim=[ndim for _, ndim in inputs],
        )
        left = iter(columns)
        outputs = [_pictures(fn, types, shape, left, mode if device_id is not None else None) for shape in shapes]
        pipeline.set_outputs(*outputs, tickets)
    pipeline.build()
    _built.add(pipeline)
    return pipeline


def _pictures(fn: Any, types: Any, shape: HeadShape, columns: Iterator[Any], mode: DaliMode | None) -> Any:
    encoded, anchor, extent = (next(columns) for _ in range(3))
    decoding = {
        "device": "mixed" if mode in ("region", "whole") else "cpu",
        "output_type": types.RGB,
        "adjust_orientation": False,
        "jpeg_fancy_upsampling": True,
    }
    if mode in ("region", "whole") and (share := hardware_share()) is not None:
        decoding["hw_decoder_load"] = share
    absolute = {"normalized_anchor": False, "normalized_shape": False, "axis_names": "HW"}
    if mode == "whole":
        pictures = fn.slice(fn.decoders.image(encoded, **decoding), anchor, extent, **absolute)
    else:
        pictures = fn.decoders.image_slice(encoded, anchor, extent, **absolute, **decoding)
    if mode == "cpu_decode":
        pictures = pictures.gpu()
    if shape.resizes:
        pictures = fn.resize(pictures, size=next(columns), interp_type=types.INTERP_LINEAR, antialias=True)
    if shape.crops:
        pictures = fn.slice(pictures, next(columns), [shape.height, shape.width], **absolute)
    return fn.flip(pictures, horizontal=next(columns)) if shape.flips else pictures


_built: weakref.WeakSet[Any] = weakref.WeakSet()


def _never_end() -> None:
    """In a forked child: a pipeline's end waits for its threads, and these are the parent's."""
    for pipeline in list(_built):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pipeline))


os.register_at_fork(after_in_child=_never_end)


@functools.cache
def _grey_jpeg(height: int, width: int) -> bytes:
    return bytes(simplejpeg.encode_jpeg(np.full((height, width, 1), 128, np.uint8), colorspace="GRAY"))


def _dali() -> tuple[Any, Any, Any]:
    try:
        fn = importlib.import_module("nvidia.dali.fn")
        types = importlib.import_module("nvidia.dali.types")
        pipeline = importlib.import_module("nvidia.dali.pipeline")
    except ImportError as error:
        raise ConfigError(f"decode=\"dali\": DALI cannot be imported ({error}): pip install 'forebay[dali]'") from error
    return fn, types, pipeline.Pipeline
