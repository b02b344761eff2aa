"""Which files a table has: those of a folder or tree, of a list or glob, or behind a URL.

It lists; nothing is opened. Whether they are Parquet shows when their footers are read.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from forebay.cache.remote_config import RemoteConfig
from forebay.cache.remote_source import RemoteSource, is_url
from forebay.errors import ConfigError, ManifestError, SourceError
from forebay.sharding import MANIFEST_NAME, FolderSource, Source, is_hidden, sort_key

__all__ = ["Place", "TableFile", "TablePlace", "find_far_table", "find_files", "is_table"]

SUFFIXES = (".parquet", ".parq", ".pq")
Place = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file, before it is opened."""

    path: str
    """Relative to the source."""
    nbytes: int
    mtime_ns: int
    """0 where the place does not tell."""


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where a table lies, and its files in their order."""

    source: Source
    files: tuple[TableFile, ...]


def is_table(place: object) -> bool:
    """Whether `format="auto"` reads it as Parquet: a list, a glob, or a file that is called so, or a folder of them.

    No request is made: of the URL of a folder it is not known, and the answer is no.
    """
    if isinstance(place, Sequence) and not isinstance(place, str):
        return True
    if not isinstance(place, str | os.PathLike):
        return False
    text = os.fspath(place)
    if text.lower().endswith(SUFFIXES) and not os.path.isdir(text):
        return True
    if is_url(text):
        return "*" in text
    if glob.has_magic(text) and not os.path.exists(text):
        return True
    if not os.path.isdir(text) or os.path.exists(os.path.join(text, MANIFEST_NAME)):
        return False
    return any(name.lower().endswith(SUFFIXES) for name in _first_names(text))


def _first_names(root: str) -> list[str]:
    """Names of files along the first branch of a tree that has any: enough to tell what it holds."""
    for _, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not is_hidden(f"{name}/x"))
        shown = [name for name in names if not is_hidden(name)]
        if shown:
            return shown
    return []


def find_files(place: Place | TablePlace, remote: RemoteConfig | None = None) -> TablePlace:
    """List the files of a table.

    Args:
        place: a file, a folder (whatever is below it, but for what is hidden), a list of files, a glob (`**` goes
            through folders), or a URL of one of them. What was found already is given back.
        remote: how a URL is read.

    Raises:
        SourceError: there is no such place, or it has no file.
        ConfigError: it is none of these.
    """
    if isinstance(place, TablePlace):
        return place
    if not isinstance(place, str | os.PathLike):
        return _of_list([os.fspath(each) for each in place], remote)
    text = os.fspath(place)
    if is_url(text):
        return _of_url(text, remote)
    if remote is not None:
        raise ConfigError("remote= says how a URL is read, and the place is none; leave it out")
    if os.path.isdir(text):
        return _checked(text, FolderSource(text), _walk(text))
    if os.path.isfile(text):
        return _of_list([text], remote)
    if glob.has_magic(text):
        found = [path for path in glob.glob(text, recursive=True) if os.path.isfile(path)]
        root = re.split(r"[*?\[]", text, maxsplit=1)[0].rpartition("/")[0]
        root = root or ("/" if text.startswith("/") else ".")
        files = [_status(root, os.path.relpath(path, root)) for path in found]
        return _checked(text, FolderSource(root), [file for file in files if not is_hidden(file.path)])
    raise SourceError(f"there is no {text}; give a Parquet file, a folder, a list or a glob of them", path=text)


def find_far_table(url: str, remote: RemoteConfig | None = None) -> TablePlace:
    """List the files of a table at the URL of a folder where no manifest lies.

    Raises:
        ManifestError: it has no Parquet files either, or does not list its files.
        SourceError, ConfigError: as `find_files`.
    """
    source = RemoteSource(url, remote)
    name = source.name
    try:
        files = _listed(source)
    except SourceError as error:
        raise ManifestError(
            f"{name} is no data set: it has no {MANIFEST_NAME} (of shards), and whether it has Parquet files (of a "
            f"table) cannot be seen: {error}; of a table there, give the URLs of its files as a list"
        ) from error
    if any(file.path.lower().endswith(SUFFIXES) for file in files):
        return _checked(name, source, files)
    there = f"{len(files)} files, such as {files[0].path}" if files else "nothing that the place would list"
    raise ManifestError(
        f"{name} is no data set: neither {MANIFEST_NAME} (of shards; it comes last when they are written) nor files "
        f"called {', '.join('*' + suffix for suffix in SUFFIXES)} (of a table) lie there, but {there}; check "
        f'the address, give the URLs of the files as a list where a server lists none, or pass format="parquet" for '
        f"Parquet files that are called otherwise"
    )


def _listed(source: RemoteSource) -> list[TableFile]:
    """What a place behind a network lists, but for what is hidden, and the empty objects that stand for folders."""
    return [
        TableFile(path, nbytes, 0)
        for path, nbytes in source.listed().items()
        if not is_hidden(path) and (nbytes or path.lower().endswith(SUFFIXES))
    ]


def _walk(root: str) -> list[TableFile]:
    files: list[TableFile] = []
    links: list[str] = []
    below = [""]
    while below:
        folder = below.pop()
        try:
            with os.scandir(os.path.join(root, folder) if folder else root) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if is_hidden(path) and not (entry.is_dir() and "=" in entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        below.append(path)
                    elif entry.is_dir():
                        links.append(path)
                    else:
                        status = entry.stat()
                        files.append(TableFile(path, status.st_size, status.st_mtime_ns))
        except OSError as error:
            raise SourceError(f"{folder or root} of {root} cannot be listed: {error.strerror or error}") from error
    if links:
        raise SourceError(
            f"{links[0]} of {root} is a link to a folder, and links are not followed there: give the folders' files as "
            f"a list or a glob",
            path=links[0],
        )
    return files


def _status(root: str, path: str) -> TableFile:
    try:
        status = os.stat(os.path.join(root, path))
    except OSError as error:
        raise SourceError(f"{path} of {root} cannot be opened: {error.strerror or error}", path=path) from error
    return TableFile(path, status.st_size, status.st_mtime_ns)


def _of_list(places: list[str], remote: RemoteConfig | None) -> TablePlace:
    if not places:
        raise ConfigError("an empty list of files; give at least one")
    urls = [is_url(place) for place in places]
    if any(urls) and not all(urls):
        raise ConfigError(f"files of this machine and URLs in one list, such as {places[0]} and {places[-1]}")
    if len(set(places)) < len(places):
        twice = next(place for place in places if places.count(place) > 1)
        raise ConfigError(f"{twice} is given twice; give each file once")
    if urls[0]:
        parents = [place.rpartition("/")[0] for place in places]
        root = parents[0]
        while any(f"{parent}/".find(f"{root}/") != 0 for parent in parents):
            root = root.rpartition("/")[0]
        if root.endswith(":/") or not root:
            raise ConfigError(f"{places[0]} and {places[-1]} lie in different places; give files of one bucket")
        source = RemoteSource(root, remote)
        paths = [place[len(root) + 1 :] for place in places]
        return _checked(root, source, [TableFile(path, source.requester.size(path), 0) for path in paths])
    full = [os.path.abspath(place) for place in places]
    root = os.path.commonpath([os.path.dirname(path) for path in full])
    files = [_status(root, os.path.relpath(path, root)) for path in full]
    for file, place in zip(files, places, strict=True):
        if os.path.isdir(os.path.join(root, file.path)):
            raise ConfigError(f"{place} is a folder; a list holds files, and one folder is given by itself")
    return _checked(places[0], FolderSource(root), files)


def _of_url(url: str, remote: RemoteConfig | None) -> TablePlace:
    head, star, _ = url.partition("*")
    if star:
        root = head.rpartition("/")[0]
        pattern = url[len(root) + 1 :]
        source = RemoteSource(root, remote)
        return _checked(source.name, source, [file for file in _listed(source) if _matches(file.path, pattern)])
    if url.lower().endswith(SUFFIXES):
        return _of_list([url], remote)
    source = RemoteSource(url, remote)
    return _checked(source.name, source, _listed(source))


def _matches(path: str, pattern: str) -> bool:
    """As of `glob`: `*` stays within a folder, `**` does not."""
    parts, wanted = path.split("/"), pattern.split("/")

    def fits(i: int, k: int) -> bool:
        if k == len(wanted):
            return i == len(parts)
        if wanted[k] == "**":
            return any(fits(j, k + 1) for j in range(i, len(parts) + 1))
        return i < len(parts) and PurePosixPath(parts[i]).match(wanted[k]) and fits(i + 1, k + 1)

    return fits(0, 0)


def _checked(what: str, source: Source, files: list[TableFile]) -> TablePlace:
    if not files:
        raise SourceError(
            f"{what} has no file of a table: whatever begins with '.' or '_' does not count; give a folder, a list or "
            f"a glob that has Parquet files",
            path=what,
        )
    if isinstance(source, FolderSource) and not Path(source.root).is_dir():
        raise SourceError(f"there is no folder {source.root}", path=what)
    return TablePlace(source, tuple(sorted(files, key=lambda file: sort_key(file.path))))
