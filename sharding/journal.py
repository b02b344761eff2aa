"""The journal of an unfinished write: which shards are whole, so that the next writer goes on after them.

A folder without a journal and without anything else is where a write begins (`prepare_folder`).
`unfinished.jsonl` has a header line with everything that shapes the bytes, then one line a shard, each brought to the
disk before the next shard begins. The open journal is locked: two writers exclude each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forebay.errors import ConfigError, ManifestError, SourceError
from forebay.sharding.files import naming_full_disks, sync_folder, write_whole
from forebay.sharding.index import ShardEntry
from forebay.sharding.manifest import MANIFEST_NAME

__all__ = ["JOURNAL_NAME", "Journal", "prepare_folder", "read_journal", "write_journal"]

JOURNAL_NAME = "unfinished.jsonl"
_DIFFERENCES_TOLD = 3


def prepare_folder(path: Path, *, resume: bool) -> bool:
    """Make the folder of a new data set, or see that one may be written to; return whether it was made.

    Raises:
        ConfigError: it holds something else than an unfinished write that is to be resumed.
        SourceError: it cannot be made.
    """
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        pass
    except OSError as error:
        raise SourceError(f"{path} cannot be made: {error.strerror or error}", path=str(path)) from error
    else:
        return True
    try:
        names = os.listdir(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot hold a data set: {error.strerror or error}") from error
    if MANIFEST_NAME in names:
        raise ConfigError(f"{path} already holds a finished data set; write to another folder, or remove it")
    if JOURNAL_NAME in names:
        if not resume:
            raise ConfigError(
                f"{path} holds an unfinished write; resume=True (`--resume`) goes on with it, or remove it"
            )
    elif names:
        raise ConfigError(f"{path} is not empty ({len(names)} entries, such as {min(names)!r}); write to a new folder")
    return False


class Journal:
    """The locked journal of one writer.

    Args:
        folder: the destination; exists.
        header: settings and schema as JSON. An existing journal must have an equal one.

    Raises:
        ConfigError: another writer holds it, or it began with another header.
        ManifestError: it is damaged before its last line.
        SourceError: it cannot be read or written.
    """

    def __init__(self, folder: Path, header: dict[str, Any]) -> None:
        self.path = folder / JOURNAL_NAME
        self.shards: list[ShardEntry] = []
        """The shards that are whole, in order."""
        with naming_full_disks(self.path, 0):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock()
            self._nbytes = self._load(header)
            os.ftruncate(self._fd, self._nbytes)  # a torn last line
            if not self._nbytes:
                self._append(header)
                sync_folder(folder)
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except FileNotFoundError:  # its writer finished, and removed it, between our open and our lock
            held = False
        except BlockingIOError as error:
            raise ConfigError(
                f"another writer is at work in {self.path.parent}; wait for it, or write elsewhere"
            ) from error
        except OSError as error:
            raise SourceError(f"{self.path} cannot be locked: {error.strerror}; write to a local disk") from error
        if not held:
            raise ConfigError(f"another writer has just finished or given up in {self.path.parent}; try again")

    def _load(self, header: dict[str, Any]) -> int:
        """Read the whole lines into `shards`; return how many bytes they take."""
        self.shards, nbytes = read_journal(os.pread(self._fd, os.fstat(self._fd).st_size, 0), header, str(self.path))
        return nbytes

    def append(self, shard: ShardEntry) -> None:
        """Record that a shard is whole; it is on the disk when this returns.

        Raises:
            SourceError: no room, or the disk fails; the shard does not count.
        """
        self._append(_shard_line(shard))
        self.shards.append(shard)

    def keep(self, count: int) -> None:
        """Forget all shards but the first `count`."""
        header = os.pread(self._fd, self._nbytes, 0).split(b"\n", 1)[0] + b"\n"
        lines = [json.dumps(_shard_line(shard)).encode() + b"\n" for shard in self.shards[:count]]
        del self.shards[count:]
        self._nbytes = sum(map(len, lines), len(header))
        with naming_full_disks(self.path, 0):
            os.ftruncate(self._fd, self._nbytes)
            os.fsync(self._fd)

    def _append(self, content: dict[str, Any]) -> None:
        line = json.dumps(content).encode() + b"\n"
        with naming_full_disks(self.path, len(line)):
            try:
                os.lseek(self._fd, self._nbytes, os.SEEK_SET)
                write_whole(self._fd, line)
                os.fsync(self._fd)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._nbytes)
                raise
        self._nbytes += len(line)

    def remove(self) -> None:
        """Delete the journal: the write is finished, or left nothing behind."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.close()

    def close(self) -> None:
        """Release the lock; the journal stays. Calling it again does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def read_journal(data: bytes, header: dict[str, Any], name: str) -> tuple[list[ShardEntry], int]:
    """The shards that a journal's lines tell of, and how many bytes whole lines take: a torn last one does not count.

    Args:
        data: its content.
        header: settings and schema that its write must have begun with.
        name: of the journal, for messages.

    Raises:
        ConfigError: it began with another header.
        ManifestError: it is damaged before its last line.
    """
    shards: list[ShardEntry] = []
    lines = data.splitlines(keepends=True)
    nbytes = 0
    for number, line in enumerate(lines):
        try:
            content = json.loads(line) if line.endswith(b"\n") else None
            if number and content is not None:
                content = _shard_entry(content)
        except (ValueError, TypeError, KeyError) as error:
            if number < len(lines) - 1:
                raise ManifestError(
                    f"{name} is damaged in line {number + 1}; remove the folder and write anew"
                ) from error
            content = None
        if content is None:
            break
        if isinstance(content, ShardEntry):
            shards.append(content)
        elif content != header:
            raise ConfigError(
                f"the unfinished write in {name.rpartition('/')[0]} began with other columns or settings: "
                f"{_tell_differences(content, header)}. Give the same, or remove the folder"
            )
        nbytes += len(line)
    return shards, nbytes


def write_journal(header: dict[str, Any], shards: Sequence[ShardEntry]) -> bytes:
    """The content of a journal that `read_journal` reads."""
    lines = [header, *map(_shard_line, shards)]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _tell_differences(began: Any, now: Any) -> str:
    """Where two headers differ, with both values: those of a thousand classes are not for a message."""
    before, after = dict(_leaves(began)), dict(_leaves(now))
    places = [place for place in {**before, **after} if before.get(place) != after.get(place)]
    told = [
        f"{place} was {before.get(place, 'absent')}, now it is {after.get(place, 'absent')}"
        for place in places[:_DIFFERENCES_TOLD]
    ]
    more = [f"{len(places) - len(told)} more"] if len(places) > len(told) else []
    return "; ".join([*told, *more])


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Each value of nested JSON, such as ("schema.columns.0.type", '"image"')."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        yield place, json.dumps(value)
        return
    for key, part in inner:
        yield from _leaves(part, f"{place}.{key}" if place else str(key))


def _shard_line(shard: ShardEntry) -> dict[str, Any]:
    return {
        "name": shard.name,
        "rows": shard.rows,
        "nbytes": shard.nbytes,
        "footer_nbytes": shard.footer_nbytes,
        "footer_checksum": f"{shard.footer_checksum:016x}",
        "checksum": shard.checksum.hex(),
    }


def _shard_entry(content: dict[str, Any]) -> ShardEntry:
    return ShardEntry(
        name=str(content["name"]),
        rows=int(content["rows"]),
        nbytes=int(content["nbytes"]),
        footer_nbytes=int(content["footer_nbytes"]),
        footer_checksum=int(content["footer_checksum"], 16),
        checksum=bytes.fromhex(content["checksum"]),
    )
