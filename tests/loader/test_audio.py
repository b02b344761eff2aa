"""Encoded recordings to values: a stretch is what the whole has there, and what is damaged or a bomb is refused."""

from __future__ import annotations

import contextlib
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import DecodeError
from forebay.loader.audio import Cut, Recording, decode_audio
from forebay.loader.audio_transforms import FixedClip
from forebay.loader.media_steps import make_steps
from forebay.sharding import Column, Kind

soundfile = pytest.importorskip("soundfile")

RATE = 16_000


def recording(seconds: float = 2.0, *, channels: int = 1, rate: int = RATE, **options: Any) -> bytes:
    """Noise that swells, so that no moment is like another."""
    frames = round(seconds * rate)
    rng = np.random.default_rng(frames + channels)
    values = rng.normal(0, 0.1, (frames, channels)) * np.linspace(0.2, 1, frames)[:, None]
    file = io.BytesIO()
    soundfile.write(file, values, rate, **{"format": "WAV", **options})
    return file.getvalue()


def stretch(first: int, number: int) -> Cut:
    return lambda frames, rate: (first, number)


FORMATS: dict[str, dict[str, Any]] = {
    "wav": {"format": "WAV", "subtype": "PCM_16"},
    "wav of floats": {"format": "WAV", "subtype": "FLOAT"},
    "flac": {"format": "FLAC"},
    "vorbis": {"format": "OGG", "subtype": "VORBIS"},
    "mp3": {"format": "MP3"},
}
ENCODED = {name: recording(3.0, channels=2, **options) for name, options in FORMATS.items()}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_channels_by_frames(name: str) -> None:
    values, rate = decode_audio(ENCODED[name])
    assert values.dtype == torch.float32
    assert values.shape[0] == 2
    assert abs(values.shape[1] - 3 * RATE) <= 4 * 1152
    assert rate == RATE
    assert values.is_contiguous()


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(FORMATS)), place=st.floats(0, 1), share=st.floats(0, 1))
def test_a_stretch_is_what_the_whole_has_there(name: str, place: float, share: float) -> None:
    whole, _ = decode_audio(ENCODED[name])
    number = int(share * whole.shape[1])
    first = int(place * (whole.shape[1] - number))
    values, _ = decode_audio(ENCODED[name], (stretch(first, number),))
    expected = whole[:, first : first + number]
    assert values.shape == expected.shape
    torch.testing.assert_close(values, expected, rtol=0, atol=2e-6 if name == "mp3" else 0)


def test_a_stretch_of_a_real_ogg_is_exact_up_to_its_very_end(data_dir: Path) -> None:
    # libsndfile's own seek is wrong by the trimmed end of the last page, in these files by 832 and 960 frames
    for name in ("2-122104-A.ogg", "4-192236-A.ogg"):
        data = (data_dir / "audio/esc10/001 - Dog bark" / name).read_bytes()
        whole, _ = decode_audio(data)
        for first in range(150_000, whole.shape[1] - 4_000, 3_001):
            values, _ = decode_audio(data, (stretch(first, 4_000),))
            assert torch.equal(values, whole[:, first : first + 4_000])


def test_stretches_of_stretches_are_found_and_silence_follows_the_end() -> None:
    whole, _ = decode_audio(ENCODED["flac"])
    values, _ = decode_audio(ENCODED["flac"], (stretch(1_000, 20_000), stretch(500, 100)))
    assert torch.equal(values, whole[:, 1_500:1_600])
    values, _ = decode_audio(ENCODED["flac"], (stretch(0, 60_000), stretch(47_000, 2_000)))
    assert torch.equal(values[:, :1_000], whole[:, 47_000:])
    assert not values[:, 1_000:].any()
    values, _ = decode_audio(ENCODED["flac"], (stretch(0, 60_000), stretch(50_000, 10)))
    assert not values.any()


