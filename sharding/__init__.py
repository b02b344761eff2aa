"""What a data set is and where its samples lie: schema, shard files, manifest, and the order of an epoch."""

from __future__ import annotations

from forebay.sharding.addressable import BAND_NBYTES, JpegLayout, bands_of, describe_jpeg
from forebay.sharding.arrow_samples import declare_columns, samples_of
from forebay.sharding.blocks import IDLE_READ_BLOCKS, BlockPool, ReadMemory
from forebay.sharding.checksum import READ_NBYTES, sample_checksum, shard_checksum
from forebay.sharding.destination import Destination, FolderDestination, WriteJournal
from forebay.sharding.far import FarFile, FarSource, FileRange, bring_near
from forebay.sharding.image_folder import (
    SUFFIXES,
    ImageFile,
    ImageFolder,
    find_kind,
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
from forebay.sharding.parquet_dataset import UNIT_WRITER, ParquetDataset, ParquetTable, plan_table_units
from forebay.sharding.parquet_facts import TableFacts
from forebay.sharding.parquet_filter import check_filter, filter_columns, filter_identity, groups_left, identity_of
from forebay.sharding.parquet_footer import FileFacts, facts_of
from forebay.sharding.parquet_paths import is_hidden, sort_key
from forebay.sharding.parquet_read import FileReader, UnitReader
from forebay.sharding.parquet_schema import SchemaChange
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
    "SUFFIXES",
    "UNIT_WRITER",
    "BlockPool",
    "Column",
    "Destination",
    "EpochOrder",
    "FarFile",
    "FarSource",
    "FileFacts",
    "FileRange",
    "FileReader",
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
    "ParquetDataset",
    "ParquetTable",
    "PartPlans",
    "Problem",
    "Ranges",
    "ReadMemory",
    "Schema",
    "SchemaChange",
    "ShardEntry",
    "ShardReader",
    "ShardSpan",
    "ShardWriter",
    "Source",
    "SourceFile",
    "StoredDataset",
    "TableFacts",
    "TranscodeError",
    "UnitReader",
    "WriteJournal",
    "bands_of",
    "bring_near",
    "can_transcode",
    "check_filter",
    "choose_segment",
    "declare_columns",
    "default_window",
    "describe_jpeg",
    "exif_orientation",
    "facts_of",
    "filter_columns",
    "filter_identity",
    "find_kind",
    "groups_left",
    "identity_of",
    "is_hidden",
    "list_class_folders",
    "list_labelled_images",
    "make_addressable",
    "open_dataset",
    "plan_parts",
    "plan_table_units",
    "printable",
    "rank_slice",
    "read_header",
    "read_journal",
    "sample_checksum",
    "samples_of",
    "shard_checksum",
    "sort_key",
    "sub_jpeg",
    "sub_jpegs",
    "valid_text",
    "verify_dataset",
    "write_journal",
    "xmp_orientation",
]
