from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.errors import ConfigError, SourceError
from forebay.sharding.image_folder import list_class_folders, list_labelled_images, printable, valid_text
from forebay.sharding.label_file import read_label_file


def touch(root: Path, *names: str | bytes) -> Path:
    for name in names:
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass
    return root


def test_class_folders_are_sorted_by_raw_bytes_and_so_are_images(tmp_path: Path) -> None:
    folder = list_class_folders(touch(tmp_path, "b/2.jpg", "b/10.JPEG", "a b/x.png", "B/y.webp", "b/deep/z.gif"))
    assert folder.classes == {"label": ["B", "a b", "b"]}
    assert [(image.path, image.values["label"]) for image in folder.images] == [
        ("B/y.webp", 0),
        ("a b/x.png", 1),
        ("b/10.JPEG", 2),
        ("b/2.jpg", 2),
        ("b/deep/z.gif", 2),
    ]


def test_names_of_any_bytes_are_listed(tmp_path: Path) -> None:
    folder = list_class_folders(touch(tmp_path, b"caf\xe9/a\nb.jpg", "caf\u00e9/ .jpg"))
    assert folder.classes == {"label": ["caf\u00e9", "caf\\xe9"]}
    assert [os.fsencode(image.path) for image in folder.images] == ["caf\u00e9/ .jpg".encode(), b"caf\xe9/a\nb.jpg"]
    assert [valid_text(image.path) for image in folder.images] == ["caf\u00e9/ .jpg", "caf\\xe9/a\nb.jpg"]
    assert printable(folder.images[1].path) == "caf\\xe9/a\\nb.jpg"


def test_hidden_files_are_left_out_and_others_are_counted(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "a/notes.txt", "a/.2.jpg", ".git/3.jpg", "README", "a/Thumbs.db")
    folder = list_class_folders(tmp_path)
    assert [image.path for image in folder.images] == ["a/1.jpg"]
    assert folder.ignored == 3


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], "it is empty"),
        (["a.txt", "b.txt"], "2 files, none of them an image"),
        (["a/1.jpg", "b/notes.txt"], r"class folder 'b' .* holds no images \(1 other files\)"),
        (["a/1.jpg", "2.jpg"], r"1 images, such as '2.jpg', that lie in no class folder.*--labels"),
    ],
)
def test_a_folder_that_cannot_be_sharded_says_why(files: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        list_class_folders(touch(tmp_path, *files))


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be listed: No such file"):
        list_class_folders(tmp_path / "absent")


def test_links_are_followed_and_a_loop_ends(tmp_path: Path) -> None:
    touch(tmp_path, "data/a/1.jpg", "elsewhere/2.jpg")
    (tmp_path / "data/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/a/loop").symlink_to(tmp_path / "data/a")
    assert [image.path for image in list_class_folders(tmp_path / "data").images] == ["a/1.jpg", "b/2.jpg"]


def test_a_csv_gives_labels_and_typed_columns(tmp_path: Path) -> None:
    touch(tmp_path / "images", "b.jpg", "sub/a.jpg", "c.jpg", "readme.txt", "labels.csv")
    (tmp_path / "images/labels.csv").write_text(
        "\ufefffile,label,age,weight,zip,note\n"
        'sub/a.jpg,dog,3,1.5,01234,"one, two"\n'
        "./b.jpg,cat,-4,2,99999,\n"
        "gone.jpg,dog,5,1e3,00000,x\n",
        encoding="utf-8",
    )
    folder = list_labelled_images(tmp_path / "images", tmp_path / "images/labels.csv")
    assert folder.columns == {"label": "int64", "age": "int64", "weight": "float64", "zip": "str", "note": "str"}
    assert folder.classes == {"label": ["cat", "dog"]}
    assert [(image.path, *image.values.values()) for image in folder.images] == [
        ("b.jpg", 0, -4, 2.0, "99999", ""),
        ("gone.jpg", 1, 5, 1000.0, "00000", "x"),
        ("sub/a.jpg", 1, 3, 1.5, "01234", "one, two"),
    ]
    assert (folder.ignored, folder.unlabelled) == (1, 1)


def test_a_jsonl_gives_labels_and_typed_columns(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(
        '{"file": "a.jpg", "label": 7, "good": true, "score": 1, "tags": ["x"]}\n\n'
        '{"label": 9, "file": "b.jpg", "good": false, "score": 0.5, "tags": {}}\n'
    )
    labels = read_label_file(path)
    assert labels.columns == {"label": "int64", "good": "bool", "score": "float64", "tags": "json"}
    assert labels.classes == {}
    assert labels.values[1] == {"label": 9, "good": False, "score": 0.5, "tags": {}}


BAD_LABELS: dict[str, tuple[str, str, str]] = {
    "no lines": ("l.csv", "file,label\n", "has no lines"),
    "no header": ("l.csv", "a.jpg,3\nb.jpg,4\n", r"\['file', 'label'\] are needed"),
    "too few fields": ("l.csv", "file,label\na.jpg\n", "line 2: it has more or fewer fields"),
    "too many fields": ("l.csv", "file,label\na.jpg,1,2\n", "line 2: it has more or fewer fields"),
    "an open quote": ("l.csv", 'file,label\n"a.jpg,1\n', "this is no CSV"),
    "a path that leaves": ("l.csv", "file,label\n../a.jpg,1\n", "line 2: '../a.jpg' is no path within"),
    "an absolute path": ("l.csv", "file,label\n/a.jpg,1\n", "no path within"),
    "no path": ("l.csv", "file,label\n,1\n", "no path within"),
    "a file named twice": ("l.csv", "file,label\na.jpg,1\n./a.jpg,2\n", "names 'a.jpg' twice"),
    "a column of ours": ("l.csv", "file,label,name\na.jpg,1,x\n", "rename"),
    "labels of fractions": ("l.csv", "file,label\na.jpg,1.5\n", "labels are float64"),
    "a column twice": ("l.csv", "file,label,x,x\na.jpg,1,2,3\n", "two columns of one name"),
    "no JSON": ("l.jsonl", '{"file": "a.jpg", "label": 1}\n{"file"\n', "line 2: this is no JSON"),
    "no object": ("l.jsonl", "[]\n", "line 1: each line is an object"),
    "a null": ("l.jsonl", '{"file": "a.jpg", "label": null}\n', "object without nulls"),
    "other keys": ("l.jsonl", '{"file": "a", "label": 1}\n{"file": "b", "label": 1, "x": 2}\n', "line 2: the columns"),
    "a file that is no text": ("l.jsonl", '{"file": 3, "label": 1}\n', "no path within"),
    "mixed labels": ("l.jsonl", '{"file": "a", "label": 1}\n{"file": "b", "label": "x"}\n', "labels are json"),
    "another suffix": ("l.txt", "", r"called .csv \(with a header line\) or .jsonl"),
}


@pytest.mark.parametrize("what", BAD_LABELS)
def test_a_label_file_that_does_not_hold_names_the_line(what: str, tmp_path: Path) -> None:
    name, content, says = BAD_LABELS[what]
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=says):
        read_label_file(tmp_path / name)


def test_a_label_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        read_label_file(tmp_path / "labels.csv")


def test_labels_of_a_folder_without_images_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt")
    (tmp_path / "labels.csv").write_text("file,label\na.jpg,1\n")
    with pytest.raises(ConfigError, match="holds no images"):
        list_labelled_images(tmp_path, tmp_path / "labels.csv")