FAULTY = {
    "01 - wrong max blocksize": 101_999,  # it plays, and cannot be sought in
    "04 - wrong number of channels": None,
    "06 - missing streaminfo metadata block": None,
    "08 - blocksize 65536": None,
    "10 - invalid vorbis comment metadata block": 119_279,
    "11 - incorrect metadata block length": None,
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_files_play_or_are_refused_by_name(data_dir: Path, name: str) -> None:
    data = (data_dir / "audio/flac_test_files/faulty" / f"{name}.flac").read_bytes()
    frames = FAULTY[name]
    if frames is None:
        with pytest.raises(DecodeError, match="libsndfile does not take these"):
            decode_audio(data)
        return
    whole, _ = decode_audio(data)
    assert whole.shape == (1, frames)
    values, _ = decode_audio(data, (stretch(70_001, 5_000),))
    assert torch.equal(values, whole[:, 70_001:75_001])


@pytest.mark.parametrize("data", [b"", b"RIFF", b"fLaC" + bytes(100), b"OggS" * 40, bytes(5_000)])
def test_what_is_no_recording_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_audio(data)


@pytest.mark.parametrize("name", ["flac", "vorbis"])
def test_a_recording_cut_short_is_refused_or_known_to_be_shorter(name: str) -> None:
    data = ENCODED[name][: len(ENCODED[name]) // 2]
    try:
        values, _ = decode_audio(data)
    except DecodeError:
        return
    assert values.shape[1] < 3 * RATE


@pytest.mark.parametrize("name", ["wav", "mp3"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_wav_or_mp3_cut_short_is_refused(name: str, share: float) -> None:
    data = ENCODED[name][: int(len(ENCODED[name]) * share)]
    with pytest.raises(DecodeError, match="cut short"):
        decode_audio(data)


@pytest.mark.parametrize("size", [0xFFFF_FFFF, 0x7FFF_FFFF])
def test_a_wav_that_was_written_to_a_pipe_is_played_to_its_end(size: int) -> None:
    whole, _ = decode_audio(ENCODED["wav"])
    piped = bytearray(ENCODED["wav"])
    struct.pack_into("<I", piped, piped.index(b"data") + 4, size)
    values, _ = decode_audio(bytes(piped))
    assert torch.equal(values, whole)


def claim_frames(flac: bytes, frames: int) -> bytes:
    """Another number of frames in the stream's header: 36 bits that end 8 + 18 bytes into the file."""
    claimed = bytearray(flac)
    (word,) = struct.unpack_from(">Q", claimed, 18)
    struct.pack_into(">Q", claimed, 18, word >> 36 << 36 | frames)
    return bytes(claimed)


def test_a_claim_of_too_many_frames_is_refused_before_they_are_decoded() -> None:
    bomb = claim_frames(ENCODED["flac"], (1 << 36) - 1)
    with pytest.raises(DecodeError, match="more than 134217728"):
        decode_audio(bomb)
    with pytest.raises(DecodeError):
        decode_audio(bomb, (stretch(1 << 34, 1_000),))
    with pytest.raises(DecodeError, match="more than 50000"):
        decode_audio(ENCODED["flac"], max_values=50_000)
    values, _ = decode_audio(ENCODED["flac"], (stretch(0, 25_000),), max_values=50_000)
    assert values.numel() == 50_000


def test_a_recording_that_does_not_tell_its_length_is_refused() -> None:
    with pytest.raises(DecodeError, match="does not say how long it is"):
        decode_audio(claim_frames(ENCODED["flac"], 0))


def test_memory_that_is_no_bytes_object_is_read_in_place() -> None:
    whole, _ = decode_audio(ENCODED["flac"])
    values, _ = decode_audio(memoryview(bytearray(ENCODED["flac"])))
    assert torch.equal(values, whole)


def test_a_step_on_what_is_encoded_decodes_nothing() -> None:
    (step,) = make_steps([Column(name="audio", kind=Kind.AUDIO)], [FixedClip(1.0)])
    (value,) = step.run([Recording(b"no recording at all")], (), None, None)  # type: ignore[arg-type]
    assert isinstance(value, Recording)
    assert value.seconds == 1.0


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted({*FORMATS} - {"mp3"})),
    flips=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255))),
)
def test_damaged_headers_are_refused_or_played_and_nothing_else(name: str, flips: list[tuple[int, int]]) -> None:
    data = bytearray(ENCODED[name])
    for place, flip in flips:
        data[place] ^= flip
    with contextlib.suppress(DecodeError):
        decode_audio(bytes(data), (lambda frames, rate: (frames // 3, frames // 3),), max_values=1 << 20)
