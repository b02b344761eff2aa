"""The kernel replaces a part of libjpeg-turbo that jpeglib.h does not show: equal pixels with other versions of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import PIL
import pytest

BUNDLED = sorted(Path(PIL.__file__).parent.parent.glob("pillow.libs/libjpeg-*.so.62*"))
DIGEST = """
import hashlib, sys
from pathlib import Path
import numpy as np, torch
from forebay.loader.geometry import View, Views
from forebay.loader.kernel import decode_batch, find_frames, make_jobs
digest = hashlib.sha256()
for path in sys.argv[1:]:
    data = Path(path).read_bytes()
    frame = find_frames([data], 1 << 27)[0]
    height, width, _ = frame.tolist()
    window = height // 5, width // 7, height // 2, width // 2
    view = View.of_window(window, (96, 80), flipped=True)
    out = torch.zeros(1, 96, 80, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    job = make_jobs(Views.of([view]), orientations=1, heights=height, widths=width)[0]
    assert decode_batch([data], [None], np.array([job], np.int32), out, table=None, max_pixels=1 << 27, threads=1)[0]
    digest.update(out.permute(0, 2, 3, 1).numpy().tobytes())
maps = Path("/proc/self/maps").read_text()
print(digest.hexdigest(), "pillow.libs/libjpeg" in maps)
"""


@pytest.mark.skipif(not BUNDLED, reason="this Pillow does not bring a libjpeg of its own")
def test_pixels_are_the_same_with_the_libjpeg_that_pillow_brings(data_dir: Path) -> None:
    folders = ("photos/train", "flowers/train", "large")
    paths = [str(path) for folder in folders for path in sorted((data_dir / folder).rglob("*.[jJ][pP][gG]"))[:12]]
    told = []
    before = os.environ.get("LD_PRELOAD", "")
    for preload in (before, f"{before}:{BUNDLED[0]}".lstrip(":")):
        command = [sys.executable, "-P", "-c", DIGEST, *paths]
        env = {**os.environ, "LD_PRELOAD": preload}
        told.append(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.split())
    assert told[1][1] == "True"
    assert told[0][0] == told[1][0]
