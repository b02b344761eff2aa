"""Reading, checking and transcoding images for `forebay shard`: in order, a bounded number ahead.

`ImageWork` is what is done to one image, and knows no processes; `checked_images` hands it to those of `image_workers`.
"""

from __future__ import annotations

import errno
import io
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from forebay.cli.image_workers import worker_pool
from forebay.errors import DecodeError, SourceError
from forebay.sharding import ImageFile, Kind, LocalFile, TranscodeError, make_addressable, printable

__all__ = ["CHECKS", "BadImage", "CheckedImage", "ImageWork", "checked_images"]

_HANDFUL, _HANDFUL_NBYTES = 8, 1 << 20
"""Images that a worker is given at once, and their bytes, about: while it has one, it waits for nobody."""
_AHEAD_PER_WORKER = 2
"""Handfuls."""
_AHEAD_NBYTES = 256 << 20
"""Bytes of images that are read and not stored yet, about; one image may be larger."""
_OF_THE_FILE = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EIO, errno.ELOOP, errno.ENOTDIR, errno.ESTALE, None}
"""Faults of one file. Others (no descriptors, no memory) are the machine's, and end the command."""
_JPEG = b"\xff\xd8\xff"


@dataclass(frozen=True, slots=True)
class BadImage:
    """An image that is left out."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedImage:
    """An image that is good."""

    data: bytes
    """What is to be stored."""
    source_nbytes: int
    """How long the file is."""
    addressable: bool = False
    """Whether `data` is a JPEG made addressable; else it is the file's bytes."""
    kept_because: str | None = None
    """Why a JPEG was not made addressable though that was wanted."""


def check_decodes(data: memoryview) -> None:
    """Decode all pixels, as training will."""
    from forebay.loader import decode_image  # imports torch

    decode_image(data)


def check_header(data: memoryview) -> None:
    """See that a decoder knows the format, the size and the mode."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.size  # noqa: B018
    except UnidentifiedImageError as error:
        raise DecodeError("no image header of a known format") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(f"no image header that holds: {error}") from error


def check_recording(data: memoryview) -> None:
    """Decode all of a recording, as training will."""
    from forebay.loader import check_audio  # imports torch

    check_audio(data)


def check_recording_header(data: memoryview) -> None:
    """See that a decoder knows a recording's format, rate and length."""
    from forebay.loader import check_audio

    check_audio(data, header_only=True)


def check_footage(data: memoryview) -> None:
    """Look at all packets of a video and decode its first frame and its last."""
    from forebay.loader import check_video  # imports torch

    check_video(data)


def check_footage_header(data: memoryview) -> None:
    """Look at all packets of a video and decode its first frame."""
    from forebay.loader import check_video

    check_video(data, header_only=True)


def check_nothing(data: memoryview) -> None:
    """Take any bytes but none."""
    if not data:
        raise DecodeError("the file is empty")


CHECKS: dict[Kind, dict[str, Callable[[memoryview], None]]] = {
    Kind.IMAGE: {"decode": check_decodes, "header": check_header, "none": check_nothing},
    Kind.AUDIO: {"decode": check_recording, "header": check_recording_header, "none": check_nothing},
    Kind.VIDEO: {"decode": check_footage, "header": check_footage_header, "none": check_nothing},
}
"""By what the files hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageWork:
    """What is done to each image. Pickles, so that a worker process can have it.

    Raises:
        SourceError: by a call, when reading fails for a reason that is not one file's.
    """

    root: Path
    """Folder that the images' paths are relative to."""
    check: str
    """Which of `CHECKS` an image must pass."""
    addressable: bool
    """Make JPEGs crop-addressable where that is possible."""
    kind: Kind = Kind.IMAGE
    """What the files hold."""

    def __call__(self, image: ImageFile) -> CheckedImage | BadImage:
        """Read and check an image, and make it what is to be stored: the same bytes in whatever process."""
        try:
            file = LocalFile(self.root / image.path, name=printable(image.path))
            try:
                data = file.read(0, file.nbytes)
            finally:
                file.close()
            CHECKS[self.kind][self.check](data)
        except SourceError as error:
            if getattr(error, "code", None) not in _OF_THE_FILE:
                raise
            return BadImage(image.path, str(error).removeprefix(f"{printable(image.path)} "))
        except DecodeError as error:
            return BadImage(image.path, str(error))
        if not self.addressable or data[: len(_JPEG)] != _JPEG:
            return CheckedImage(data=bytes(data), source_nbytes=len(data))
        try:
            return CheckedImage(data=make_addressable(data), source_nbytes=len(data), addressable=True)
        except TranscodeError as error:
            return CheckedImage(data=bytes(data), source_nbytes=len(data), kept_because=str(error))


def checked_images(
    images: Sequence[ImageFile], work: ImageWork, *, workers: int
) -> Generator[tuple[ImageFile, CheckedImage | BadImage]]:
    """Each image, ready to be stored, or with the reason why it is bad; in the order of `images`.

    Args:
        images: what to read; taken a few ahead.
        work: what is done to each.
        workers: processes that do it; 0 does it in this one.

    Raises:
        SourceError: reading fails for a reason that is not one file's, or a worker is lost; names the image.
    """
    if not workers or not images:
        yield from ((image, work(image)) for image in images)
        return
    preload = [__name__, *(["forebay.loader"] if work.check == "decode" or work.kind is not Kind.IMAGE else [])]
    with worker_pool(work, min(workers, len(images)), preload=preload) as submit:
        ahead: deque[tuple[_Handful, Future[_Answers]]] = deque()
        ahead_nbytes = 0
        for handful in _handfuls(images, work.root):
            while ahead and (
                len(ahead) >= workers * _AHEAD_PER_WORKER or ahead_nbytes + handful.nbytes > _AHEAD_NBYTES
            ):
                ahead_nbytes -= ahead[0][0].nbytes
                yield from _unpack(*ahead.popleft())
            ahead.append((handful, submit(handful.images)))
            ahead_nbytes += handful.nbytes
        while ahead:
            yield from _unpack(*ahead.popleft())


@dataclass(frozen=True, slots=True)
class _Handful:
    """Images that follow each other."""

    images: list[ImageFile]
    nbytes: int


_Answers = list[CheckedImage | BadImage | Exception]
"""One for each image of a handful; an error is the last."""


def _handfuls(images: Sequence[ImageFile], root: Path) -> Iterator[_Handful]:
    chosen: list[ImageFile] = []
    chosen_nbytes = 0
    for image in images:
        nbytes = _file_nbytes(root / image.path)
        if chosen and (len(chosen) == _HANDFUL or chosen_nbytes + nbytes > _HANDFUL_NBYTES):
            yield _Handful(chosen, chosen_nbytes)
            chosen, chosen_nbytes = [], 0
        chosen.append(image)
        chosen_nbytes += nbytes
    yield _Handful(chosen, chosen_nbytes)


def _file_nbytes(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):  # whoever reads it will say so
        return 0


def _unpack(handful: _Handful, answers: Future[_Answers]) -> Iterator[tuple[ImageFile, CheckedImage | BadImage]]:
    for image, answer in zip(handful.images, answers.result(), strict=False):
        if isinstance(answer, Exception):
            raise answer
        yield image, answer
