"""A data set of shards, as a torch data set: what it holds, what is made of each sample, and samples by index."""

from __future__ import annotations

import copy
import operator
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast, overload

import numpy as np
import pyarrow.compute as pc
import torch
from torch.utils.data import Dataset

from forebay.cache import CacheConfig, InPlaceStore, RemoteConfig, ShardStore, TablePlace, open_store
from forebay.errors import ConfigError
from forebay.loader.dataset_place import find_data
from forebay.loader.decode import MAX_PIXELS, Orientation
from forebay.loader.decoded_pass import DecodedSettings
from forebay.loader.outputs import OutputProgram, Transforms, compile_outputs
from forebay.loader.readers import ReaderPool
from forebay.loader.samples import INDEX, VALID, VIRTUAL, WEIGHT, SampleMaker, StageFailed
from forebay.loader.table_nulls import NullRule
from forebay.loader.table_ragged import Ragged
from forebay.loader.table_stack import Stack
from forebay.loader.tables import MEMORY_NBYTES, TableSamples, TableView
from forebay.loader.vocabulary import Vocabulary
from forebay.sharding import Kind, Schema, Source, StoredDataset

__all__ = ["ShardDataset"]


class ShardDataset(Dataset[dict[str, Any]]):
    """Shards in a folder or a bucket, as `forebay shard` or `ShardWriter` wrote them, or a table in Parquet files.

    Give it to `forebay.DataLoader`, which reads ahead, shuffles and resumes. It also is a map-style data set: `len`,
    `dataset[i]`, `dataset[[i, j]]`, and works in torch's own DataLoader.

    Args:
        path: the folder; a URL, `s3://bucket/folder`, `gs://`, `az://`, `https://` or what fsspec knows, with
            credentials from the environment and the usual files; or an opened `Source`.
        cache: where to keep shards on this machine, `"/nvme/forebay:200GB"` or a `CacheConfig`; None takes what the
            environment variable FOREBAY_CACHE says. Without it, and with "", shards are read where they lie, which is
            right for a local disk.
        remote: how a URL is read: connections, limits of time.
        transforms: what makes each output, by output name: `{"image": [T.RandomResizedCrop(224)]}`;
            `{"view1": T.From("image", [...])}` names the column; `{("image", "mask"): [...]}` draws geometry once for
            both. Columns that are not mentioned become outputs as they are: images uint8 (3, H, W),
            audio float32 (channels, frames), video uint8 (frames, 3, H, W).
        columns: read only these columns; None reads all. `"__index__"` (the sample's index, int64), `"__valid__"`
            (bool, false of a sample that only fills a place) and `"__weight__"` (one float64 a batch: own valid samples
            x ranks / those of all ranks) may be added.
        orientation: "apply" turns images upright by their EXIF orientation; "ignore" leaves them as they are stored.
        max_pixels: an image that claims more pixels is a bad sample (a decompression bomb), before it is decoded;
            so is a video whose wanted frames have more together.
        decoded: keep decoded images in the cache, which shares its budget with them, for epochs to come: of each image
            output, what the resizes and central crops at the begin of its list make of the image; the whole image where
            there are none. `[T.Resize(shorter=256), T.RandomResizedCrop(224)]` keeps 256 pixels a side. "auto" keeps
            them only if training waits for decoding and there is room, as `loader.stats().decoded` tells; the pixels
            are the same either way. With True or "auto" every image is decoded in full, on the CPU.
            Recordings of audio are kept whole and read by the stretch.
        format: "forebay" is what `forebay shard` wrote; "parquet" a table: a file, a folder or tree (folders called
            `key=value` are columns), a list, a glob or a URL of them. "auto" looks: where a manifest lies there are
            shards, else Parquet files are a table.
        filter: of a table: rows that stay, `pyarrow.compute.field("age") > 18`. They are counted once, at opening.
        schema_change: of a table: "error" wants the same columns in all files, "promote" adds nulls and widens numbers.
        table_transform: of a table: a function of a `pyarrow.RecordBatch` (or a polars or pandas frame, by its
            annotation), applied once to each unit of rows before it is cached. It keeps the number of rows.
        stack: of a table: columns that become one tensor, `{"features": ["f0", "f1"]}`.
        nulls: of a table: by column, `T.Fill(value)`, `T.Mask()` or `T.AsNaN()`; without a rule a null is an error.
        vocabularies: of a table: by column, what turns its strings to codes.
        ragged: of a table: by column of lists that differ in length, `T.Padded(...)` or `T.Jagged()`.
        memory_nbytes: of a table: bytes of units that a pass holds in memory, where no cache keeps them. 4 GiB, a
            shuffle window of 64 units of 64 MiB; what a batch needs is held in any case.

    Raises:
        ManifestError: no finished data set lies there.
        SchemaError: a column that does not exist.
        ConfigError: a transform or setting that cannot work.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Source | Sequence[str | os.PathLike[str]],
        *,
        cache: str | CacheConfig | None = None,
        remote: RemoteConfig | None = None,
        transforms: Transforms | None = None,
        columns: Sequence[str] | None = None,
        orientation: Literal["apply", "ignore"] = "apply",
        max_pixels: int = MAX_PIXELS,
        decoded: bool | Literal["auto"] = False,
        format: Literal["auto", "forebay", "parquet"] = "auto",  # noqa: A002 - the word that others use
        filter: pc.Expression | None = None,  # noqa: A002 - likewise
        schema_change: Literal["error", "promote"] = "error",
        table_transform: Callable[..., Any] | None = None,
        stack: Mapping[str, Sequence[str] | Stack] | None = None,
        nulls: Mapping[str, NullRule] | None = None,
        vocabularies: Mapping[str, Vocabulary] | None = None,
        ragged: Mapping[str, Ragged] | None = None,
        memory_nbytes: int = MEMORY_NBYTES,
    ) -> None:
        if orientation not in ("apply", "ignore"):
            raise ConfigError(f'orientation={orientation!r}; give "apply" or "ignore"')
        if transforms is not None and not isinstance(transforms, Mapping):
            raise ConfigError(
                f"transforms={transforms!r:.200}; give what makes each output, by its name: "
                '{"image": [T.RandomResizedCrop(224)]}'
            )
        if max_pixels <= 0:
            raise ConfigError(f"max_pixels={max_pixels}; give a positive number of pixels, by default {MAX_PIXELS}")
        if isinstance(columns, str):
            raise ConfigError(f"columns={columns!r} is one name; give a list: columns=[{columns!r}]")
        if format not in ("auto", "forebay", "parquet"):
            raise ConfigError(f'format={format!r}; give "auto", "forebay" or "parquet"')
        self.cache = CacheConfig.choose(cache)
        self.transforms = transforms
        self.columns = columns
        self.virtual = tuple(name for name in columns or () if name in VIRTUAL)
        real = None if columns is None else [name for name in columns if name not in self.virtual]
        self.view: TableView | None = None
        """Of a table; None of shards."""
        options = {"stack": stack, "nulls": nulls, "vocabularies": vocabularies, "ragged": ragged}
        of_tables = options | {"filter": filter, "table_transform": table_transform}
        given = [name for name, value in of_tables.items() if value is not None]
        given += ["schema_change"] if schema_change != "error" else []
        programs: list[OutputProgram] = []
        found = find_data(path, format, remote, for_tables=given)
        if isinstance(found, TablePlace):
            self.view = TableView(
                found,
                cache=self.cache,
                columns=real,
                expression=filter,
                schema_change=schema_change,
                table_transform=table_transform,
                memory_nbytes=memory_nbytes,
                options=options | {"transforms": transforms},
            )
            self.data: StoredDataset = self.view.data
        else:
            self.data = found
            programs = compile_outputs(self.data.schema, real, transforms)
        self.maker = SampleMaker(self.data.schema, programs, orientation=orientation, max_pixels=max_pixels)
        self.partial = False
        """Whether `only` left outputs out."""
        if self.view is not None and decoded is not False:
            raise ConfigError(f"decoded={decoded!r}: a table has no pictures to keep decoded; leave it out")
        self.decoded = self._decoded_settings(decoded, orientation, max_pixels)
        """The decoded cache, if there is to be one."""
        self._epoch, self._seed = 0, 0
        self._local: _MapStyleReader | TableSamples
        self._local = _MapStyleReader(self) if self.view is None else TableSamples(self.view, self.cache)

    def _decoded_settings(self, decoded: object, orientation: Orientation, max_pixels: int) -> DecodedSettings | None:
        if decoded is False:
            return None
        if decoded is not True and decoded != "auto":
            raise ConfigError(f'decoded={decoded!r}; give True, False or "auto"')
        if self.cache is None:
            raise ConfigError(
                f"decoded={decoded!r} without a cache: decoded images are kept where shards are; give "
                'cache="/nvme/forebay:200GB"'
            )
        audio = self._has_audio()
        if not self._has_pictures() and not (audio and decoded is True):
            raise ConfigError(
                f"decoded={decoded!r}: no output comes from one image column alone; give decoded=False, or declare the "
                f"image as an output of its own{'; audio alone is kept with decoded=True' if audio else ''}"
            )
        return DecodedSettings(cache=self.cache, auto=decoded == "auto", orientation=orientation, max_pixels=max_pixels)

    def _has_pictures(self) -> bool:
        return any(program.is_image for program in self.maker.programs)

    def _has_audio(self) -> bool:
        return any(self.schema[name].kind is Kind.AUDIO for name in self.maker.columns)

    @property
    def schema(self) -> Schema:
        """Names and kinds of the columns."""
        return self.data.schema

    @property
    def fingerprint(self) -> str:
        """Of the content: equal for equal data, wherever it lies."""
        return self.data.fingerprint

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what is made of each sample, those that begin with `__` left out."""
        return self.maker.outputs if self.view is None else self.view.plan.names

    def only(self, outputs: Sequence[str]) -> ShardDataset:
        """The same data set with fewer outputs, such as a stage of a pipelined model needs.

        Only the columns that these need are read, and none at all where there are none (a table's units are read
        whole, or not at all). Their values, the order of samples and the fingerprint stay.

        Args:
            outputs: names of outputs, and of virtual columns.

        Raises:
            ConfigError: there is no such output, or a callable makes it together with others.
        """
        if isinstance(outputs, str):
            raise ConfigError(f"only({outputs!r}) is one name; give a list: only([{outputs!r}])")
        for name in outputs:
            if name not in self.outputs and name not in VIRTUAL:
                raise ConfigError(
                    f"only({list(outputs)!r}): there is no output {name!r}; the outputs are {list(self.outputs)}, and "
                    f"{list(VIRTUAL)}"
                )
        fewer = copy.copy(self)
        fewer.virtual = tuple(name for name in VIRTUAL if name in outputs)
        if self.view is None:
            fewer.maker = self.maker.only(outputs)
            fewer._local = _MapStyleReader(fewer)
            if not fewer._has_pictures() and not fewer._has_audio():
                fewer.decoded = None
        else:
            fewer.view = self.view.only(outputs)
            fewer._local = TableSamples(fewer.view, self.cache)
        fewer.partial = self.partial or len(fewer.outputs) < len(self.outputs)
        return fewer

    def open_store(self) -> ShardStore:
        """The way to this data set's shards, through its cache when it has one. Whoever opens it closes it."""
        if not self.maker.columns:  # nothing is read, and nothing to be fetched ahead
            return InPlaceStore(self.data, ())
        return open_store(self.data, self.cache, self.maker.columns)

    def set_epoch(self, epoch: int, *, seed: int = 0) -> None:
        """Choose the draws of `dataset[i]`. `forebay.DataLoader` has its own epoch and seed and ignores this."""
        self._epoch, self._seed = epoch, seed

    def close(self) -> None:
        """Close the shards that `dataset[i]` opened. The data set can be used again."""
        self._local.close()

    def __len__(self) -> int:
        return self.data.rows

    @overload
    def __getitem__(self, index: Sequence[int]) -> list[dict[str, Any]]: ...
    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    def __getitem__(self, index: int | Sequence[int]) -> dict[str, Any] | list[dict[str, Any]]:
        try:
            if np.ndim(index):
                return self.__getitems__([operator.index(i) for i in cast("Sequence[int]", index)])
            number = operator.index(cast("int", index))
        except TypeError as error:
            raise TypeError(
                f"sample {index!r:.200} of {self.data.name}: give a whole number, or a list of them"
            ) from error
        return self.__getitems__([number])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The samples at `indices`, in that order; torch's DataLoader asks for a whole batch this way."""
        rows = len(self)
        for index in indices:
            if not -rows <= index < rows:
                raise IndexError(f"sample {index} of {self.data.name}, which has {rows}")
        places = np.array([index % rows for index in indices], dtype=np.int64)
        if isinstance(self._local, TableSamples):
            return self._local.samples(places, self.virtual)
        return self._local.samples(places, seed=self._seed, epoch=self._epoch)

    def __repr__(self) -> str:
        return f"ShardDataset({self.data.name!r}, {len(self):,} samples, columns {self._names()})"

    def _names(self) -> list[str]:
        return list(self.maker.columns if self.view is None else self.view.plan.names)


