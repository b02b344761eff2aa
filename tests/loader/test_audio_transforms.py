"""What is declared for audio: the stretches that are drawn, rates, channels, spectra, and what is refused."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from forebay import DataLoader, ShardDataset, ShardWriter
from forebay import transforms as T
from forebay.errors import ConfigError, SampleError, SchemaError, ShapeError
from forebay.loader.audio_mel import mel_bands, mel_spectrogram

soundfile = pytest.importorskip("soundfile")

RATES = (16_000, 22_050, 8_000)


def noise(seed: int, seconds: float = 1.5, *, rate: int = 16_000, channels: int = 1) -> bytes:
    rng = np.random.default_rng(seed)
    file = io.BytesIO()
    soundfile.write(file, rng.normal(0, 0.1, (round(seconds * rate), channels)), rate, format="FLAC")
    return file.getvalue()


def write_audio(path: Path, recordings: list[bytes], *, shard_nbytes: int = 200_000) -> Path:
    columns = {"audio": "audio", "number": "int64"}
    with ShardWriter(path, columns, shard_nbytes=shard_nbytes, batch_nbytes=100_000) as writer:
        for number, data in enumerate(recordings):
            writer.write({"audio": data, "number": number})
    return path


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 of them: one rate or another, one channel or two, 1.5 seconds and more."""
    made = [noise(i, 1.5 + i % 5 / 10, rate=RATES[i % 3], channels=1 + i % 2) for i in range(24)]
    return write_audio(tmp_path_factory.mktemp("audio") / "train", made)


def outputs(path: Path, steps: list[Any], **options: Any) -> ShardDataset:
    return ShardDataset(path, transforms={"audio": steps}, **options)


def one(path: Path, steps: list[Any], i: int = 0) -> Any:
    """What is made of sample `i`."""
    with contextlib.closing(outputs(path, steps)) as dataset:
        return dataset[i]["audio"]


def test_a_whole_recording_is_channels_by_frames(recordings: Path) -> None:
    sample = one(recordings, [], 5)
    assert sample.shape == (2, round(1.5 * 8_000))
    assert sample.dtype == torch.float32


def test_recordings_of_different_length_do_not_stack_and_the_error_says_what_to_declare(recordings: Path) -> None:
    with pytest.raises(ShapeError, match=r"T\.RandomClip\(1\.0\)"):
        next(iter(DataLoader(ShardDataset(recordings), batch_size=4)))


def test_a_random_clip_is_a_stretch_of_the_recording_and_another_in_each_epoch(recordings: Path) -> None:
    whole = one(recordings, [], 0)[0].numpy()
    places = set()
    with contextlib.closing(outputs(recordings, [T.RandomClip(0.5)])) as clips:
        for epoch in range(8):
            clips.set_epoch(epoch)
            clip = clips[0]["audio"][0].numpy()
            (starts,) = np.nonzero(whole[: len(whole) - len(clip) + 1] == clip[0])
            (place,) = [start for start in starts if np.array_equal(whole[start : start + len(clip)], clip)]
            places.add(int(place))
    assert len(places) == 8
    assert max(places) - min(places) > 4_000


def test_the_clip_belongs_to_the_sample_whatever_the_threads_and_the_order(recordings: Path) -> None:
    steps = [T.Mono(), T.RandomClip(0.5), T.Resample(8_000)]

    def by_index(**options: Any) -> dict[int, Tensor]:
        loader = DataLoader(outputs(recordings, steps), batch_size=5, seed=3, **options)
        return {int(n): values for batch in loader for n, values in zip(batch["number"], batch["audio"], strict=True)}

    one, three = by_index(num_workers=1), by_index(num_workers=3, shuffle=True)
    assert one.keys() == three.keys() == set(range(24))
    assert all(torch.equal(one[n], three[n]) for n in one)


def test_a_batch_of_a_declared_shape_is_made_in_place(recordings: Path) -> None:
    steps = [T.Mono(), T.RandomClip(0.3333), T.Resample(16_000)]
    dataset = outputs(recordings, steps)
    (spec,) = dataset.maker.programs[0].specs
    assert spec is not None
    assert spec.shape == (1, round(0.3333 * 16_000))
    shapes = {tuple(batch["audio"].shape) for batch in DataLoader(dataset, batch_size=8)}
    assert shapes == {(8, 1, 5_333)}
    mel = outputs(recordings, [*steps, T.MelSpectrogram(40, hop=160)])
    assert next(iter(DataLoader(mel, batch_size=8)))["audio"].shape == (8, 1, 40, 34)


