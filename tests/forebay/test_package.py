"""The package as it is installed: every folder in the wheel, every public name real, imports in one direction."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import forebay

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["benchmarks", "cache", "loader", "sharding", "trainers"]
RANK = {"errors": 0, "sharding": 1, "cache": 2, "loader": 3, "trainers": 4, "benchmarks": 5, "cli": 6}


def modules() -> list[str]:
    names = []
    for package in ["forebay", *(f"forebay.{folder}" for folder in FOLDERS)]:
        module = importlib.import_module(package)
        names += [info.name for info in pkgutil.walk_packages(module.__path__, package + ".")]
        names.append(package)
    return sorted(set(names))


def test_every_folder_with_an_init_is_in_the_wheel() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    found = {
        ".".join(["forebay", *init.parent.relative_to(ROOT).parts] if init.parent.name != "forebay" else ["forebay"])
        for folder in FOLDERS
        for init in (ROOT / folder).rglob("__init__.py")
    }
    found |= {".".join(init.parent.relative_to(ROOT).parts) for init in (ROOT / "forebay").rglob("__init__.py")}
    assert listed == found


@pytest.mark.parametrize("name", modules())
def test_public_names_are_listed_and_real(name: str) -> None:
    module = importlib.import_module(name)
    assert isinstance(module.__all__, list), f"{name} has no __all__"
    assert len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        assert not public.startswith("_")
        assert getattr(module, public) is not None


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_run_against_the_flow_of_data(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                parts = name.split(".")
                if parts[0] == "forebay" and len(parts) > 1 and parts[1] != folder:
                    assert RANK[parts[1]] < RANK[folder], (
                        f"{path.relative_to(ROOT)} imports {name}, which is downstream"
                    )
                    assert len(parts) == 2 or folder == "benchmarks", (
                        f"{path.relative_to(ROOT)} reaches past the face of {name}"
                    )


def test_the_face_does_not_wait_for_torch() -> None:
    code = "import sys, forebay; assert 'torch' not in sys.modules; forebay.DataLoader; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_the_face_says_what_it_has() -> None:
    with pytest.raises(AttributeError, match="ShardDataset"):
        _ = forebay.Dataset
    assert set(forebay.__all__) <= set(dir(forebay))


def test_the_command_line_says_which_version_it_is() -> None:
    forebay = Path(sys.executable).with_name("forebay")
    done = subprocess.run([forebay, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"forebay {version('forebay')}\n"
