"""ResNet-50 and one step of its training, as plainly as it can be written: what a loader has to keep up with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FedSteps", "ResNet50", "make_step", "run_steps"]

_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""By stage: channels inside a block, blocks, stride of the first one (He et al. 2015, table 1)."""
_GROWTH = 4


def _convolution(channels_in: int, channels_out: int, side: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(channels_in, channels_out, side, stride, side // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out))


class _Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; the middle one strides, as all do since 2016."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        out = _GROWTH * channels
        self.convolutions = nn.Sequential(
            _convolution(channels_in, channels, 1),
            nn.ReLU(inplace=True),
            _convolution(channels, channels, 3, stride),
            nn.ReLU(inplace=True),
            _convolution(channels, out, 1),
        )
        same = stride == 1 and channels_in == out
        self.shortcut = nn.Identity() if same else _convolution(channels_in, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.convolutions(x) + self.shortcut(x))


class ResNet50(nn.Sequential):
    """Images (B, 3, H, W) to scores (B, classes); 25.6 million parameters for 1000 classes."""

    def __init__(self, num_classes: int = 1000) -> None:
        blocks: list[nn.Module] = []
        channels_in = 64
        for channels, count, stride in _STAGES:
            for number in range(count):
                blocks.append(_Bottleneck(channels_in, channels, stride if number == 0 else 1))
                channels_in = _GROWTH * channels
        super().__init__(
            _convolution(3, 64, 7, 2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(channels_in, num_classes),
        )


def make_step(device: torch.device, dtype: torch.dtype) -> Callable[[dict[str, Tensor]], None]:
    """A step of training a fresh ResNet-50, which takes a batch's "image" and "label", and returns when done.

    Args:
        device: of the model.
        dtype: to compute in; weights are float32.
    """
    torch.manual_seed(0)
    model = ResNet50().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(batch: dict[str, Tensor]) -> None:
        images, labels = batch["image"], batch["label"].to(device, non_blocking=True) % 1000
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # else the wait for the next batch would hide behind this step

    return step


@dataclass(frozen=True, slots=True)
class FedSteps:
    """How a number of steps went. The first batch is left out: it says how long a loader takes to start."""

    images: int
    seconds: float
    """Of the steps, and of the waits between them."""
    wait_s: float
    """Of these, seconds that the next batch was waited for with nothing to compute."""

    @property
    def images_per_s(self) -> float:
        """Images a second."""
        return self.images / self.seconds

    @property
    def stall_share(self) -> float:
        """The share of time that the step waited for data, 0 to 1."""
        return self.wait_s / self.seconds


def run_steps(batches: Iterable[dict[str, Any]], step: Callable[[dict[str, Tensor]], None], count: int) -> FedSteps:
    """Take a first batch, then time `count` steps, or as many as there are batches for.

    Args:
        batches: at least two.
        step: returns when it is done.
        count: steps, at most.
    """
    source: Iterator[dict[str, Any]] = iter(batches)
    step(next(source))
    images, wait_s = 0, 0.0
    started = asked = time.monotonic()
    for batch in source:
        wait_s += time.monotonic() - asked
        step(batch)
        images += len(batch["label"])
        count -= 1
        if not count:
            break
        asked = time.monotonic()
    return FedSteps(images, time.monotonic() - started, wait_s)
