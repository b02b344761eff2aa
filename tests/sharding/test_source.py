from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.errors import ClosedError, SourceError
from forebay.sharding import FolderSource, LocalFile, MappedFile, Source, SourceFile

Opener = Callable[[Path], SourceFile]
CONTENT = bytes(range(256)) * 40


def in_folder(path: Path) -> SourceFile:
    return FolderSource(path.parent).open(path.name)


@pytest.fixture(params=[LocalFile, MappedFile, in_folder])
def opener(request: pytest.FixtureRequest) -> Opener:
    chosen: Opener = request.param
    return chosen


class TestConformanceOfSourceFiles:
    def test_a_read_gives_exactly_the_bytes_asked_for(self, opener: Opener, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(CONTENT)
        file = opener(tmp_path / "file")
        assert file.nbytes == len(CONTENT)
        assert file.read(0, len(CONTENT)) == CONTENT
        assert file.read(300, 17) == CONTENT[300:317]
        assert bytes(file.read(len(CONTENT), 0)) == b""
        file.close()

    def test_a_read_past_the_end_is_an_error_that_names_the_file(self, opener: Opener, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(CONTENT)
        file = opener(tmp_path / "file")
        with pytest.raises(SourceError, match="file"):
            file.read(len(CONTENT) - 1, 2)
        with pytest.raises(SourceError):
            file.read(-1, 1)
        file.close()

    def test_a_view_outlives_its_file(self, opener: Opener, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(CONTENT)
        file = opener(tmp_path / "file")
        view = file.read(5, 100)
        file.close()
        file.close()
        (tmp_path / "file").unlink()
        assert view.readonly
        assert view == CONTENT[5:105]
        with pytest.raises(ClosedError):
            file.read(0, 1)

    def test_an_empty_file_opens(self, opener: Opener, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        file = opener(tmp_path / "file")
        assert file.nbytes == 0
        assert bytes(file.read(0, 0)) == b""
        file.close()

    def test_a_missing_file_is_named(self, opener: Opener, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"absent.*No such file"):
            opener(tmp_path / "absent")

    def test_threads_read_at_once(self, opener: Opener, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(CONTENT)
        file = opener(tmp_path / "file")
        wrong: list[int] = []

        def read(place: int) -> None:
            wrong.extend(n for n in range(500) if file.read(place + n, 50) != CONTENT[place + n : place + n + 50])

        threads = [threading.Thread(target=read, args=(place,)) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        file.close()
        assert not wrong


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "a/../../secret", "", ".", "a\0b", "link", "folder_link/secret"]
)
def test_a_path_that_leaves_the_folder_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to("../secret")
    (root / "folder_link").symlink_to("..")
    with pytest.raises(SourceError):
        FolderSource(root).open(path)


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"here")
    (tmp_path / "link").symlink_to("file")
    file = FolderSource(tmp_path).open("link")
    assert bytes(file.read(0, 4)) == b"here"
    file.close()


def test_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(SourceError):
        FolderSource(tmp_path).open("a")


def test_a_pipe_or_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(SourceError, match="not a regular file"):
            FolderSource(tmp_path).open(name)


def test_a_file_cut_short_while_it_is_open_is_an_error_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    file = LocalFile(tmp_path / "file")
    os.truncate(tmp_path / "file", 100)
    assert file.read(0, 100) == CONTENT[:100]
    with pytest.raises(SourceError, match="cut short"):
        file.read(50, 100)
    file.close()


def test_a_disk_error_is_told_with_its_reason() -> None:
    file = LocalFile("/proc/self/mem")  # reading address 0 gives EIO, as a bad sector does
    with pytest.raises(SourceError, match="Input/output error"):
        file.read(0, 16)
    file.close()


def test_a_folder_is_a_source(tmp_path: Path) -> None:
    source: Source = FolderSource(tmp_path)
    assert source.name == str(tmp_path)
    assert repr(source) == f"FolderSource({str(tmp_path)!r})"
