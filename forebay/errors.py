"""Every error that forebay raises on purpose, in one tree. Each also is the built-in kind that a caller would expect.

    ForebayError
    ├── ConfigError (ValueError)             a setting that cannot work
    │   ├── RankMismatchError                ranks of one job disagree about data, seed, settings or version
    │   └── StateError                       a loader state that does not belong here
    ├── SchemaError (ValueError)             a column or value that the schema does not allow
    ├── ManifestError (ValueError)           a folder that is no finished data set, or whose manifest does not hold
    ├── SourceError (OSError)                bytes that cannot be read or written
    │   └── ShardCorruptError                bytes that were read and are not those that were written
    ├── CacheError (OSError)                 a cache directory that cannot be used
    ├── DecodeError (ValueError)             bytes that no decoder takes
    ├── SampleError (ValueError)             one sample that does not decode or whose transform raised; names its place
    │   └── BadSampleBudgetError             more bad samples than allowed
    ├── ShapeError (ValueError)              samples that do not stack into one batch
    ├── StallError (TimeoutError)            the next batch did not come within `timeout`
    ├── LossError (ValueError)               a loss that is no finite number; names the samples
    ├── RankFailedError (RuntimeError)       another rank of the job failed first; tells its error
    └── ClosedError (RuntimeError)           used after it was closed by you

Messages say what happened, where, and what to do. Values are attributes too, and every error pickles with them.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BadSampleBudgetError",
    "CacheError",
    "ClosedError",
    "ConfigError",
    "DecodeError",
    "ForebayError",
    "LossError",
    "ManifestError",
    "RankFailedError",
    "RankMismatchError",
    "SampleError",
    "SchemaError",
    "ShapeError",
    "ShardCorruptError",
    "SourceError",
    "StallError",
    "StateError",
]


class ForebayError(Exception):
    """The root: `except ForebayError` catches whatever forebay raises on purpose.

    Args:
        message: what happened, where, and what to do.
        details: the values in the message, kept as attributes of the error.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.__dict__.update(details)

    def __getattr__(self, name: str) -> Any:  # for the type checker: details are attributes
        raise AttributeError(f"{type(self).__name__} has no detail {name!r}; it has {sorted(self.__dict__)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__.copy())


def _restore(cls: type[ForebayError], args: tuple[Any, ...], details: dict[str, Any]) -> ForebayError:
    error = cls(*args)
    error.__dict__.update(details)
    return error


class ConfigError(ForebayError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class RankMismatchError(ConfigError):
    """The ranks of one job disagree about data, seed, settings or version."""


class StateError(ConfigError):
    """A loader state of another data set, seed, setting or version."""


class SchemaError(ForebayError, ValueError):
    """A column declaration, or a value, that the schema does not allow."""


class ManifestError(ForebayError, ValueError):
    """A folder that is no finished data set, or whose manifest does not describe what lies there."""


class SourceError(ForebayError, OSError):
    """Bytes could not be read or written: missing file, full disk, short read."""


class ShardCorruptError(SourceError):
    """Bytes were read, and they are not the bytes that were written."""


class CacheError(ForebayError, OSError):
    """The cache directory cannot be used."""


class DecodeError(ForebayError, ValueError):
    """No decoder takes these bytes, or they claim more pixels than allowed."""


class SampleError(ForebayError, ValueError):
    """One sample did not decode, or its transform raised. Details: `dataset, shard, row, stage, reason`."""


class BadSampleBudgetError(SampleError):
    """More samples were bad than `max_bad` allows. Details: `bad, seen` besides those of `SampleError`."""


class ShapeError(ForebayError, ValueError):
    """Samples of different shapes do not stack into one batch."""


class StallError(ForebayError, TimeoutError):
    """The next batch did not come within `timeout` seconds."""


class LossError(ForebayError, ValueError):
    """The loss is no finite number. Details: `step, loss, samples`."""


class RankFailedError(ForebayError, RuntimeError):
    """Another rank failed first, and this one ends with it. Details: `rank`, None when it was lost without a word."""


class ClosedError(ForebayError, RuntimeError):
    """Used after it was closed."""
