"""Without the packages that decode audio and video: everything else works, and the error says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forebay import ShardWriter

PROGRAM = """
import sys
sys.modules[sys.argv[1]] = None
from forebay import ShardDataset, errors, transforms as T
assert ShardDataset(sys.argv[2], columns=["number"])[0]["number"] == 1
try:
    ShardDataset(sys.argv[2], transforms=eval(sys.argv[3]))
except errors.ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "kind", "transforms", "said"),
    [
        ("soundfile", "audio", "{}", "pip install 'forebay[audio]'"),
        ("soxr", "audio", "{'media': [T.Resample(8000)]}", "pip install 'forebay[audio]'"),
        ("torchcodec", "video", "{}", "pip install 'forebay[video]'"),
    ],
)
def test_a_missing_decoder_gives_the_line_that_installs_it(
    tmp_path: Path, package: str, kind: str, transforms: str, said: str
) -> None:
    if package == "soxr":
        pytest.importorskip("soundfile")
    with ShardWriter(tmp_path / "train", {"media": kind, "number": "int64"}) as writer:
        writer.write({"media": b"not looked at", "number": 1})
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, package, str(tmp_path / "train"), transforms],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said in told.stdout
