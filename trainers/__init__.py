"""trainers: a model is stepped, validated and checkpointed together with its loader. They load no data themselves."""

from __future__ import annotations

from forebay.trainers.checkpoint import CheckpointConfig
from forebay.trainers.data_parallel import DataParallelTrainer
from forebay.trainers.progress import ConsoleProgress, NoProgress, TrainProgress
from forebay.trainers.report import EpochReport, TrainReport
from forebay.trainers.validation import accuracy

__all__ = [
    "CheckpointConfig",
    "ConsoleProgress",
    "DataParallelTrainer",
    "EpochReport",
    "NoProgress",
    "TrainProgress",
    "TrainReport",
    "accuracy",
]
