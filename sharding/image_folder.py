"""Folders of images, recordings or videos as they lie: which files are samples, in which order, with which labels.

Lists names; opens no file and writes nothing. The order is that of the paths' raw bytes, the same on every machine.
Hidden files and folders are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay.errors import ConfigError, SourceError
from forebay.sharding.label_file import read_label_file
from forebay.sharding.schema import Kind

__all__ = [
    "IMAGE_SUFFIXES",
    "SUFFIXES",
    "ImageFile",
    "ImageFolder",
    "find_kind",
    "list_class_folders",
    "list_labelled_images",
    "printable",
    "valid_text",
]

IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".mpo", ".png", ".tif", ".tiff", ".webp"}
)

SUFFIXES: Mapping[Kind, frozenset[str]] = {
    Kind.IMAGE: IMAGE_SUFFIXES,
    Kind.AUDIO: frozenset({".aif", ".aiff", ".au", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".w64", ".wav"}),
    Kind.VIDEO: frozenset({".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm"}),
}
"""How names of files end, by what they hold."""
_WORDS = {Kind.IMAGE: "image", Kind.AUDIO: "recording", Kind.VIDEO: "video"}


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One image, recording or video to be stored."""

    path: str
    """Relative to the folder, with `/`; bytes that are not UTF-8 stand as Python's surrogate escapes."""
    values: Mapping[str, Any]
    """What is stored beside the image: the label, and further columns of a label file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFolder:
    """What a folder holds."""

    root: Path
    images: Sequence[ImageFile]
    """In the order of the raw bytes of their paths."""
    columns: Mapping[str, str]
    """Declarations of the columns in `ImageFile.values`."""
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Class names of the label column, when labels are names."""
    ignored: int = 0
    """Files that are no images, by their names."""
    unlabelled: int = 0
    """Images that the label file does not name."""
    kind: Kind = Kind.IMAGE
    """What the files hold: the column's kind and name."""


def find_kind(root: str | os.PathLike[str]) -> Kind:
    """What the files of a folder hold, by their names: images where there is nothing else to be found.

    Raises:
        ConfigError: several kinds lie there, and images are not the most.
        SourceError: a folder cannot be listed.
    """
    _scan(Path(root))  # says what is wrong with it
    counts = dict.fromkeys(SUFFIXES, 0)
    for path in _walk(Path(root), ""):
        suffix = os.path.splitext(path)[1].lower()
        for kind, suffixes in SUFFIXES.items():
            counts[kind] += suffix in suffixes
    found = [kind for kind, count in counts.items() if count]
    if len(found) <= 1:
        return found[0] if found else Kind.IMAGE
    if counts[Kind.IMAGE] == max(counts.values()):
        return Kind.IMAGE
    told = " and ".join(f"{counts[kind]:,} {_WORDS[kind]}{'s' * (counts[kind] > 1)}" for kind in found)
    raise ConfigError(f"{root} holds {told}; say which are to be stored: --media {found[-1]}")


def list_class_folders(root: str | os.PathLike[str], kind: Kind = Kind.IMAGE) -> ImageFolder:
    """Images of one folder a class; the label is the folder's place among the sorted names.

    Args:
        root: that holds the folders.
        kind: what is listed, recordings or videos in the place of images.

    Raises:
        ConfigError: no class folders, a class without images, or images outside the class folders; says which.
        SourceError: a folder cannot be listed.
    """
    root, word = Path(root), _WORDS[kind]
    entries = _scan(root)
    folders = [entry.name for entry in entries if entry.is_dir()]
    stray = [entry.name for entry in entries if not entry.is_dir() and _is_of(kind, entry.name)]
    if stray:
        raise ConfigError(
            f"{root} holds {len(stray)} {word}s, such as {printable(stray[0])!r}, that lie in no class folder; move "
            f"them into one folder a class, or give a file with the columns file,label: --labels labels.csv"
        )
    if not folders:
        one = "an image" if kind is Kind.IMAGE else f"a {word}"
        found = f"{len(entries)} files, none of them {one}" if entries else "it is empty"
        raise ConfigError(f"{root} holds no {word}s and no folders of {word}s ({found})")
    images: list[ImageFile] = []
    ignored = len(entries) - len(folders)
    for label, folder in enumerate(folders):
        files = list(_walk(root, folder + "/"))
        found_images = [ImageFile(path, {"label": label}) for path in files if _is_of(kind, path)]
        if not found_images:
            raise ConfigError(
                f"class folder {printable(folder)!r} of {root} holds no {word}s ({len(files)} other files); remove it, "
                f"or begin its name with a dot to leave it out"
            )
        images += found_images
        ignored += len(files) - len(found_images)
    images.sort(key=lambda image: os.fsencode(image.path))
    classes = {"label": [valid_text(folder) for folder in folders]}
    return ImageFolder(
        root=root, images=images, columns={"label": "int64"}, classes=classes, ignored=ignored, kind=kind
    )


def list_labelled_images(
    root: str | os.PathLike[str], labels: str | os.PathLike[str], kind: Kind = Kind.IMAGE
) -> ImageFolder:
    """Images of a folder, flat or nested, that a CSV or JSONL file names and labels; see `read_label_file`.

    Images that the label file names and the folder lacks are listed too: whoever reads them will find them missing.

    Args:
        root: that holds the images.
        labels: the file.
        kind: what is listed, recordings or videos in the place of images.

    Raises:
        ConfigError: no images, or a label file that is not of the form; names its line.
        SourceError: the folder or the label file cannot be read.
    """
    root = Path(root)
    labelled = read_label_file(Path(labels))
    on_disk = [path for path in _walk(root, "") if not _is_same_file(root / path, Path(labels))]
    if not any(_is_of(kind, path) for path in on_disk):
        raise ConfigError(f"{root} holds no {_WORDS[kind]}s ({len(on_disk)} other files)")
    listed = set(labelled.files)
    images = [ImageFile(path, values) for path, values in zip(labelled.files, labelled.values, strict=True)]
    images.sort(key=lambda image: os.fsencode(image.path))
    return ImageFolder(
        root=root,
        images=images,
        columns=labelled.columns,
        classes=labelled.classes,
        ignored=sum(path not in listed and not _is_of(kind, path) for path in on_disk),
        unlabelled=sum(path not in listed and _is_of(kind, path) for path in on_disk),
        kind=kind,
    )


def valid_text(path: str) -> str:
    r"""A path as valid Unicode: bytes that are not UTF-8 become `\x..`."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def printable(path: str) -> str:
    r"""A path on one line of a terminal: as `valid_text`, and controls such as newlines become `\n`, `\x..`."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in valid_text(path)
    )


def _is_of(kind: Kind, path: str) -> bool:
    return os.path.splitext(path)[1].lower() in SUFFIXES[kind]


def _is_same_file(path: Path, other: Path) -> bool:
    return path.name == other.name and path.resolve() == other.resolve()


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, hidden entries left out, sorted by the raw bytes of the names."""
    try:
        with os.scandir(folder) as found:
            return sorted((e for e in found if not e.name.startswith(".")), key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise SourceError(f"{folder} cannot be listed: {error.strerror or error}", path=str(folder)) from error


def _walk(root: Path, below: str, parents: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    """Paths of all files under `root/below`, relative to `root`. Links are followed, loops of links once."""
    status = os.stat(root / below)
    place = (status.st_dev, status.st_ino)
    if place in parents:
        return
    for entry in _scan(root / below):
        if entry.is_dir():
            yield from _walk(root, f"{below}{entry.name}/", parents | {place})
        else:
            yield below + entry.name
