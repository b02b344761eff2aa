"""benchmarks: what the numbers in the README were measured with, and the photographs that stand in for real ones."""

from __future__ import annotations

from forebay.benchmarks.audio import AudioComparison, AudioSide, AudioWork, compare_audio
from forebay.benchmarks.cache import CacheRow, measure_cache
from forebay.benchmarks.decode import DecodeComparison, DecodeSide, compare_decoders
from forebay.benchmarks.decoded import DecodedReport, DecodedSide, measure_decoded
from forebay.benchmarks.dropin import DropinReport, DropinRow, compare_dropin
from forebay.benchmarks.dropin_cases import DropinWork
from forebay.benchmarks.dropin_memory import MemoryRow
from forebay.benchmarks.gpu import HARDWARE_SHARES, GpuReport, GpuSide, measure_gpu
from forebay.benchmarks.loader import LoaderComparison, SideResult, compare
from forebay.benchmarks.order import measure
from forebay.benchmarks.overhead import OverheadReport, OverheadRow, measure_overhead
from forebay.benchmarks.photographs import CLASSES, draw_folder, draw_photograph
from forebay.benchmarks.ranks import RankComparison, compare_ranks
from forebay.benchmarks.remote import RemoteReport, RemoteRound, RemoteWork, measure_remote
from forebay.benchmarks.tabular import TabularReport, TabularSide, TabularWork, measure_tabular
from forebay.benchmarks.tabular_memory import StreamedMemory, StreamWork, measure_stream
from forebay.benchmarks.torch_peer import has_opencv
from forebay.benchmarks.trainer import OverlapRow, TrainerReport, measure_trainer
from forebay.benchmarks.work import LoaderWork

__all__ = [
    "CLASSES",
    "HARDWARE_SHARES",
    "AudioComparison",
    "AudioSide",
    "AudioWork",
    "CacheRow",
    "DecodeComparison",
    "DecodeSide",
    "DecodedReport",
    "DecodedSide",
    "DropinReport",
    "DropinRow",
    "DropinWork",
    "GpuReport",
    "GpuSide",
    "LoaderComparison",
    "LoaderWork",
    "MemoryRow",
    "OverheadReport",
    "OverheadRow",
    "OverlapRow",
    "RankComparison",
    "RemoteReport",
    "RemoteRound",
    "RemoteWork",
    "SideResult",
    "StreamWork",
    "StreamedMemory",
    "TabularReport",
    "TabularSide",
    "TabularWork",
    "TrainerReport",
    "compare",
    "compare_audio",
    "compare_decoders",
    "compare_dropin",
    "compare_ranks",
    "draw_folder",
    "draw_photograph",
    "has_opencv",
    "measure",
    "measure_cache",
    "measure_decoded",
    "measure_gpu",
    "measure_overhead",
    "measure_remote",
    "measure_stream",
    "measure_tabular",
    "measure_trainer",
]
