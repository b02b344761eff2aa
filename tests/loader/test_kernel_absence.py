"""Without the native kernel everything works, says so, and says what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay import DataLoader, ShardDataset
from forebay import transforms as T
from forebay.loader.kernel import native_version, why_not

SCRIPT = """
import json, sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "forebay.loader._kernel":
            raise ModuleNotFoundError("No module named 'forebay.loader._kernel'", name=name)
        return None

if sys.argv[2] == "absent":
    sys.meta_path.insert(0, Absent())

import forebay
from forebay import transforms as T
from forebay.errors import ConfigError
from forebay.loader.kernel import native_version, why_not

data = forebay.ShardDataset(sys.argv[1], transforms={"image": [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]})
told = {"version": native_version(), "why_not": why_not()}
for decode in ("auto", "library"):
    loader = forebay.DataLoader(data, batch_size=20, seed=3, decode=decode)
    told[decode] = [batch["image"].flatten().tolist() for batch in loader]
    told[f"decoder of {decode}"] = loader.stats().decoder
try:
    forebay.DataLoader(data, batch_size=20, decode="native")
except ConfigError as error:
    told["error"] = str(error)
print(json.dumps(told))
"""


def run(pictures: Path, kernel: str) -> dict[str, Any]:
    command = [sys.executable, "-P", "-c", SCRIPT, str(pictures), kernel]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_a_loader_without_the_kernel_gives_the_same_batches_and_says_what_to_install(pictures: Path) -> None:
    absent, present = run(pictures, "absent"), run(pictures, "as it is")
    assert absent["auto"] == absent["library"] == present["auto"] == present["library"]
    assert len(absent["auto"]) == 5
    assert absent["version"] is None
    assert "forebay.loader._kernel" in absent["why_not"]
    assert "circular" not in absent["why_not"], "a cause that is none"
    for told in (absent["why_not"], absent["decoder of auto"], absent["error"]):
        assert "apt install gcc" in told
        assert "pip install" in told
    assert absent["decoder of auto"].startswith("simplejpeg")
    assert "install" not in absent["decoder of library"], "who chose the libraries needs no advice"
    assert absent["error"].startswith('decode="native"')
    assert 'decode="auto"' in absent["error"]


@pytest.mark.skipif(native_version() is None, reason="forebay was installed without its native parts")
def test_with_the_kernel_there_is_nothing_to_install(pictures: Path) -> None:
    assert why_not() is None
    loader = DataLoader(ShardDataset(pictures, transforms={"image": [T.CenterCrop(16)]}), batch_size=97)
    (batch,) = loader
    assert batch["image"].dtype == torch.uint8
    assert loader.stats().decoder.startswith("native kernel, libjpeg-turbo ")
    assert "install" not in loader.stats().decoder
