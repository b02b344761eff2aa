"""What damage does to the kernel and the loader: `test_kernel_damage.py` runs these tests in processes of their own.

Bytes are cut and flipped by numbers of a fixed seed, so that a failure comes again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.errors import DecodeError, SampleError
from forebay.loader.decode import MAX_PIXELS, decode_image
from forebay.loader.geometry import View, Views
from forebay.loader.kernel import WHOLE_FILE, decode_batch, find_frames, make_jobs
from forebay.loader.pixels import from_pixels, render
from forebay.sharding import TranscodeError, make_addressable, read_header

Part = tuple[memoryview, memoryview | None, int]
"""Head, body and first row of MCUs, as the kernel takes them."""
Way = Callable[[bytes, View], Part | None]
SIZE = 48


def photographs(data_dir: Path, count: int) -> list[bytes]:
    """Three quarters of `photos/`, one of `flowers/`, spread over both."""
    found = []
    for folder, share in (("photos", 3 * count // 4), ("flowers", count - 3 * count // 4)):
        paths = sorted((data_dir / folder).rglob("*.jp*g"))
        found += [path.read_bytes() for path in paths[:: len(paths) // share][:share]]
    assert len(found) == count
    return found


def flip_bit(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def damage(data: bytes, rng: random.Random, count: int) -> Iterator[bytes]:
    """`count` times cut somewhere, and `count` times with one byte flipped, every fourth of these in the header."""
    for _ in range(count):
        yield data[: rng.randrange(len(data))]
    scan = read_header(memoryview(data)).scan_at
    for n in range(count):
        at = rng.randrange(scan if n % 4 == 0 else len(data))
        yield flip_bit(data, at, rng.randrange(8))


def small_view(rng: random.Random, height: int, width: int) -> View:
    """A window at any place, made SIZE by SIZE, and at most 3.9 times as small."""
    h, w = (rng.randint(1, min(side, int(3.9 * SIZE))) for side in (height, width))
    return View.of_window((rng.randint(0, height - h), rng.randint(0, width - w), h, w), (SIZE, SIZE))


def expected_pixels(data: bytes, view: View, size: tuple[int, int]) -> torch.Tensor | None:
    """What the careful decoder makes of damaged bytes, where it makes anything, and that of the size it had."""
    try:
        pixels = decode_image(data)
    except DecodeError:
        return None
    if pixels.shape[:2] != size:
        return None
    window = pixels[view.top : view.top + view.height, view.left : view.left + view.width]
    return render(from_pixels(window), view)


def check(sources: list[Part], whole: list[bytes], views: list[View], size: tuple[int, int], every: int) -> int:
    """Let the kernel have a batch; of what it did, compare each `every`-th with the libraries. Returns how many."""
    jobs = [
        make_jobs(
            Views.of([view]),
            orientations=1,
            heights=size[0],
            widths=size[1],
            first_row=first,
        )[0]
        for view, (_, _, first) in zip(views, sources, strict=True)
    ]
    out = torch.empty((len(sources), SIZE, SIZE, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    heads, bodies = [head for head, _, _ in sources], [body for _, body, _ in sources]
    numbers = np.array(jobs, dtype=np.int32)
    done = decode_batch(heads, bodies, numbers, out, table=None, max_pixels=MAX_PIXELS, threads=2)
    places = np.flatnonzero(done).tolist()
    for i in places[::every]:
        expected = expected_pixels(whole[i], views[i], size)
        assert expected is None or torch.equal(out[i : i + 1], expected), (i, views[i])
    return len(places)


def test_photographs_cut_and_flipped_are_left_or_made_as_the_libraries_make_them(
    data_dir: Path, take_part: Way
) -> None:
    rng = random.Random(1)
    done = {"original": 0, "addressable": 0, "in part": 0}
    for data in photographs(data_dir, 200):
        header = read_header(memoryview(data))
        assert header.orientation == 1
        size = header.height, header.width
        for kind in ("original", "addressable"):
            sound = data if kind == "original" else make_addressable(data)
            damaged = list(damage(sound, rng, 20))
            views = [small_view(rng, *size) for _ in damaged]
            sources: list[Part] = [(memoryview(bad), None, WHOLE_FILE) for bad in damaged]
            done[kind] += check(sources, damaged, views, size, every=10)
        sources, whole = [], []
        for k, view in enumerate(views):
            part = take_part(sound, view)
            assert part is not None
            head, body, first = part
            assert body is not None
            begin = sound.index(body) if k % 8 == 0 else 0
            bad = (
                bytes(body[: rng.randrange(len(body))])
                if k < 20
                else flip_bit(bytes(body), rng.randrange(len(body)), k % 8)
            )
            if k % 8 == 7:  # the header instead
                bad, head = bytes(body), memoryview(flip_bit(bytes(head), rng.randrange(len(head)), k % 7))
            sources.append((head, memoryview(bad), first))
            whole.append(sound[:begin] + bad + sound[begin + len(body) :] if begin and k >= 20 and k % 8 != 7 else b"")
        done["in part"] += check(sources, whole, views, size, every=1)
    assert min(done.values()) > 1000, "most flips are in coefficients, and give other pixels"


@pytest.mark.parametrize("way", ["whole", "in part"])
def test_every_byte_of_small_jpegs_may_be_any_other(
    way: str, jpeg_kinds: Callable[[int, int], dict[str, bytes]], take_part: Way
) -> None:
    rng, size = random.Random(2), (33, 47)
    for kind, original in jpeg_kinds(*size).items():
        if kind == "lying on its side":
            continue
        data = original if way == "whole" else make_addressable(original, segment_pixels=16)
        view = small_view(rng, *size)
        part: Part | None = (memoryview(data), None, WHOLE_FILE) if way == "whole" else take_part(data, view)
        assert part is not None
        head, body, first = part
        sources: list[Part] = []
        whole = []
        for at in range(len(head)):
            bad = flip_bit(bytes(head), at, rng.randrange(8))
            sources.append((memoryview(bad), body, first))
            whole.append(bad if way == "whole" else b"")
        for at in range(len(body or b"")):
            sources.append((head, memoryview(flip_bit(bytes(body or b""), at, rng.randrange(8))), first))
            whole.append(b"")
        for at in range(0, len(head), 7):
            sources.append((head[:at], body, first))
            whole.append(b"")
        assert check(sources, whole, [view] * len(sources), size, every=1) > 0


def test_every_awkward_file_is_left_or_made_as_the_libraries_make_it(
    data_dir: Path, by_kernel: Callable[..., torch.Tensor | None], by_library: Callable[[bytes, View], torch.Tensor]
) -> None:
    taken = 0
    for path in awkward(data_dir):
        data = path.read_bytes()
        if not find_frames([data], MAX_PIXELS).any():
            for size in ((60, 80), (1, 1)):
                view = View.of_window((0, 0, 1, 1), (SIZE, SIZE))
                assert not check([(memoryview(data), None, WHOLE_FILE)], [data], [view], size, every=1), path
            continue
        header = read_header(memoryview(data))
        upright = (header.width, header.height) if header.orientation >= 5 else (header.height, header.width)
        rng = random.Random(path.name)
        for _ in range(8):
            view = small_view(rng, *upright)
            made = by_kernel(data, view)
            if made is None:
                continue
            taken += 1
            difference = (made.int() - by_library(data, view).int()).abs().max()
            assert difference <= (1 if header.orientation >= 5 else 0), (path, view)
    assert taken >= 160


def awkward(data_dir: Path) -> list[Path]:
    return sorted(path for path in (data_dir / "awkward").rglob("*") if path.is_file())


def all_kinds_of_damage(data_dir: Path, rng: random.Random) -> Iterator[bytes]:
    for data in photographs(data_dir, 200):
        for sound in (data, make_addressable(data)):
            yield sound
            yield from damage(sound, rng, 3)
    for path in awkward(data_dir):
        yield path.read_bytes()
        try:
            yield make_addressable(path.read_bytes())
        except TranscodeError:
            continue


def test_the_loader_gives_pictures_of_the_right_size_or_errors_with_shard_and_row(
    data_dir: Path, tmp_path: Path, make_shards: Callable[..., Path]
) -> None:
    path = make_shards(tmp_path / "damaged", all_kinds_of_damage(data_dir, random.Random(3)), shard_nbytes=4 << 20)
    data = ShardDataset(path, transforms={"image": [T.RandomResizedCrop(SIZE)]}, columns=["image", "__valid__"])
    seen, good = 0, 0
    loader = DataLoader(data, batch_size=64, num_workers=2, decode="native", on_error="skip", max_bad=1e9, seed=1)
    for batch in loader:
        assert batch["image"].shape[1:] == (3, SIZE, SIZE)
        seen += len(batch["image"])
        good += int(batch["__valid__"].sum())
    assert seen == len(data)
    assert 0 < good < seen
    assert loader.stats().bad_count == seen - good
    for bad in loader.stats().bad:
        assert bad.shard.endswith(".arrow")
        assert bad.reason.startswith("DecodeError")


def claims(make_jpeg: Callable[..., bytes]) -> dict[str, bytes]:
    """Files that say more than there is, and files of nothing."""
    found = {"a zero": b"\0", "zeros": bytes(4096), "a beginning and no more": b"\xff\xd8"}
    for kind, sound in {
        "baseline": make_jpeg(40, 60),
        "progressive": make_jpeg(40, 60, progressive=True),
        "addressable": make_addressable(make_jpeg(40, 60)),
        "grey": make_jpeg(40, 60, "L"),
    }.items():
        at = read_header(memoryview(sound)).frame_at + 5
        for height, width in ((65500, 65500), (11000, 11000), (1, 65500), (65500, 1), (0, 60), (40, 0)):
            size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
            found[f"{kind} of {height} x {width}"] = sound[:at] + size + sound[at + 4 :]
    return found


def test_the_loader_takes_claims_and_emptiness_as_errors_or_gives_pictures_of_the_right_size(
    tmp_path: Path, make_jpeg: Callable[..., bytes], make_shards: Callable[..., Path]
) -> None:
    """Pillow takes some that end early, with grey for what is missing."""
    errors: dict[tuple[str, str], SampleError] = {}
    for number, (kind, data) in enumerate(claims(make_jpeg).items()):
        path = make_shards(tmp_path / str(number), [make_jpeg(40, 60), data])
        for decode in ("native", "library"):
            dataset = ShardDataset(path, transforms={"image": [T.RandomResizedCrop(8)]}, max_pixels=1 << 24)
            try:
                (batch,) = DataLoader(dataset, batch_size=2, num_workers=1, decode=decode)
            except SampleError as error:
                errors[kind, decode] = error
            else:
                assert batch["image"].shape == (2, 3, 8, 8)
    for place, raised in errors.items():
        assert (raised.row, raised.stage) == (1, "decode"), place
        assert raised.shard is not None
        assert raised.shard in str(raised)
    sure = ("zero", "a beginning", "65500 x 65500", "11000 x 11000", "of 0 x", "x 0")
    for kind in claims(make_jpeg):
        assert ((kind, "native") in errors) == ((kind, "library") in errors), kind
        assert (kind, "native") in errors or not any(word in kind for word in sure), kind
