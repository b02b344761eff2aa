"""MixUp and CutMix: shares of pixels and of labels agree, and nothing of the original batch changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forebay import transforms as T
from forebay.errors import ConfigError
from forebay.sharding import Schema

SCHEMA = Schema.from_spec({"image": "image", "label": "int64"}, {"label": ["a", "b", "c", "d"]})
UNNAMED = Schema.from_spec({"image": "image", "label": "int64"})


def batch(size: int = 4) -> dict[str, torch.Tensor]:
    """Pictures whose every pixel is the label."""
    label = torch.arange(size)
    image = label.float().view(-1, 1, 1, 1).expand(size, 3, 16, 12).contiguous(memory_format=torch.channels_last)
    return {"image": image, "label": label, "other": torch.ones(size)}


@pytest.mark.parametrize("transform", [T.MixUp(1.0), T.CutMix(1.0)], ids=["mixup", "cutmix"])
@pytest.mark.parametrize("seed", range(10))
def test_labels_are_mixed_as_the_pixels_are(transform: T.BatchTransform, seed: int) -> None:
    original = batch()
    mixed = transform(original, np.random.default_rng(seed), SCHEMA)
    assert torch.equal(original["label"], torch.arange(4)), "the batch that came in was changed"
    assert torch.equal(original["image"], batch()["image"])
    torch.testing.assert_close(mixed["label"].sum(1), torch.ones(4))
    mean_label = (mixed["label"] * torch.arange(4)).sum(1)
    torch.testing.assert_close(mixed["image"].mean((1, 2, 3)), mean_label, rtol=1e-4, atol=1e-4)
    assert mixed["other"] is original["other"]
    assert mixed["image"].is_contiguous(memory_format=torch.channels_last)


def test_both_after_each_other_keep_shares_of_all() -> None:
    rng = np.random.default_rng(0)
    mixed = T.CutMix(1.0)(T.MixUp(0.4)(batch(), rng, SCHEMA), rng, SCHEMA)
    assert mixed["label"].shape == (4, 4)
    torch.testing.assert_close(mixed["label"].sum(1), torch.ones(4))


def test_without_class_names_their_number_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="num_classes="):
        T.MixUp(0.2).check(UNNAMED)
    T.MixUp(0.2, num_classes=4).check(UNNAMED)
    assert T.MixUp(0.2, num_classes=9)(batch(), np.random.default_rng(0), UNNAMED)["label"].shape == (4, 9)


def test_what_cannot_be_mixed_says_so() -> None:
    rng = np.random.default_rng(0)
    whole = batch()
    with pytest.raises(ConfigError, match=r"T\.Normalize"):
        T.MixUp(0.2)({**whole, "image": whole["image"].to(torch.uint8)}, rng, SCHEMA)
    with pytest.raises(ConfigError, match="no tensor 'image'"):
        T.CutMix(0.2)({"label": whole["label"]}, rng, SCHEMA)