def test_a_clip_before_and_after_decoding_is_the_same(recordings: Path) -> None:
    early, late = [T.FixedClip(0.25, start_s=0.5)], [lambda x: x, T.FixedClip(0.25, start_s=0.5)]
    for i in range(6):
        assert torch.equal(one(recordings, early, i), one(recordings, late, i))


def test_padding_adds_silence_before_and_after_decoding(recordings: Path) -> None:
    whole = one(recordings, [], 0)
    for steps in ([T.Pad(2.0)], [lambda x: x, T.Pad(2.0)]):
        padded = one(recordings, steps, 0)
        assert padded.shape == (1, 32_000)
        assert torch.equal(padded[:, :24_000], whole)
        assert not padded[:, 24_000:].any()
    assert torch.equal(one(recordings, [T.Pad(0.1)], 0), whole)


def test_a_recording_shorter_than_its_clip_is_a_bad_sample_that_says_so(recordings: Path) -> None:
    with pytest.raises(SampleError, match=r"1\.500 s is shorter than the 5\.000 s .* put T\.Pad\(5\)") as caught:
        one(recordings, [T.RandomClip(5.0)])
    assert caught.value.stage == "transform"
    assert one(recordings, [T.Pad(5.0), T.RandomClip(5.0)], 0).shape == (1, 80_000)


