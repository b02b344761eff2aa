"""What a user's function is, as 16 bytes that change when its code does, or what it uses.

It looks into code objects and values; it calls nothing.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from forebay.errors import ConfigError

__all__ = ["function_identity"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_DEEPEST = 32


def function_identity(function: Callable[..., Any]) -> bytes:
    """16 bytes that change when the function does.

    Its attribute `version`, where it has one: then nothing else counts but its name. Else its code, defaults, what it
    holds in its closure, and whatever globals of plain values or functions it uses.

    Raises:
        ConfigError: it holds something that does not tell what it is; says how to give it a version.
    """
    version = getattr(function, "version", None)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    state = xxhash.xxh3_128()
    if isinstance(version, str | int):
        state.update(f"version {name} {version!r}".encode())
        return state.digest()
    try:
        _Hash(state).add(function, 0)
    except _CannotTellError as error:
        raise ConfigError(
            f"table_transform {name} uses {error}, and nothing tells when that changes, so what is cached could be "
            f'old; give the function a version and raise it with every change: {name.rpartition(".")[2]}.version = "1"'
        ) from error
    return state.digest()


class _CannotTellError(Exception):
    """A value without a content that is known."""


class _Hash:
    """Adds values to a checksum, each with its kind."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._seen: set[int] = set()

    def add(self, value: Any, depth: int) -> None:
        """Any value that a function can hold."""
        if depth > _DEEPEST:
            raise _CannotTellError("values nested very deep")
        self._say(type(value).__name__)
        if isinstance(value, _PLAIN):
            self._say(repr(value))
        elif isinstance(value, list | tuple):
            self._say(str(len(value)))
            for each in value:
                self.add(each, depth + 1)
        elif isinstance(value, set | frozenset):
            self.add(sorted(value, key=repr), depth + 1)
        elif isinstance(value, Mapping):
            self.add(list(value.items()), depth + 1)
        elif isinstance(value, types.CodeType):
            self._code(value, depth)
        elif id(value) in self._seen:
            self._say("again")
        else:
            self._seen.add(id(value))
            self._object(value, depth)

    def _say(self, text: str) -> None:
        content = text.encode("utf-8", "surrogatepass")
        self._state.update(len(content).to_bytes(8, "little") + content)

    def _code(self, code: types.CodeType, depth: int) -> None:
        self._say(code.co_code.hex())
        for part in (code.co_consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            self.add(part, depth + 1)

    def _object(self, value: Any, depth: int) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value, depth)
        elif isinstance(value, types.MethodType):
            self.add([value.__func__, value.__self__], depth + 1)
        elif isinstance(value, functools.partial):
            self.add([value.func, value.args, value.keywords], depth + 1)
        elif isinstance(value, types.ModuleType):
            self._say(value.__name__)
        elif isinstance(value, type | types.BuiltinFunctionType | np.ufunc):
            self._say(f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}")
        elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            self._say(f"{value.dtype.str} {value.shape}")
            self._state.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, pa.DataType | pa.Schema | pa.Field | np.dtype):
            self._say(str(value))
        elif isinstance(value, pa.Scalar | pa.Array | pa.ChunkedArray):
            self._say(str(value.type))
            self.add(value.as_py() if isinstance(value, pa.Scalar) else value.to_pylist(), depth + 1)
        elif type(value).__module__ == "torch" and hasattr(value, "detach"):
            self.add(value.detach().cpu().numpy(), depth + 1)
        elif callable(value) and isinstance(getattr(value, "__dict__", None), dict):
            self.add([type(value).__qualname__, type(value).__call__, vars(value)], depth + 1)
        else:
            raise _CannotTellError(f"a {type(value).__module__}.{type(value).__qualname__}")

    def _function(self, function: types.FunctionType, depth: int) -> None:
        if (function.__module__ or "").partition(".")[0] in ("numpy", "pyarrow", "pandas", "polars", "torch"):
            self._say(f"{function.__module__}.{function.__qualname__}")
            return
        self.add([function.__code__, function.__defaults__, function.__kwdefaults__], depth + 1)
        for cell in function.__closure__ or ():
            self.add(cell.cell_contents, depth + 1)
        for name in _global_names(function.__code__):
            if name in function.__globals__:
                self._say(name)
                self.add(function.__globals__[name], depth + 1)


def _global_names(code: types.CodeType) -> list[str]:
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names.update(_global_names(const))
    return sorted(names)
