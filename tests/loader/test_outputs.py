"""Declared transforms: what they do to pixels, how they draw, and what they refuse."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from forebay import transforms as T
from forebay.errors import ConfigError, SchemaError
from forebay.loader.outputs import OutputProgram, compile_outputs
from forebay.loader.slots import SlotPool
from forebay.loader.windows import (
    RESIZED_CROP_ATTEMPTS,
    central_window,
    random_resized_window,
    random_resized_windows,
    scaled_size,
)
from forebay.sharding import Schema

SCHEMA = Schema.from_spec(
    {"image": "image", "mask": "mask", "label": "int64", "name": "str", "vector": "float32[4]", "ragged": "uint8[*]"},
    {"label": ["a", "b", "c"]},
)
PIXELS = np.array(
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize(
        (120, 90), Image.Resampling.BICUBIC
    )
)
MASK = (np.arange(90)[:, None] * 120 + np.arange(120)[None] >> 6).astype(np.uint8)


def program(steps: Any, key: Any = "image") -> OutputProgram:
    wanted = key if isinstance(key, tuple) else (key,)
    return next(p for p in compile_outputs(SCHEMA, None, {key: steps}) if p.names == wanted)


def run(
    steps: Any, key: Any = "image", decoded: Any = (PIXELS,), index: int = 0, epoch: int = 0, slot: bool = False
) -> Any:
    made = program(steps, key)
    draws = made.draw(seed=1, epoch=epoch, indices=np.array([index]), occurrences=np.array([0]))
    out = [SlotPool().take(1, spec) if slot and spec is not None else None for spec in made.specs]
    values = made.apply(decoded, draws, 0, out)
    values = tuple(value[0] if slot is not None else value for value, slot in zip(values, out, strict=True))
    return values[0] if len(values) == 1 else values


def hwc(image: Tensor) -> np.ndarray[Any, Any]:
    return image.permute(1, 2, 0).numpy()


def close_to_pillow(found: Tensor, box: tuple[int, int, int, int], size: tuple[int, int]) -> None:
    top, left, height, width = box
    expected = np.array(
        Image.fromarray(PIXELS)
        .crop((left, top, left + width, top + height))
        .resize(size[::-1], Image.Resampling.BILINEAR)
    )
    difference = np.abs(hwc(found).astype(int) - expected)
    assert difference.mean() <= 1
    assert difference.max() <= 2


def test_an_image_without_transforms_is_as_decoded_in_channels_last_memory() -> None:
    image = run([])
    assert image.dtype == torch.uint8
    assert np.array_equal(hwc(image), PIXELS)
    assert image.stride(0) == 1


@pytest.mark.parametrize("slot", [False, True])
def test_resize_is_pillows_antialiased_bilinear(slot: bool) -> None:
    close_to_pillow(run([T.Resize((31, 45))], slot=slot), (0, 0, 90, 120), (31, 45))
    close_to_pillow(run([T.Resize((200, 300))], slot=slot), (0, 0, 90, 120), (200, 300))
    assert run([T.Resize(shorter=45)]).shape == (3, 45, 60)


@pytest.mark.parametrize("slot", [False, True])
def test_center_crop_takes_the_middle_and_pads_what_is_smaller(slot: bool) -> None:
    assert np.array_equal(hwc(run([T.CenterCrop((50, 60))], slot=slot)), PIXELS[20:70, 30:90])
    padded = hwc(run([T.CenterCrop(150)], slot=slot))
    assert np.array_equal(padded[30:120, 15:135], PIXELS)
    assert not padded[:30].any()
    assert not padded[:, 135:].any()


def test_random_crop_takes_a_whole_window_somewhere() -> None:
    seen = set()
    for index in range(30):
        crop = hwc(run([T.RandomCrop(80)], index=index))
        places = [(y, x) for y in range(11) for x in range(41) if np.array_equal(PIXELS[y : y + 80, x : x + 80], crop)]
        assert len(places) == 1
        seen |= set(places)
    assert len(seen) > 20
    with pytest.raises(ValueError, match="smaller than RandomCrop"):
        run([T.RandomCrop(100)])
    padded = [run([T.RandomCrop(100, pad_if_needed=True)], index=index) for index in range(10)]
    assert {image.shape for image in padded} == {(3, 100, 100)}
    assert len({int((image.sum((0, 2)) > 0).nonzero()[0]) for image in padded}) > 2, "always padded at the same edge"
    assert run([T.RandomCrop(100, padding=8)]).shape == (3, 100, 100)


@pytest.mark.parametrize("slot", [False, True])
def test_random_resized_crop_takes_the_window_that_its_numbers_give(slot: bool) -> None:
    made = program([T.RandomResizedCrop(32)])
    for index in range(20):
        draws = made.draw(seed=1, epoch=0, indices=np.array([index]), occurrences=np.array([0]))
        numbers = draws.numbers[0]
        assert numbers is not None
        blocks = [numbers[0, at : at + 4].tolist() for at in range(0, 24, 4)]
        box = random_resized_window(90, 120, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), numbers=blocks.__getitem__)
        close_to_pillow(run([T.RandomResizedCrop(32)], index=index, slot=slot), box, (32, 32))


def test_flip_mirrors_about_half_of_the_samples() -> None:
    flipped = 0
    for index in range(100):
        image = hwc(run([T.RandomHorizontalFlip()], index=index))
        mirrored = np.array_equal(image, PIXELS[:, ::-1])
        assert mirrored or np.array_equal(image, PIXELS)
        flipped += mirrored
    assert 30 < flipped < 70
    assert np.array_equal(hwc(run([T.RandomHorizontalFlip(1.0)])), PIXELS[:, ::-1])
    assert np.array_equal(hwc(run([T.RandomHorizontalFlip(0.0)])), PIXELS)


@pytest.mark.parametrize("slot", [False, True])
def test_normalize_gives_float32_by_the_formula(slot: bool) -> None:
    mean, std = np.array(T.IMAGENET_MEAN), np.array(T.IMAGENET_STD)
    image = run([T.CenterCrop(64), T.Normalize()], slot=slot)
    assert image.dtype == torch.float32
    np.testing.assert_allclose(hwc(image), (PIXELS[13:77, 28:92] / 255 - mean) / std, rtol=1e-4, atol=1e-5)
    floating = run([T.CenterCrop(64), T.ToDtype(torch.float32, scale=True), T.Normalize()], slot=slot)
    torch.testing.assert_close(image, floating, rtol=1e-4, atol=1e-5)


def test_to_dtype_converts_and_scales() -> None:
    assert torch.equal(run([T.ToDtype(torch.int32)]), torch.from_numpy(PIXELS).permute(2, 0, 1).to(torch.int32))
    half = run([T.CenterCrop(8), T.ToDtype(torch.bfloat16, scale=True)], slot=True)
    assert half.dtype == torch.bfloat16
    assert 0 <= float(half.min()) <= float(half.max()) <= 1


def test_a_slot_changes_no_value() -> None:
    steps = [T.RandomResizedCrop(40), T.RandomHorizontalFlip(), T.Normalize()]
    for index in range(10):
        assert torch.equal(run(steps, index=index), run(steps, index=index, slot=True))


# -- randomness ----------------------------------------------------------------------------------------------------


def test_adding_a_transform_leaves_the_draws_of_others_alone() -> None:
    plain = run([T.RandomResizedCrop(32)])
    with_flip = run([T.RandomHorizontalFlip(0.0), T.RandomResizedCrop(32)])
    assert torch.equal(plain, with_flip)


def test_the_draws_of_a_sample_do_not_depend_on_its_batch() -> None:
    made = program([T.RandomResizedCrop(32), T.RandomHorizontalFlip()])
    together = made.draw(seed=1, epoch=2, indices=np.arange(8), occurrences=np.zeros(8, np.int64))
    for i in range(8):
        alone = made.draw(seed=1, epoch=2, indices=np.array([i]), occurrences=np.array([0]))
        a = made.apply((PIXELS,), together, i, (None,))[0]
        assert torch.equal(a, made.apply((PIXELS,), alone, 0, (None,))[0])


def test_epoch_occurrence_and_output_change_the_crop() -> None:
    steps = [T.RandomResizedCrop(32)]
    made = program(steps)
    again = made.draw(seed=1, epoch=0, indices=np.array([0]), occurrences=np.array([1]))
    first = run(steps)
    assert not torch.equal(first, run(steps, epoch=1))
    assert not torch.equal(first, made.apply((PIXELS,), again, 0, (None,))[0])
    assert not torch.equal(first, run(T.From("image", steps), key="view"))


def test_a_callable_that_draws_gets_the_samples_own_generator() -> None:
    def noise(image: Tensor, rng: np.random.Generator) -> Tensor:
        return image.float() + float(rng.random())

    assert torch.equal(run([noise], index=3), run([noise], index=3))
    assert not torch.equal(run([noise], index=3), run([noise], index=4))
    assert not torch.equal(run([noise], index=3), run([noise], index=3, epoch=1))


def test_callables_get_upright_pictures_and_may_be_anywhere_in_the_list() -> None:
    seen: list[tuple[Any, ...]] = []

    def look(image: Tensor) -> Tensor:
        seen.append((tuple(image.shape), image.dtype))
        return 255 - image

    result = run([T.CenterCrop(64), look, T.Normalize()])
    assert seen == [((3, 64, 64), torch.uint8)]
    assert result.dtype == torch.float32
    assert program([look, T.CenterCrop(8)]).specs == (None,)


def test_a_callable_may_give_an_array_but_not_nothing() -> None:
    steps: list[T.Transform] = [T.CenterCrop(8), lambda image: image.numpy().copy(), T.Normalize()]
    assert torch.equal(run(steps), run([T.CenterCrop(8), T.Normalize()]))
    with pytest.raises(TypeError, match="returned None"):
        run([lambda image: None])


def test_callables_act_on_any_column() -> None:
    assert run([lambda label: label + 1], "label", (np.int64(4),)) == 5
    assert run([str.upper], "name", ("abc",)) == "ABC"
    assert torch.equal(run([lambda v: v * 2], "vector", (np.ones(4, np.float32),)), torch.full((4,), 2.0))


# -- several outputs -----------------------------------------------------------------------------------------------


def test_two_views_of_one_column_replace_it() -> None:
    programs = compile_outputs(
        SCHEMA, ["image", "label"], {"view1": T.From("image", [T.RandomResizedCrop(8)]), "view2": T.From("image", [])}
    )
    assert [p.names for p in programs] == [("view1",), ("view2",), ("label",)]
    assert [p.columns for p in programs] == [("image",), ("image",), ("label",)]


def test_a_callable_that_writes_into_its_picture_leaves_other_views_alone() -> None:
    views = {"view1": T.From("image", [T.CenterCrop(8), Tensor.zero_]), "view2": T.From("image", [])}
    first, second = compile_outputs(SCHEMA, ["image"], views)
    draws = first.draw(seed=0, epoch=0, indices=np.array([0]), occurrences=np.array([0]))
    decoded = PIXELS.copy()
    assert not first.apply((decoded,), draws, 0, (None,))[0].any()
    assert np.array_equal(hwc(second.apply((decoded,), draws, 0, (None,))[0]), PIXELS)


def test_image_and_mask_share_geometry_and_masks_keep_their_values() -> None:
    steps = [T.RandomResizedCrop(40), T.RandomHorizontalFlip(), T.Normalize()]
    position = np.zeros((90, 120, 3), np.uint8)
    position[:, :, 0], position[:, :, 1] = np.arange(90)[:, None], np.arange(120)
    mask = (np.arange(90)[:, None] + np.zeros((90, 120))).astype(np.uint8)
    for index in range(10):
        image, found = run(steps[:2], ("image", "mask"), (position, mask), index=index)
        assert found.shape == (40, 40)
        assert found.dtype == torch.uint8
        assert (image[0].int() - found.int()).abs().max() <= 2, "the mask was cut elsewhere"
    image, found = run(steps, ("image", "mask"), (PIXELS, MASK))
    assert image.dtype == torch.float32
    assert set(found.unique().tolist()) <= set(np.unique(MASK).tolist())
    with pytest.raises(ValueError, match="share geometry differ in size"):
        run(steps, ("image", "mask"), (PIXELS, MASK[:50]))


@pytest.mark.parametrize("size", [(13, 17), (90, 60), (200, 333), (1, 1)])
def test_masks_are_resized_as_pillows_nearest(size: tuple[int, int]) -> None:
    found = run([T.Resize(size)], "mask", (MASK,))
    expected = np.array(Image.fromarray(MASK).resize(size[::-1], Image.Resampling.NEAREST))
    assert np.array_equal(found.numpy(), expected)


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "transforms", "word"),
    [
        (None, {"picture": [T.CenterCrop(8)]}, "'image', 'mask', 'label'"),
        (None, {"view": T.From("picture", [])}, "no column 'picture'"),
        (None, {"label": [T.CenterCrop(8)]}, "label"),
        (None, {"image": ["crop"]}, "no transform"),
        (None, {"image": "crop"}, "list of transforms"),
        (None, {"image": T.CenterCrop(8)}, "list of transforms"),
        (None, {"image": [], ("image", "mask"): []}, "twice"),
        (None, {("a", "b"): T.From("image", [])}, "several outputs"),
        (None, {"__valid__": T.From("image", [])}, "__"),
        (None, {"image": [T.RandomHorizontalFlip]}, "no transform"),
        (None, {"image": [T.MixUp(0.2)]}, "batch_transforms"),
        (None, {"image": [T.ToDtype(torch.bfloat16), T.Resize((8, 8))]}, "before ToDtype"),
    ],
)
def test_what_cannot_work_is_refused_at_once(columns: Any, transforms: Any, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        compile_outputs(SCHEMA, columns, transforms)


def test_a_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(SchemaError, match="picture"):
        compile_outputs(SCHEMA, ["picture"], None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.Resize(),
        lambda: T.Resize(256),  # type: ignore[arg-type]
        lambda: T.Resize((8, 8), shorter=8),
        lambda: T.CenterCrop(0),
        lambda: T.CenterCrop((8, 8, 8)),  # type: ignore[arg-type]
        lambda: T.RandomCrop(8, padding=-1),
        lambda: T.RandomResizedCrop(-1),
        lambda: T.RandomResizedCrop(8, scale=(0.5, 0.1)),
        lambda: T.RandomResizedCrop(8, scale=(0.5, 1.1)),
        lambda: T.RandomResizedCrop(8, ratio=(0.0, 1.0)),
        lambda: T.RandomHorizontalFlip(1.5),
        lambda: T.Normalize((0.5,), (0.5,)),
        lambda: T.Normalize((0.5, 0.5, 0.5), (0.5, 0.0, 0.5)),
        lambda: T.ToDtype("float32"),  # type: ignore[arg-type]
        lambda: T.ToDtype(torch.uint8, scale=True),
        lambda: T.MixUp(0.0),
        lambda: T.CutMix(1.0, num_classes=0),
        lambda: T.Resize((True, 8)),
        lambda: T.Normalize(0.5, 0.5),  # type: ignore[arg-type]
        lambda: T.From(["image"], []),  # type: ignore[arg-type]
    ],
    ids=range(20),
)
def test_a_transform_checks_its_settings(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


def test_transforms_and_programs_pickle() -> None:
    steps: Sequence[T.Transform] = [
        T.RandomResizedCrop(8),
        T.RandomHorizontalFlip(),
        T.Normalize(),
        T.Resize(shorter=3),
    ]
    assert pickle.loads(pickle.dumps(steps)) == steps  # noqa: S301 - our own bytes
    copy = pickle.loads(pickle.dumps(program(steps)))  # noqa: S301
    assert copy.names == ("image",)


# -- windows -------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(height=st.integers(1, 3000), width=st.integers(1, 3000), seed=st.integers(0, 10**6))
def test_a_random_window_lies_within_the_picture(height: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    asked: list[int] = []

    def numbers(attempt: int) -> Sequence[float]:
        asked.append(attempt)
        return [float(number) for number in rng.random(4)]

    top, left, h, w = random_resized_window(height, width, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), numbers=numbers)
    assert 0 <= top <= top + h <= height
    assert 0 <= left <= left + w <= width
    assert h > 0
    assert w > 0
    assert asked == list(range(len(asked)))
    assert len(asked) <= RESIZED_CROP_ATTEMPTS


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=12),
    seed=st.integers(0, 10**6),
    drawn=st.integers(1, RESIZED_CROP_ATTEMPTS),
    scale=st.sampled_from([(0.08, 1.0), (0.5, 1.0), (1.0, 1.0)]),
    ratio=st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (0.1, 10.0)]),
)
def test_random_windows_of_many_are_those_of_each(
    sizes: list[tuple[int, int]], seed: int, drawn: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    numbers = np.random.default_rng(seed).random((len(sizes), 4 * RESIZED_CROP_ATTEMPTS))
    expected = []
    for (height, width), row in zip(sizes, numbers, strict=True):
        blocks = row.reshape(-1, 4).tolist()
        expected.append(random_resized_window(height, width, scale=scale, ratio=ratio, numbers=blocks.__getitem__))
    heights, widths = np.array(sizes, np.int64).T
    windows = random_resized_windows(
        heights,
        widths,
        scale=scale,
        ratio=ratio,
        first=numbers[:, : 4 * drawn],
        more=lambda which, count: numbers[which, :count],
    )
    assert [tuple(window) for window in windows.T.tolist()] == expected


def test_ten_windows_that_do_not_fit_give_the_central_one() -> None:
    box = random_resized_window(10, 1000, scale=(1.0, 1.0), ratio=(3 / 4, 4 / 3), numbers=lambda _: [0.5] * 4)
    assert box == (0, 493, 10, 13)
    box = random_resized_window(1000, 10, scale=(1.0, 1.0), ratio=(3 / 4, 4 / 3), numbers=lambda _: [0.5] * 4)
    assert box == (493, 0, 13, 10)


def test_sizes_and_windows_follow_torchvisions_rounding() -> None:
    assert scaled_size(375, 500, 256) == (256, 341)
    assert scaled_size(500, 375, 256) == (341, 256)
    assert central_window(11, 8, (4, 5)) == (4, 2, 4, 5)  # 3.5 rounds to 4, 1.5 to 2
    assert central_window(9, 8, (4, 4)) == (2, 2, 4, 4)  # 2.5 rounds to 2