class _MapStyleReader:
    """Samples by index: opens the store when first asked, and anew in each process that it is copied to."""

    def __init__(self, dataset: ShardDataset) -> None:
        self._dataset = dataset
        self._lock = threading.Lock()
        self._opened: tuple[int, ShardStore, ReaderPool] | None = None

    def samples(self, indices: np.ndarray[Any, np.dtype[np.int64]], *, seed: int, epoch: int) -> list[dict[str, Any]]:
        dataset = self._dataset
        maker, data = dataset.maker, dataset.data
        pool = self._pool()
        shards, rows = data.find(indices)
        zeros = np.zeros(len(indices), np.int64)
        draws = [program.draw(seed=seed, epoch=epoch, indices=indices, occurrences=zeros) for program in maker.programs]
        nowhere = [tuple(None for _ in program.names) for program in maker.programs]
        samples = []
        for i, (shard, row) in enumerate(zip(shards.tolist(), rows.tolist(), strict=True)):
            try:
                made = maker.make(pool.read(shard, row), draws, i, nowhere)
            except StageFailed as failed:
                raise failed.at(dataset=data.name, shard=data.shard_name(shard), row=row) from failed.__cause__
            sample = {
                name: torch.from_numpy(np.array(value)) if isinstance(value, np.generic) else value
                for program, values in zip(maker.programs, made, strict=True)
                for name, value in zip(program.names, values, strict=True)
            }
            if INDEX in dataset.virtual:
                sample[INDEX] = torch.tensor(indices[i])
            if VALID in dataset.virtual:
                sample[VALID] = torch.tensor(True)
            if WEIGHT in dataset.virtual:
                sample[WEIGHT] = torch.tensor(1.0, dtype=torch.float64)
            samples.append(sample)
        return samples

    def _pool(self) -> ReaderPool:
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                store = self._dataset.open_store()
                self._opened = (
                    os.getpid(),
                    store,
                    ReaderPool(store, self._dataset.schema, self._dataset.maker.columns),
                )
            return self._opened[2]

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None and opened[0] == os.getpid():
            opened[1].close()
            opened[2].close()

    def __getstate__(self) -> ShardDataset:
        return self._dataset

    def __setstate__(self, dataset: ShardDataset) -> None:
        self.__init__(dataset)  # type: ignore[misc]  # a copy in another process starts closed
