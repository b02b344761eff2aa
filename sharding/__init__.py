"""What a data set is and where its samples lie: schema, shard files, manifest, and the order of an epoch."""

from __future__ import annotations

from forebay.sharding.checksum import READ_NBYTES, sample_checksum, shard_checksum
from forebay.sharding.image_folder import (
    ImageFile,
    ImageFolder,
    list_class_folders,
    list_labelled_images,
    printable,
    valid_text,
)
from forebay.sharding.order import EpochOrder, ShardSpan, default_window, rank_slice
from forebay.sharding.schema import Column, Kind, Schema
from forebay.sharding.shard_file import ShardReader
from forebay.sharding.source import FolderSource, LocalFile, MappedFile, Source, SourceFile
from forebay.sharding.stored import StoredDataset, open_dataset
from forebay.sharding.verify import Problem, verify_dataset
from forebay.sharding.writer import ShardWriter

__all__ = [
    "READ_NBYTES",
    "Column",
    "EpochOrder",
    "FolderSource",
    "ImageFile",
    "ImageFolder",
    "Kind",
    "LocalFile",
    "MappedFile",
    "Problem",
    "Schema",
    "ShardReader",
    "ShardSpan",
    "ShardWriter",
    "Source",
    "SourceFile",
    "StoredDataset",
    "default_window",
    "list_class_folders",
    "list_labelled_images",
    "open_dataset",
    "printable",
    "rank_slice",
    "sample_checksum",
    "shard_checksum",
    "valid_text",
    "verify_dataset",
]
