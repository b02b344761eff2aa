"""The tree of errors: each is caught as the built-in kind too, and survives being sent to another process."""

from __future__ import annotations

import pickle

import pytest

from forebay import errors

TREE = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", TREE)
def test_an_error_pickles_with_its_values(kind: type[errors.ForebayError]) -> None:
    error = kind("what, where, what to do", shard="00017", row=3)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is kind
    assert str(copy) == "what, where, what to do"
    assert (copy.shard, copy.row) == ("00017", 3)


@pytest.mark.parametrize("kind", [kind for kind in TREE if kind is not errors.ForebayError])
def test_an_error_is_of_a_built_in_kind_too(kind: type[errors.ForebayError]) -> None:
    assert issubclass(kind, errors.ForebayError)
    assert issubclass(kind, ValueError | OSError | RuntimeError | TimeoutError)


def test_a_detail_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(AttributeError, match="shard"):
        _ = errors.SampleError("x", shard="a").row
