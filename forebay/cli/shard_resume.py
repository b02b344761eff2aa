"""What `forebay shard --resume` has left to do, told from the names of the samples that are stored.

That they were stored in the same way is for the writer's journal to see: it refuses other settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.errors import ConfigError
from forebay.sharding import ImageFile, printable, valid_text

__all__ = ["ResumePlan", "plan_resume"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumePlan:
    """What an earlier write left."""

    found_bad: Sequence[ImageFile]
    """Those among the stored that it left out; to be told again."""
    new: Sequence[ImageFile]
    """Those that it did not reach."""


def plan_resume(images: Sequence[ImageFile], kept: Sequence[str]) -> ResumePlan:
    """Divide the images by what is stored of them.

    Args:
        images: all of them, in order.
        kept: names of the samples that are stored, in the same order.

    Raises:
        ConfigError: a stored image is not among `images` any more.
    """
    found_bad: list[ImageFile] = []
    stored = 0
    for index, image in enumerate(images):
        if stored == len(kept):
            return ResumePlan(found_bad=found_bad, new=images[index:])
        if valid_text(image.path) == kept[stored]:
            stored += 1
        else:
            found_bad.append(image)
    if stored < len(kept):
        gone = printable(kept[stored])
        raise ConfigError(f"{gone} was stored by the write to be resumed, and is gone; put it back, or write anew")
    return ResumePlan(found_bad=found_bad, new=[])
