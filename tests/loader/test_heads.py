"""Heads: which steps a decoder can do by itself, and that they give, to the bit, what the steps give one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forebay import transforms as T
from forebay.loader.geometry import View
from forebay.loader.head_work import MOST_USERS, HeadRules
from forebay.loader.heads import Head, compile_head
from forebay.loader.outputs import OutputProgram, compile_outputs
from forebay.loader.pixels import from_pixels, render
from forebay.loader.steps import make_step
from forebay.sharding import Schema

SCHEMA = Schema.from_spec({"image": "image", "second": "image", "mask": "mask", "label": "int64", "name": "str"})
CROP, FLIP, NORMALIZE = T.RandomResizedCrop(9), T.RandomHorizontalFlip(), T.Normalize()
FLOAT, HALF = T.ToDtype(torch.float32), T.ToDtype(torch.bfloat16)
Key = str | tuple[str, ...]


def invert(image: Tensor) -> Tensor:
    return 255 - image


def programs(transforms: Mapping[Any, Any]) -> list[OutputProgram]:
    return compile_outputs(SCHEMA, ["image"], transforms)


def head_of(steps: Sequence[T.Transform]) -> Head:
    head = compile_head([make_step(step) for step in steps])
    assert head is not None
    return head


@pytest.mark.parametrize(
    ("steps", "length"),
    [
        ([CROP], 1),
        ([CROP, FLIP, NORMALIZE], 3),
        ([FLIP, CROP, HALF], 3),
        ([T.CenterCrop(8)], 1),
        ([T.RandomCrop(8)], 1),
        ([T.Resize((8, 9)), T.RandomCrop(5)], 2),
        ([T.Resize(shorter=16), T.CenterCrop(8), FLIP], 3),
        ([T.CenterCrop(8), T.Resize(shorter=4)], 2),
        ([T.CenterCrop(8), T.Resize((4, 4)), T.Resize((8, 8))], 3),
        ([T.RandomCrop(8, padding=2), NORMALIZE], 2),
        ([NORMALIZE, T.CenterCrop(8)], 2),
        ([CROP, FLOAT, NORMALIZE, HALF], 4),
        ([CROP, FLIP, invert, NORMALIZE], 2),
        ([T.CenterCrop(8), NORMALIZE, T.Resize((4, 4))], 2),
        ([T.CenterCrop(8), FLOAT, CROP, FLIP], 2),
        ([CROP, T.ToDtype(torch.complex128)], 1),  # 16 bytes a value, and the kernel writes 8 at most
        ([], None),
        ([FLIP], None),
        ([NORMALIZE], None),
        ([T.Resize(shorter=8), FLIP], None),
        ([invert, CROP], None),
        ([FLOAT, CROP], None),
    ],
    ids=str,
)
def test_a_head_is_as_many_steps_as_have_a_known_size(steps: list[T.Transform], length: int | None) -> None:
    head = compile_head([make_step(step) for step in steps])
    assert (None if head is None else len(head.steps)) == length


def test_a_head_knows_its_size_and_type() -> None:
    head = head_of([T.CenterCrop((20, 30)), T.Resize(shorter=10), HALF])
    assert (head.size, head.dtype) == ((10, 15), torch.bfloat16)
    assert head.table is not None
    assert head.table.shape == (3, 512)
    plain = head_of([CROP, FLIP])
    assert (plain.size, plain.dtype, plain.table) == ((9, 9), torch.uint8, None)


POINTWISE: dict[str, list[T.Transform]] = {
    "normalize": [NORMALIZE],
    "normalize by other numbers": [T.Normalize((0.1, 0.7, 0.3), (0.01, 3.0, 0.5))],
    "float32": [FLOAT],
    "float32 scaled": [T.ToDtype(torch.float32, scale=True)],
    "float32 scaled, normalize": [T.ToDtype(torch.float32, scale=True), NORMALIZE],
    "float16 scaled": [T.ToDtype(torch.float16, scale=True)],
    "normalize, float16": [NORMALIZE, T.ToDtype(torch.float16)],
    "bfloat16": [HALF],
    "normalize, bfloat16": [NORMALIZE, HALF],
    "bfloat16, normalize": [HALF, NORMALIZE],
    "float64 scaled": [T.ToDtype(torch.float64, scale=True)],
    "normalize, float64": [NORMALIZE, T.ToDtype(torch.float64)],
    "int64": [T.ToDtype(torch.int64)],
    "bool": [T.ToDtype(torch.bool)],
}


@pytest.mark.parametrize("steps", POINTWISE.values(), ids=POINTWISE)
@pytest.mark.parametrize("size", [(16, 48), (7, 5), (1, 1)], ids=str)
def test_a_table_is_what_the_steps_make_of_pictures(steps: list[T.Transform], size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    if size == (16, 48):
        pixels = np.arange(768, dtype=np.uint8).repeat(3).reshape(16, 48, 3)
    (program,) = programs({"image": [T.CenterCrop(size), *steps]})
    head = program.head
    assert head is not None
    assert head.table is not None
    draws = program.draw(seed=0, epoch=0, indices=np.array([0]), occurrences=np.array([0]))
    expected = program.apply((pixels,), draws, 0, (None,))[0]
    assert head.dtype == expected.dtype
    entries = head.table.reshape(3, 256, -1)
    found = np.stack([entries[c][pixels[:, :, c]] for c in range(3)], axis=2)
    memory = expected.permute(1, 2, 0).contiguous().view(torch.uint8).numpy()
    assert np.array_equal(found.reshape(memory.shape), memory)


STEPS = st.one_of(
    st.builds(T.CenterCrop, st.integers(1, 40)),
    st.builds(T.RandomCrop, st.integers(1, 30), pad_if_needed=st.booleans(), padding=st.sampled_from([0, 0, 3])),
    st.builds(T.RandomResizedCrop, st.integers(1, 40)),
    st.builds(T.Resize, st.tuples(st.integers(1, 40), st.integers(1, 40))),
    st.builds(lambda shorter: T.Resize(shorter=shorter), st.integers(1, 40)),
    st.just(FLIP),
    st.just(NORMALIZE),
    st.just(FLOAT),
)


def decoded(height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(height + 100 * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


@settings(max_examples=400, deadline=None)
@given(
    steps=st.lists(STEPS, max_size=5),
    height=st.integers(1, 50),
    width=st.integers(1, 50),
    index=st.integers(0, 10**6),
)
def test_a_head_gives_to_the_bit_what_its_steps_give(
    steps: list[T.Transform], height: int, width: int, index: int
) -> None:
    (program,) = programs({"image": steps})
    if program.head is None:
        return
    draws = program.draw(seed=3, epoch=1, indices=np.array([index]), occurrences=np.array([0]))
    view = program.head.views(np.array([height]), np.array([width]), draws, np.array([0]))[0]
    if view is None:
        return
    assert (view.out_height, view.out_width) == program.head.size
    pixels = decoded(height, width)
    window = pixels[view.top : view.top + view.height, view.left : view.left + view.width]
    try:
        expected = program.apply((pixels,), draws, 0, (None,))[0]
    except ValueError:  # a step after the head does not fit the picture
        with pytest.raises(ValueError, match="smaller than"):
            program.apply_window(window, view, draws, 0, (None,))
        return
    assert torch.equal(program.apply_window(window, view, draws, 0, (None,))[0], expected)
    seen = render(from_pixels(window), view).permute(0, 2, 3, 1).contiguous()
    if program.head.table is not None:
        entries = torch.from_numpy(program.head.table.reshape(3, 256, -1))
        looked_up = torch.stack([entries[c][seen[..., c].long()] for c in range(3)], dim=-2)
        seen = looked_up.contiguous().view(program.head.dtype).view(seen.shape)
    rest = program.apply_after_head(seen.permute(0, 3, 1, 2), draws, 0, (None,))[0]
    assert torch.equal(rest, expected)


def view_of(steps: list[T.Transform], height: int, width: int) -> View | None:
    (program,) = programs({"image": steps})
    assert program.head is not None
    draws = program.draw(seed=3, epoch=1, indices=np.array([0]), occurrences=np.array([0]))
    return program.head.views(np.array([height]), np.array([width]), draws, np.array([0]))[0]


def test_a_picture_that_needs_edges_or_two_resizes_is_left_to_the_steps() -> None:
    assert view_of([T.CenterCrop(20)], 20, 20) is not None
    assert view_of([T.CenterCrop(20)], 19, 40) is None
    assert view_of([T.CenterCrop(20)], 40, 19) is None
    assert view_of([T.RandomCrop(20)], 40, 19) is None, "an error, with the steps' own words"
    assert view_of([T.RandomCrop(20, pad_if_needed=True)], 19, 40) is None
    assert view_of([T.RandomCrop(20, pad_if_needed=True)], 20, 40) is not None
    assert view_of([T.RandomCrop(20, padding=1)], 40, 40) is None
    assert view_of([T.Resize((30, 30)), T.RandomResizedCrop(20)], 40, 40) is None
    assert view_of([T.Resize((30, 30)), T.RandomResizedCrop(20)], 30, 30) is not None, "the first one changes nothing"
    assert view_of([T.Resize(shorter=30), T.Resize((30, 60))], 40, 80) is not None


def rules(transforms: Mapping[Any, Any]) -> HeadRules:
    return HeadRules(programs(transforms), orientation="apply", max_pixels=10**6, decoder="native")


def test_columns_of_one_or_two_outputs_are_decoded_by_heads() -> None:
    assert MOST_USERS == 2
    one = rules({"image": [CROP]})
    assert (one.columns, [head is not None for head in one.heads]) == ({"image": [0]}, [True])
    two = rules({"a": T.From("image", [CROP]), "b": T.From("image", [T.CenterCrop(4), invert])})
    assert two.columns == {"image": [0, 1]}
    assert all(head is not None for head in two.heads)
    apart = rules({"image": [CROP], "second": [T.CenterCrop(4)]})
    assert apart.columns == {"image": [0], "second": [1]}


@pytest.mark.parametrize(
    "transforms",
    [
        {"image": []},
        {"image": [T.Resize(shorter=8)]},
        {("image", "mask"): [CROP, FLIP]},
        {("image", "second"): [CROP]},
        {"mask": [CROP], "image": [FLIP]},
        {"a": T.From("image", [CROP]), "b": T.From("image", [])},
        {"a": T.From("image", [CROP]), ("image", "mask"): [CROP]},
        {"a": T.From("image", [CROP]), "b": T.From("image", [CROP]), "c": T.From("image", [CROP])},
    ],
    ids=str,
)
def test_what_needs_the_whole_picture_or_is_shared_by_many_is_decoded_once_and_whole(
    transforms: Mapping[Any, Any],
) -> None:
    found = rules(transforms)
    assert found.columns == {}
    assert all(head is None for head in found.heads)


def test_only_a_single_image_has_a_head() -> None:
    with_head = {
        program.names: program.head is not None for program in compile_outputs(SCHEMA, None, {"image": [CROP]})
    }
    assert with_head == {("image",): True, ("second",): False, ("mask",): False, ("label",): False, ("name",): False}
    masks = {program.names: program.head for program in compile_outputs(SCHEMA, ["mask"], {"mask": [CROP]})}
    assert masks == {("mask",): None}
