"""What a data set is and where its samples lie: schema, shard files, manifest, and the order of an epoch."""

from __future__ import annotations

from forebay.sharding.addressable import BAND_NBYTES, JpegLayout, bands_of, describe_jpeg
from forebay.sharding.blocks import IDLE_READ_BLOCKS, BlockPool, ReadMemory
from forebay.sharding.checksum import READ_NBYTES, sample_checksum, shard_checksum
from forebay.sharding.destination import Destination, FolderDestination, WriteJournal
from forebay.sharding.far import FarFile, FarSource, FileRange, bring_near
from forebay.sharding.image_folder import (
    ImageFile,
    ImageFolder,
    list_class_folders,
    list_labelled_images,
    printable,
    valid_text,
)
from forebay.sharding.index import ShardEntry
from forebay.sharding.journal import JOURNAL_NAME, read_journal, write_journal
from forebay.sharding.jpeg_header import JpegHeader, exif_orientation, read_header, xmp_orientation
from forebay.sharding.jpeg_part import GAP_NBYTES
from forebay.sharding.jpeg_places import JpegPlaces
from forebay.sharding.manifest import MANIFEST_NAME
from forebay.sharding.node_order import NodeOrder
from forebay.sharding.order import EpochOrder, ShardSpan, default_window, rank_slice
from forebay.sharding.part_plan import Frames, PartPlans, plan_parts
from forebay.sharding.ranges import FILLED, Ranges
from forebay.sharding.schema import Column, Kind, Schema
from forebay.sharding.shard_file import ShardReader
from forebay.sharding.smaller_jpegs import sub_jpeg, sub_jpegs
from forebay.sharding.source import FolderSource, LocalFile, MappedFile, Source, SourceFile
from forebay.sharding.stored import StoredDataset, open_dataset
from forebay.sharding.transcode import TranscodeError, can_transcode, choose_segment, make_addressable
from forebay.sharding.verify import Problem, verify_dataset
from forebay.sharding.writer import ShardWriter

__all__ = [
    "BAND_NBYTES",
    "FILLED",
    "GAP_NBYTES",
    "IDLE_READ_BLOCKS",
    "JOURNAL_NAME",
    "MANIFEST_NAME",
    "READ_NBYTES",
    "BlockPool",
    "Column",
    "Destination",
    "EpochOrder",
    "FarFile",
    "FarSource",
    "FileRange",
    "FolderDestination",
    "FolderSource",
    "Frames",
    "ImageFile",
    "ImageFolder",
    "JpegHeader",
    "JpegLayout",
    "JpegPlaces",
    "Kind",
    "LocalFile",
    "MappedFile",
    "NodeOrder",
    "PartPlans",
    "Problem",
    "Ranges",
    "ReadMemory",
    "Schema",
    "ShardEntry",
    "ShardReader",
    "ShardSpan",
    "ShardWriter",
    "Source",
    "SourceFile",
    "StoredDataset",
    "TranscodeError",
    "WriteJournal",
    "bands_of",
    "bring_near",
    "can_transcode",
    "choose_segment",
    "default_window",
    "describe_jpeg",
    "exif_orientation",
    "list_class_folders",
    "list_labelled_images",
    "make_addressable",
    "open_dataset",
    "plan_parts",
    "printable",
    "rank_slice",
    "read_header",
    "read_journal",
    "sample_checksum",
    "shard_checksum",
    "sub_jpeg",
    "sub_jpegs",
    "valid_text",
    "verify_dataset",
    "write_journal",
    "xmp_orientation",
]
