"""What other training frameworks look for in a loader of shards: a sampler, and for accelerate its place in a pass.

It imports neither of them, and takes no part in reading: the order and the ranks are the loader's own.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DistributedSampler, SequentialSampler

from forebay.errors import ConfigError

if TYPE_CHECKING:
    from forebay.loader.shard_loader import ShardLoader

__all__ = ["GradientPlace", "ShardSampler", "accelerate_place", "settings_of_samplers", "warn_what_accelerate_drops"]

_OURS = {"workers": "process", "batch_threads": 1, "on_error": "raise", "max_bad": None}


class ShardSampler(DistributedSampler[Any]):
    """Stands where torch's loaders have a sampler, so that nobody puts one that divides by rank over one that does.

    It has a length and takes an epoch; it gives no indices.

    Args:
        shards: the loader that it stands for.
        dataset: of that loader.
        shuffle: as it was given.
    """

    def __init__(self, shards: ShardLoader, dataset: Any, shuffle: bool | None) -> None:
        # Not torch's own constructor: it wants the process group, which may come later.
        self._shards = shards
        self.dataset = dataset
        self.asked_shuffle = shuffle
        self.shuffle = bool(shuffle)
        self.epoch = 0

    def __len__(self) -> int:
        return self._shards.rank_samples()

    def __iter__(self) -> Iterator[Any]:
        raise ConfigError(
            "the order of a ShardDataset is the loader's own, and nobody else can go through its sampler: iterate the "
            "loader itself. To go on in mid-epoch, load_state_dict() skips without reading; accelerate's "
            "skip_first_batches cannot, so give Hugging Face's Trainer ignore_data_skip=True and load the state"
        )

    def set_epoch(self, epoch: int) -> None:
        """Make the pass that is about to begin, or has begun and given nothing yet, one over this epoch."""
        self.epoch = epoch
        self._shards.follow_epoch(epoch)


def settings_of_samplers(dataset: object, sampler: Any, batch_sampler: Any) -> dict[str, Any] | None:
    """What Lightning means by the samplers that it makes a loader of shards anew with.

    It keeps the loader's own sampler inside, where it wants to predict (all samples, so nothing is left out), or gives
    a sequential one, where it wants to overfit a few batches.

    Returns:
        the arguments that they replace; None: they are somebody else's.
    """
    if type(sampler) is SequentialSampler and batch_sampler is None and sampler.data_source is dataset:
        return {"shuffle": False}
    if isinstance(sampler, ShardSampler) and batch_sampler is None and sampler.dataset is dataset:
        return {"shuffle": sampler.asked_shuffle}
    inner = getattr(batch_sampler, "sampler", None)
    if sampler is None and isinstance(inner, ShardSampler) and inner.dataset is dataset:
        return {"batch_size": batch_sampler.batch_size, "drop_last": False, "shuffle": inner.asked_shuffle}
    return None


def warn_what_accelerate_drops(loader: Any) -> None:
    """Say which settings are lost where accelerate makes torch's loader of one that is not for shards."""
    lost = [f"{name}={getattr(loader, name)!r}" for name, default in _OURS.items() if getattr(loader, name) != default]
    if lost:
        warnings.warn(
            f"accelerate's prepare makes torch's own DataLoader of this one, without {', '.join(lost)}; put ours into "
            "what it returns: prepared.base_dataloader = DataLoader(prepared.dataset, "
            "batch_sampler=prepared.batch_sampler, ...)",
            UserWarning,
            stacklevel=4,
        )


class GradientPlace:
    """Tells accelerate whether the batch in hand is the last one, and how much of it is no repetition.

    Args:
        remainder: samples of the last batch over all ranks, where some ranks repeat one to be even; 0: none does.
    """

    def __init__(self, remainder: int) -> None:
        self.end_of_dataloader = False
        self.remainder = remainder

    def begin(self) -> None:
        """Be the newest of the loaders that are in use."""
        sys.modules["accelerate.state"].GradientState()._add_dataloader(self)

    def end(self) -> None:
        """Be none of them. Calling it again does nothing."""
        state = sys.modules["accelerate.state"].GradientState
        if state._shared_state:  # the Accelerator that asked may be gone
            state()._remove_dataloader(self)


def accelerate_place(remainder: int) -> GradientPlace | None:
    """A place for a pass that begins; None where accelerate is not in use."""
    module = sys.modules.get("accelerate.state")
    if module is None or not module.GradientState._shared_state:
        return None
    return GradientPlace(remainder)
