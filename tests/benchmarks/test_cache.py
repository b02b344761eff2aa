from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from forebay.benchmarks import measure_cache
from forebay.benchmarks.cache import SITUATIONS
from forebay.cli.app import app
from forebay.errors import ConfigError


def test_every_situation_is_played_for_the_cache_the_optimum_and_lru() -> None:
    result = CliRunner().invoke(app, ["bench", "cache", "--shards", "48", "--window", "4", "--epochs", "3", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["shards"], told["room"]) == (48, 24)
    assert [row["situation"] for row in told["rows"]] == list(SITUATIONS)
    for row in told["rows"]:
        assert row["lru"] < row["ours"] <= row["optimum"]
        assert row["uses"] > 0


@pytest.mark.parametrize(("room", "window", "epochs"), [(24, 4, 1), (9, 4, 3)])
def test_what_cannot_be_told_is_refused(room: int, window: int, epochs: int) -> None:
    with pytest.raises(ConfigError):
        measure_cache(shards=48, room=room, window=window, epochs=epochs, progress=lambda _: None)


def test_a_cache_larger_than_the_data_is_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "cache", "--shards", "48", "--room", "49"])
    assert isinstance(result.exception, ConfigError)
