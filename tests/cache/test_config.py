from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.cache import CacheConfig
from forebay.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("/nvme/forebay:200GB", 200 * 10**9),
        ("/nvme/forebay:200GiB", 200 * 2**30),
        ("/nvme/forebay:1.5TB", 1_500_000_000_000),
        ("/nvme/forebay:2TiB", 2 * 2**40),
        ("/nvme/forebay:512 MiB", 512 * 2**20),
        ("/nvme/forebay:3MB", 3_000_000),
        ("/nvme/forebay:4KiB", 4096),
        ("/nvme/forebay:4KB", 4000),
        ("/nvme/forebay:4096", 4096),
        ("/nvme/forebay:4096B", 4096),
        ("/nvme/forebay:0.1GB", 100_000_000),
    ],
)
def test_a_folder_and_a_size_are_read(text: str, budget: int) -> None:
    assert CacheConfig.parse(text) == CacheConfig(path=Path("/nvme/forebay"), budget=budget)


def test_a_share_of_the_disk_is_read() -> None:
    assert CacheConfig.parse("/nvme/forebay:50%") == CacheConfig(path=Path("/nvme/forebay"), disk_share=0.5)
    assert CacheConfig.parse("/nvme/forebay: 12.5 %").disk_share == 0.125


def test_several_folders_are_divided_by_commas() -> None:
    several = CacheConfig.parse("/nvme0/forebay, /nvme1/forebay:2TB")
    assert several.folders == (Path("/nvme0/forebay"), Path("/nvme1/forebay"))
    assert several.budget == 2 * 10**12


def test_the_environment_is_the_default_and_an_argument_comes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = CacheConfig(path=Path("/given"))
    monkeypatch.delenv("FOREBAY_CACHE", raising=False)
    assert CacheConfig.choose(None) is None
    monkeypatch.setenv("FOREBAY_CACHE", "/nvme/forebay:1GB")
    assert CacheConfig.choose(None) == CacheConfig(path=Path("/nvme/forebay"), budget=10**9)
    assert CacheConfig.choose(given) is given
    assert CacheConfig.choose("/other:2GB") == CacheConfig(path=Path("/other"), budget=2 * 10**9)
    assert CacheConfig.choose("") is None
    monkeypatch.setenv("FOREBAY_CACHE", "/nvme/forebay")
    with pytest.raises(ConfigError, match="FOREBAY_CACHE"):
        CacheConfig.choose(None)


def test_only_the_last_colon_splits() -> None:
    assert CacheConfig.parse("/nvme/a:b:1GB").path == Path("/nvme/a:b")


def test_a_tilde_is_the_home_folder() -> None:
    assert CacheConfig.parse("~/cache:1GB").path == Path.home() / "cache"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/nvme",
        ":1GB",
        "/nvme:",
        "/nvme:GB",
        "/nvme:1G",
        "/nvme:1gb",
        "/nvme:-1GB",
        "/nvme:0GB",
        "/nvme:1e9",
        "/nvme,:1GB",
        "/nvme, ,/other:1GB",
        "/nvme:%",
        "/nvme:٣GB",
    ],
)
def test_what_is_not_a_folder_and_a_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="200GB"):
        CacheConfig.parse(text)


@pytest.mark.parametrize(
    "settings",
    [
        {"path": Path("/nvme"), "budget": 0},
        {"path": Path("/nvme"), "budget": -5},
        {"path": Path("/nvme"), "budget": 1.5},
        {"path": Path("/nvme"), "budget": True},
        {"path": "/nvme"},
        {"path": Path("/nvme"), "more_paths": ("/other",)},
        {"path": Path("/nvme"), "more_paths": (Path("/nvme"),)},
        {"path": Path("/nvme"), "more_paths": (Path("/other"),), "budget": 1},
        {"path": Path("/nvme"), "disk_share": 0},
        {"path": Path("/nvme"), "disk_share": 1.5},
        {"path": Path("/nvme"), "disk_share": True},
        {"path": Path("/nvme"), "disk_share": 0.5, "budget": 10**9},
        {"path": Path("/nvme"), "min_free": -1},
        {"path": Path("/nvme"), "min_free": 0.5},
        {"path": Path("/nvme"), "verify": "never"},
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CacheConfig(**settings)


@settings(deadline=None, max_examples=50)
@given(budget=st.integers(1, 10**18))
def test_plain_bytes_are_exact_at_any_size(budget: int) -> None:
    assert CacheConfig.parse(f"cache:{budget}").budget == budget


@pytest.mark.parametrize("cache", [Path("/nvme/forebay"), 5, True, b"/nvme/forebay:1GB"])
def test_what_is_no_text_and_no_configuration_is_refused(cache: Any) -> None:
    with pytest.raises(ConfigError, match="CacheConfig"):
        CacheConfig.choose(cache)


def test_a_size_for_each_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match="one for all"):
        CacheConfig.parse("/nvme0:10MB,/nvme1:10%")
