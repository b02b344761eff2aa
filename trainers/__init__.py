"""trainers: a model is stepped, validated and checkpointed together with its loader. They load no data themselves."""

from __future__ import annotations

from forebay.trainers.checkpoint_folder import CheckpointConfig
from forebay.trainers.data_parallel import DataParallelTrainer
from forebay.trainers.data_parallel_config import DataParallelConfig
from forebay.trainers.pipeline import PipelineConfig, PipelineTrainer, pipeline_mesh
from forebay.trainers.progress import ConsoleProgress, NoProgress, TrainProgress
from forebay.trainers.report import EpochReport, RankTime, TrainReport, overlap_efficiency
from forebay.trainers.run import train
from forebay.trainers.run_config import read_config
from forebay.trainers.tensorboard import TensorBoardProgress
from forebay.trainers.update import scale_learning_rate, warm_up
from forebay.trainers.validation import accuracy

__all__ = [
    "CheckpointConfig",
    "ConsoleProgress",
    "DataParallelConfig",
    "DataParallelTrainer",
    "EpochReport",
    "NoProgress",
    "PipelineConfig",
    "PipelineTrainer",
    "RankTime",
    "TensorBoardProgress",
    "TrainProgress",
    "TrainReport",
    "accuracy",
    "overlap_efficiency",
    "pipeline_mesh",
    "read_config",
    "scale_learning_rate",
    "train",
    "warm_up",
]
