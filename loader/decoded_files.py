"""The open files of decoded samples of one kind, for one pass: found, made with room for every sample, let go.

How many bytes a sample will have is learnt from its header, before anything of its shard is decoded.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from forebay.cache import DecodedFile, DecodedStore
from forebay.errors import ShardCorruptError, SourceError
from forebay.loader.decode import Orientation, picture_size
from forebay.loader.decoded_head import DecodedHead
from forebay.loader.kernel import find_frames
from forebay.loader.readers import ReaderPool
from forebay.sharding import StoredDataset, read_header

__all__ = ["DecodedFiles"]

_MOST_OPEN = 128
_ROWS_AT_A_TIME = 64

log = logging.getLogger(__name__)


class DecodedFiles:
    """Opens and makes files; keeps those open that batches use, and some more. Thread-safe.

    Args:
        store: of one kind of decoded samples; taken over.
        data: of the data set.
        pool: reads what a shard's samples are; stays the caller's.
        orientation: whether pictures are turned upright.
        max_pixels: pictures that claim more are not stored.
    """

    def __init__(
        self,
        store: DecodedStore,
        data: StoredDataset,
        pool: ReaderPool,
        *,
        orientation: Orientation,
        max_pixels: int,
    ) -> None:
        self.store = store
        self._data = data
        self._pool = pool
        self._orientation: Orientation = orientation
        self._max_pixels = max_pixels
        self._open: OrderedDict[int, DecodedFile] = OrderedDict()
        self._users: dict[DecodedFile, int] = {}
        self._gone = set[DecodedFile]()  # not to be used again, closed by the last user
        self._hopeless = set[int]()
        self._lock = threading.Lock()

    def lease(self, shard: int) -> DecodedFile | None:
        """The file of a shard, until `release`; None when there is none."""
        with self._lock:
            file = self._open.get(shard)
            if file is None:
                file = self.store.open(shard)
            if file is None:
                return None
            self._take(shard, file)
            return file

    def cost(self, shard: int) -> int:
        """Bytes that may have to be read to make the file of a shard."""
        return int(self._data.shard_nbytes[shard])

    def make(self, shard: int, head: DecodedHead) -> DecodedFile | None:
        """The file of a shard that has none yet, until `release`; None when it cannot be made now.

        Args:
            shard: index of the shard.
            head: that makes the pixels; programs of one kind of pixels have equal ones.

        Raises:
            CacheError: the folder cannot be used.
            ClosedError: the pass was closed.
        """
        with self._lock:
            there = self._open.get(shard)
            if there is not None:  # another output of the batch has made it
                self._take(shard, there)
                return there
        if shard in self._hopeless or self.store.is_full(shard):
            return None
        nbytes = self._sizes(shard, head)
        file = None if nbytes is None else self.store.make(shard, nbytes)
        with self._lock:
            if file is not None:
                self._take(shard, file)
        return file

    def _take(self, shard: int, file: DecodedFile) -> None:
        self._open[shard] = file
        self._open.move_to_end(shard)
        self._users[file] = self._users.get(file, 0) + 1
        for other in [other for other, old in self._open.items() if not self._users.get(old)]:
            if len(self._open) <= _MOST_OPEN:
                break
            self._open.pop(other).close()

    def release(self, file: DecodedFile) -> None:
        """Use a file no longer, once for each `lease` or `make`."""
        with self._lock:
            self._users[file] -= 1
            if not self._users[file]:
                del self._users[file]
                if file in self._gone:
                    self._gone.remove(file)
                    file.close()

    def drop(self, shard: int, file: DecodedFile) -> None:
        """Let nobody use a file any more that the cache has evicted. The caller still has it."""
        with self._lock:
            if self._open.get(shard) is file:
                del self._open[shard]
                self._gone.add(file)

    def _sizes(self, shard: int, head: DecodedHead) -> list[int] | None:
        """By row, bytes of its pixels; 0 where they are not known. None: it cannot be told now, or never."""
        column, rows = head.column, int(self._data.shard_rows[shard])
        frames = self._pool.frames(shard, column, rows)
        if frames is None:  # it is far: to have a look at all samples would fetch all of it
            return None
        heights, widths = frames.height.copy(), frames.width.copy()
        lying = (frames.orientation >= 5) & (self._orientation == "apply")
        heights[lying], widths[lying] = widths[lying], heights[lying]
        unknown = np.flatnonzero(frames.bands == 0).tolist()
        try:
            for low in range(0, len(unknown), _ROWS_AT_A_TIME):
                some = unknown[low : low + _ROWS_AT_A_TIME]
                for row, size in zip(some, self._look(self._pool.read_column(shard, some, column)), strict=True):
                    heights[row], widths[row] = size
        except (ShardCorruptError, SourceError) as error:  # whoever reads that sample raises
            log.debug("no decoded samples of shard %d are stored: %s", shard, str(error))
            self._hopeless.add(shard)
            return None
        huge = heights * widths > self._max_pixels
        heights[huge] = 0
        return [3 * height * width for height, width in head.sizes(heights.tolist(), widths.tolist())]

    def _look(self, pictures: Sequence[memoryview]) -> list[tuple[int, int]]:
        """Upright height and width of pictures; (0, 0) where no decoder knows."""
        found = []
        for picture, (height, width, has_metadata) in zip(
            pictures, find_frames(pictures, self._max_pixels).tolist(), strict=True
        ):
            if not height:
                found.append(picture_size(picture, max_pixels=self._max_pixels, orientation=self._orientation))
            elif has_metadata and self._orientation == "apply" and read_header(picture).orientation >= 5:
                found.append((width, height))
            else:
                found.append((height, width))
        return found

    def close(self) -> None:
        """Close all files and the store; nobody uses any of them any more."""
        with self._lock:
            for file in {*self._open.values(), *self._gone}:
                file.close()
            self._open.clear()
            self._gone.clear()
            self._users.clear()
        self.store.close()
