"""The file by which a reader tells the other processes of the machine what it reads, in which order, and how far.

One small file, held by `flock` as long as its reader lives: without a lock holder it is left over and says nothing.
What is made of it stands in `readers.py`. Nothing in it is used as a path or a size.

    position, 20 digits
    {"version": 1, "fingerprint": ..., "sample_nbytes": ..., "order": null or {"seed", "epoch", "shuffle", "window",
    "node", "nodes"}}
"""

from __future__ import annotations

import json
import os
import secrets
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from forebay.cache.catalogue import is_fingerprint
from forebay.cache.locks import is_locked, try_lock, unlock

__all__ = ["SUFFIX", "OrderSettings", "ReaderFile", "Reading", "read_reader_file"]

VERSION = 1
SUFFIX = ".reader"
LIMIT_NBYTES = 4096
DIGITS = 20
MOST = 1 << 62
"""Positions and counts beyond are nonsense; sums of them fit in int64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderSettings:
    """All that `EpochOrder`, and `NodeOrder` of several nodes, need beside the data set."""

    seed: int
    epoch: int
    shuffle: bool
    window: int
    node: int = 0
    nodes: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What one reader reads, and how far it is."""

    fingerprint: str
    """Of the data set."""
    sample_nbytes: int
    """Bytes of a sample, on average: positions times this compare readers of different data sets."""
    order: OrderSettings | None
    """None: samples are read in an order that nobody knows."""
    position: int = 0


class ReaderFile:
    """The file of one reader of this process. Made while the folder's lock is held.

    A forked child closes its descriptor, so that the lock ends with the parent.

    Args:
        folder: made when missing.
        reading: what to say.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, reading: Reading) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self.close = weakref.finalize(self, _remove, self._fd, self.path)
        """Remove the file. Calling it again does nothing; a reader that nobody has any more is removed as well."""
        _live.add(self)
        try:
            locked = try_lock(self._fd)
            assert locked, "nobody else looks at a new file: the folder is locked"
            os.pwrite(self._fd, _encode(reading), 0)
        except BaseException:
            self.close()
            raise

    def move(self, position: int) -> None:
        """Tell how far the reader is. Needs no lock: a few bytes at one place, which are checked when they are read."""
        os.pwrite(self._fd, b"%0*d" % (DIGITS, position), 0)

    def leave_to_parent(self) -> None:
        """In a forked child: close the descriptor, and leave lock and file alone."""
        if self.close.detach() is not None:
            os.close(self._fd)
            self._fd = -1


def _remove(fd: int, path: Path) -> None:
    with suppress(OSError):  # the folder is gone, or has become read-only: then it is left over, unlocked
        os.unlink(path)
    unlock(fd)


def read_reader_file(path: Path) -> Reading | None:
    """What a reader says; None when it is not alive, or says what cannot be.

    Raises:
        OSError: the file cannot be read.
    """
    if not is_locked(path):
        return None
    try:
        with open(path, "rb") as file:
            return _decode(file.read(LIMIT_NBYTES))
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _encode(reading: Reading) -> bytes:
    order = reading.order
    said = {
        "version": VERSION,
        "fingerprint": reading.fingerprint,
        "sample_nbytes": reading.sample_nbytes,
        "order": None if order is None else asdict(order),
    }
    return b"%0*d\n%s\n" % (DIGITS, reading.position, json.dumps(said).encode())


def _decode(content: bytes) -> Reading:
    position, rest = content[:DIGITS], content[DIGITS + 1 :]
    if not position.isdigit():
        raise ValueError("no position")
    said = json.loads(rest)
    if said["version"] != VERSION or not is_fingerprint(said["fingerprint"]):
        raise ValueError("another version, or no fingerprint")
    order = said["order"]
    reading = Reading(
        fingerprint=said["fingerprint"],
        sample_nbytes=_count(said["sample_nbytes"], least=1),
        order=None
        if order is None
        else OrderSettings(
            seed=_whole(order["seed"]),
            epoch=_count(order["epoch"]),
            shuffle=order["shuffle"] is True,
            window=_count(order["window"], least=1),
            node=_count(order["node"]),
            nodes=_count(order["nodes"], least=1),
        ),
    )
    return replace(reading, position=_count(int(position)))


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("not a whole number")
    return value


def _count(value: Any, least: int = 0) -> int:
    if not least <= _whole(value) < MOST:
        raise ValueError("out of range")
    return int(value)


_live: weakref.WeakSet[ReaderFile] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for file in list(_live):
        file.leave_to_parent()
    _live.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)
