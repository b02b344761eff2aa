"""Reading, checking and transcoding images for `forebay shard`: in worker processes, in order, a bounded number ahead.

`ImageWork` is what is done to one image, and knows no processes; `checked_images` hands it to them.
"""

from __future__ import annotations

import contextlib
import errno
import io
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from queue import SimpleQueue

from PIL import Image, UnidentifiedImageError

from forebay.errors import DecodeError, SourceError
from forebay.sharding import ImageFile, LocalFile, TranscodeError, make_addressable, printable

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
_LITTLE_MEMORY = "the shards that are whole are safe: go on with --resume, and with --workers 1 where memory is short"


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


def check_nothing(data: memoryview) -> None:
    """Take any bytes but none."""
    if not data:
        raise DecodeError("the file is empty")


CHECKS: dict[str, Callable[[memoryview], None]] = {
    "decode": check_decodes,
    "header": check_header,
    "none": check_nothing,
}


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

    def __call__(self, image: ImageFile) -> CheckedImage | BadImage:
        """Read and check an image, and make it what is to be stored: the same bytes in whatever process."""
        try:
            file = LocalFile(self.root / image.path, name=printable(image.path))
            try:
                data = file.read(0, file.nbytes)
            finally:
                file.close()
            CHECKS[self.check](data)
        except SourceError as error:
            if getattr(error, "code", None) not in _OF_THE_FILE:
                raise
            return BadImage(image.path, str(error))
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
    with _worker_pool(work, min(workers, len(images))) as submit:
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


# -- worker processes ------------------------------------------------------------------------------------------------


class _Worker:
    """A process that does the work on a handful of images at a time, and ends when this end of its pipe is closed.

    One caller at a time; a call waits for the process, and ends when the process does.
    """

    def __init__(self, context: ForkServerContext, work: ImageWork) -> None:
        self._pipe, theirs = context.Pipe()
        # daemon: one that is left over is ended with this process, not waited for.
        self._process = context.Process(target=_serve, args=(theirs, work), name="forebay-shard", daemon=True)
        try:
            self._process.start()
        except (OSError, EOFError) as error:  # the end of the file: the server could not fork, and has died of it
            self._pipe.close()
            raise SourceError(
                f"a worker process cannot be started ({error or 'no more processes'}); give fewer --workers, or 0 to "
                f"work in one process"
            ) from error
        finally:
            theirs.close()

    def __call__(self, images: list[ImageFile]) -> _Answers:
        answers: _Answers = []
        try:
            self._pipe.send(images)
            while len(answers) < len(images) and not (answers and isinstance(answers[-1], Exception)):
                answers.append(self._pipe.recv())
        except (EOFError, OSError):
            answers.append(self._lost(images[len(answers)]))
        return answers

    def kill(self) -> None:
        """End the process in the middle of whatever it does: it only reads."""
        self._process.kill()

    def close(self) -> None:
        self._process.join()
        self._process.close()
        self._pipe.close()

    def _lost(self, image: ImageFile) -> SourceError:
        self._process.join()
        code = self._process.exitcode or 0
        name = printable(image.path)
        if code == -signal.SIGKILL:
            reason = f"was killed, as the system does when memory is short, with {name} in hand; {_LITTLE_MEMORY}"
        elif code < 0:
            how = signal.strsignal(-code) or f"signal {-code}"
            reason = f"crashed ({how}) on {name}; move that image away and go on with --resume, and please report it"
        else:
            reason = f"ended with code {code}, with {name} in hand; go on with --resume"
        return SourceError(f"a worker process {reason}", image=image.path, exitcode=code)


@contextlib.contextmanager
def _worker_pool(work: ImageWork, workers: int) -> Iterator[Callable[[list[ImageFile]], Future[_Answers]]]:
    """Processes that are ready, and what hands them a handful of images. Leaving ends them at once.

    For each process a thread waits, which an answer wakes, and the death of the process too.
    """
    context = _server_context(work)
    idle: SimpleQueue[_Worker] = SimpleQueue()  # holds at most `workers`

    def ask(images: list[ImageFile]) -> _Answers:
        worker = idle.get()  # as many threads as workers: there is one
        try:
            return worker(images)
        finally:
            idle.put(worker)

    with contextlib.ExitStack() as stack:
        started: list[_Worker] = []
        threads = ThreadPoolExecutor(workers, thread_name_prefix="forebay-shard")
        try:
            for _ in range(workers):
                started.append(worker := _Worker(context, work))
                stack.callback(worker.close)
                idle.put(worker)
            yield lambda images: threads.submit(ask, images)
        finally:
            for worker in started:
                worker.kill()
            threads.shutdown(wait=True, cancel_futures=True)


def _server_context(work: ImageWork) -> ForkServerContext:
    """A server that forks workers, with the modules they need imported once for all.

    Ctrl-C is held back in the server and in its workers: it is for the command, which then ends them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *(["forebay.loader"] if work.check == "decode" else [])])
    resource_tracker.ensure_running()  # the server would start it, and let signals through again
    before = os.environ.get("PYTHONSAFEPATH")
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.environ["PYTHONSAFEPATH"] = "1"  # else it imports what lies in the current folder, such as a checkout
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return context


def _serve(pipe: Connection, work: ImageWork) -> None:
    """What a worker process does until the other end of the pipe is closed, by whoever asks or by its death."""
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            for image in pipe.recv():
                answer = _answer(image, work)
                pipe.send(answer)
                if isinstance(answer, Exception):
                    break


def _answer(image: ImageFile, work: ImageWork) -> CheckedImage | BadImage | Exception:
    try:
        return work(image)
    except SourceError as error:
        return error
    except MemoryError:
        return SourceError(f"no memory for {printable(image.path)}; {_LITTLE_MEMORY}", image=image.path)
    except Exception as error:  # noqa: BLE001 - raised by whoever asked
        error.add_note(traceback.format_exc())
        return error
