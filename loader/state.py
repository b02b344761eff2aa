"""What a loader remembers: the settings that fix the order, and how much of it the user has received."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from forebay.errors import StateError
from forebay.loader.batches import Tail

__all__ = ["STATE_VERSION", "LoaderState", "check_layout"]

STATE_VERSION = 2


def check_layout(state: Any, names: AbstractSet[str], version: int) -> None:
    """Raise unless `state` is a mapping of this layout's version with exactly these names.

    Raises:
        StateError: says what it is instead.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise StateError(f"not a loader state: {state!r:.200}; give what loader.state_dict() returned")
    if state["version"] != version:
        raise StateError(
            f"the loader state has version {state['version']!r}, this forebay reads {version}; "
            "load it with the version that wrote it, or upgrade forebay"
        )
    if set(state) != names:
        missing, unknown = sorted(names - set(state)), sorted(set(state) - names, key=str)
        raise StateError(
            f"the loader state lacks {missing} and has unknown {unknown}; give it as it was saved, to a loader of the "
            "same kind of data set"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderState:
    """The state of a loader: plain values, equal on every rank, in proportion to nothing."""

    version: int
    """Of this layout; a newer one is refused."""
    fingerprint: str
    """The data set's content."""
    seed: int
    """Of order and augmentation."""
    epoch: int
    """The epoch that goes on, counted from 0."""
    position: int
    """Samples of that epoch, over all ranks, that were delivered."""
    shuffle: bool
    """False: storage order."""
    window: int
    """Shards that the shuffle mixes."""
    global_batch_size: int
    """Samples of a batch over all ranks; another one may be used to go on."""
    tail: Tail
    """What becomes of a last batch that is not full."""

    @classmethod
    def parse(cls, state: Mapping[str, Any]) -> LoaderState:
        """Read what `to_dict` wrote, perhaps by way of JSON.

        Raises:
            StateError: not such a state, of a newer version, or with values out of range.
        """
        names = {field.name for field in fields(cls)}
        check_layout(state, names, STATE_VERSION)
        types: dict[str, type] = {"fingerprint": str, "shuffle": bool, "tail": str}
        for name in names:
            wanted = types.get(name, int)
            value = state[name]
            if type(value) is not wanted or (isinstance(value, int) and not 0 <= value < 1 << 63):
                raise StateError(f"the loader state has {name}={value!r}; a {wanted.__name__} in range is needed")
        if state["global_batch_size"] == 0:
            raise StateError("the loader state has global_batch_size=0; it was not written by a loader")
        if state["tail"] not in get_args(Tail):
            raise StateError(f"the loader state has tail={state['tail']!r}; one of {get_args(Tail)} is needed")
        return cls(**{name: state[name] for name in names})

    def to_dict(self) -> dict[str, Any]:
        """The state as plain JSON values."""
        return asdict(self)