def test_mono_is_the_mean_of_the_channels(recordings: Path) -> None:
    both = one(recordings, [], 1)
    torch.testing.assert_close(one(recordings, [T.Mono()], 1), both.mean(0, keepdim=True))


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
def test_resampling_keeps_a_tone_and_its_length(tmp_path: Path, rate: int) -> None:
    pytest.importorskip("soxr")
    tone = io.BytesIO()
    moments = np.arange(22_050) / 22_050
    soundfile.write(tone, 0.5 * np.sin(2 * np.pi * 440 * moments), 22_050, format="WAV", subtype="FLOAT")
    made = one(write_audio(tmp_path / "tone", [tone.getvalue()]), [T.Resample(rate)])[0]
    assert len(made) == rate
    expected = 0.5 * torch.sin(2 * torch.pi * 440 * torch.arange(rate) / rate)
    middle = slice(rate // 10, -rate // 10)
    torch.testing.assert_close(made[middle], expected[middle].float(), atol=2e-3, rtol=0)


SWEEP_RATE = 16_000


def sweep() -> Tensor:
    t = np.arange(8_000) / SWEEP_RATE
    values = 0.5 * np.sin(2 * np.pi * 440 * t) + 0.25 * np.sin(2 * np.pi * 3_000 * t * (1 + t))
    return torch.from_numpy(values.astype(np.float32))[None]


def test_mel_bands_of_htk_are_those_of_librosa_and_torchaudio() -> None:
    # librosa 0.11.0: melspectrogram(htk=True, norm=None, pad_mode="reflect"), which is torchaudio's default
    made = mel_spectrogram(sweep(), SWEEP_RATE, T.MelSpectrogram(40, n_fft=400, hop=160))
    assert made.shape == (1, 40, 51)
    expected = {(0, 0): 45.0343017578125, (6, 10): 575.8646850585938, (31, 50): 0.656225323677063}
    for place, value in expected.items():
        assert made[0][place].item() == pytest.approx(value, rel=1e-4)


def test_mel_bands_of_slaney_are_those_of_librosa() -> None:
    # librosa 0.11.0: melspectrogram(fmin=60, fmax=7600, power=1, pad_mode="reflect"), else its defaults
    settings = T.MelSpectrogram(32, n_fft=512, hop=128, low=60, high=7_600, scale="slaney", norm="slaney", power=1.0)
    made = mel_spectrogram(sweep(), SWEEP_RATE, settings)
    assert made.shape == (1, 32, 63)
    expected = {(0, 0): 0.22327540814876556, (6, 10): 0.00043770542833954096, (25, 20): 0.20133453607559204}
    for place, value in expected.items():
        assert made[0][place].item() == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("scale", ["htk", "slaney"])
def test_mel_bands_cover_the_frequencies_between_their_ends(scale: Any) -> None:
    bands = mel_bands(16_000, T.MelSpectrogram(40, n_fft=2_048, scale=scale))
    total = bands.sum(0)
    between = total[int(bands[0].argmax()) + 1 : int(bands[-1].argmax())]
    torch.testing.assert_close(between, torch.ones_like(between), atol=1e-5, rtol=0)


def test_a_spectrogram_of_too_little_audio_says_what_to_do(recordings: Path) -> None:
    with pytest.raises(SampleError, match=r"needs more than 1024 frames, and there are 160; put T\.Pad"):
        one(recordings, [T.RandomClip(0.01), T.MelSpectrogram(n_fft=2_048)])


def test_a_callable_gets_values_and_what_follows_knows_their_rate(recordings: Path) -> None:
    seen: list[tuple[int, ...]] = []

    def note(values: Tensor, rng: np.random.Generator) -> Tensor:
        seen.append(tuple(values.shape))
        return values * float(rng.random())

    made = one(recordings, [T.Mono(), T.RandomClip(0.5), note, T.Resample(4_000)], 1)
    assert seen == [(1, 11_025)]
    assert made.shape == (1, 2_000)
    assert one(recordings, [lambda x: float(x.abs().max())], 1) > 0


def test_a_spectrogram_is_no_recording_any_more(recordings: Path) -> None:
    with pytest.raises(SampleError, match=r"Resample acts on values \(channels, frames\)"):
        one(recordings, [T.MelSpectrogram(), T.Resample(8_000)])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: T.RandomClip(), "seconds= for audio"),
        (lambda: T.RandomClip(0), "above 0"),
        (lambda: T.RandomClip(1.0, every=2), "are for frames="),
        (lambda: T.RandomClip(frames=0), "1 or more frames"),
        (lambda: T.RandomClip(frames=4, every=0), "every=0"),
        (lambda: T.RandomClip(frames=4, every=1, every_s=0.1), "in frames, or every_s="),
        (lambda: T.FixedClip(1.0, start=3), "number of a frame of video"),
        (lambda: T.FixedClip(1.0, start_s=-1), "seconds from the beginning"),
        (lambda: T.FixedClip(frames=4, start_s=1.0), "or start_s= and every_s="),
        (lambda: T.Pad(-1.0), "seconds=-1.0"),
        (lambda: T.Resample(0), "values a second"),
        (lambda: T.MelSpectrogram(0), "bands=0"),
        (lambda: T.MelSpectrogram(hop=0), "hop=0"),
        (lambda: T.MelSpectrogram(low=100, high=50), "low < high"),
        (lambda: T.MelSpectrogram(scale="bark"), "slaney"),  # type: ignore[arg-type]
        (lambda: T.MelSpectrogram(power=0), "energies"),
    ],
)
def test_a_transform_that_cannot_work_is_refused_when_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    ("column", "step", "said"),
    [
        ("audio", T.Resize((8, 8)), "Resize acts on image, mask and video columns, and 'audio' is audio"),
        ("audio", T.RandomClip(frames=8), r"RandomClip\(frames=\) acts on video columns"),
        ("number", T.Mono(), "Mono acts on audio columns, and 'number' is int64"),
        ("number", T.Resize((8, 8)), "Resize acts on image, mask and video columns"),
    ],
)
def test_a_transform_on_a_column_of_another_kind_is_refused(
    recordings: Path, column: str, step: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        ShardDataset(recordings, transforms={column: [step]})


def test_audio_shares_no_transforms_with_another_column(recordings: Path) -> None:
    transforms: dict[tuple[str, ...], list[Any]] = {("audio", "number"): [lambda x: x]}
    with pytest.raises(ConfigError, match="shares no transforms with other columns"):
        ShardDataset(recordings, transforms=transforms)


def test_bad_recordings_are_skipped_or_raised_by_name(tmp_path: Path, data_dir: Path) -> None:
    faulty = (data_dir / "audio/flac_test_files/faulty/04 - wrong number of channels.flac").read_bytes()
    good = [noise(i) for i in range(6)]
    path = write_audio(tmp_path / "train", [*good[:3], faulty, *good[3:]], shard_nbytes=1 << 20)
    steps = [T.RandomClip(1.0)]
    with pytest.raises(SampleError, match="row 3: decode failed") as caught:
        list(DataLoader(outputs(path, steps), batch_size=7))
    assert (caught.value.row, caught.value.stage) == (3, "decode")
    columns = ["audio", "number", "__valid__"]
    (batch,) = DataLoader(outputs(path, steps, columns=columns), batch_size=7, on_error="skip")
    assert batch["__valid__"].tolist() == [True, True, True, False, True, True, True]
    assert batch["number"].tolist()[:3] == [0, 1, 2]
    assert batch["number"].tolist()[4:] == [4, 5, 6]


@pytest.mark.parametrize("value", [b"", "text", np.zeros(3, np.float32)])
def test_a_column_of_audio_takes_encoded_bytes_only(tmp_path: Path, value: Any) -> None:
    with ShardWriter(tmp_path / "train", {"audio": "audio"}) as writer, pytest.raises(SchemaError, match="recording"):
        writer.write({"audio": value})
