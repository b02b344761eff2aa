"""The demo's model: a small residual network that two cores can train while you watch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forebay.loader import DataLoader
from forebay.trainers import CheckpointConfig, DataParallelTrainer, TrainProgress, accuracy

__all__ = ["PIXELS", "SmallNet", "make_trainer"]

PIXELS = 80
"""Side of the square that it looks at."""
_WIDTH = 20
_HIGHEST_RATE = 3e-3


class _Block(nn.Module):
    """Two convolutions beside a shortcut (He et al. 2015)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut = nn.Sequential(
            nn.AvgPool2d(stride), nn.Conv2d(channels_in, channels_out, 1, bias=False), nn.BatchNorm2d(channels_out)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.convolutions(x) + self.shortcut(x))


class SmallNet(nn.Sequential):
    """Images (B, 3, 80, 80) to scores (B, classes); half a million parameters."""

    def __init__(self, num_classes: int) -> None:
        w = _WIDTH
        super().__init__(
            nn.Conv2d(3, w, 5, 2, 2, bias=False),
            nn.BatchNorm2d(w),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            _Block(w, 2 * w, 1),
            _Block(2 * w, 4 * w, 2),
            _Block(4 * w, 8 * w, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(8 * w, num_classes),
        )


def _loss(scores: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(scores, batch["label"], label_smoothing=0.1)


def make_trainer(
    train: DataLoader,
    validation: DataLoader,
    *,
    num_classes: int,
    epochs: int,
    seed: int,
    checkpoint: CheckpointConfig,
    progress: TrainProgress,
) -> DataParallelTrainer:
    """A fresh `SmallNet` with what it takes to train it: AdamW, one cycle of the learning rate (Smith 2017)."""
    torch.manual_seed(seed)
    model = SmallNet(num_classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), lr=_HIGHEST_RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _HIGHEST_RATE, total_steps=epochs * len(train) + 1, pct_start=0.25
    )
    return DataParallelTrainer(
        model,
        optimizer,
        _loss,
        train,
        epochs=epochs,
        validation=validation,
        metrics={"accuracy": accuracy},
        scheduler=schedule,
        checkpoint=checkpoint,
        progress=progress,
    )
