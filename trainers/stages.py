"""Which modules of a model make which stage of a pipeline, and on which rank each stage is. It runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from forebay.errors import ConfigError

__all__ = ["StageModules", "check_cuts", "cut_evenly", "stages_of_rank"]


def cut_evenly(sizes: Sequence[int], parts: int) -> list[int]:
    """Cut a row of modules into `parts` neighbouring ones so that the largest is as small as can be.

    Args:
        sizes: of each module, in parameters.
        parts: at most as many as there are modules.

    Returns:
        The index of each part's first module but the first's; `parts` - 1 of them.

    Raises:
        ConfigError: there are fewer modules than parts.
    """
    if not 1 <= parts <= len(sizes):
        raise ConfigError(
            f"{len(sizes)} modules cannot make {parts} stages of at least one each; give the model as a longer list of "
            "modules, or use fewer stages"
        )
    before = [0]
    for size in sizes:
        before.append(before[-1] + size)
    # best[m]: the smallest possible largest part of the first m modules in so many parts, and where its last one begins
    best = [(total, 0) for total in before]
    ways = [best]
    for part in range(2, parts + 1):
        best = [
            min((max(ways[-1][cut][0], before[m] - before[cut]), cut) for cut in range(part - 1, m))
            if m >= part
            else (before[-1] + 1, 0)
            for m in range(len(sizes) + 1)
        ]
        ways.append(best)
    cuts, end = list[int](), len(sizes)
    for best in reversed(ways[1:]):
        end = best[end][1]
        cuts.append(end)
    return cuts[::-1]


def check_cuts(cuts: Sequence[int], modules: int, parts: int) -> list[int]:
    """The cuts that were told, checked: ascending, each inside the model, one fewer than parts."""
    inside = [0, *cuts, modules]
    if len(cuts) != parts - 1 or any(a >= b for a, b in pairwise(inside)):
        raise ConfigError(
            f"cuts={list(cuts)} do not make {parts} stages of {modules} modules; give {parts - 1} ascending indices "
            f"between 1 and {modules - 1}: where each stage but the first begins"
        )
    return list(cuts)


def stages_of_rank(rank: int, *, ranks: int, stages: int) -> list[int]:
    """The stages that lie on a rank: each `ranks`-th, so that a batch passes through all ranks again and again."""
    return list(range(rank, stages, ranks))


class StageModules(nn.Module):
    """One stage: modules of the model one after another, under the numbers that they have in the model."""

    def __init__(self, modules: Sequence[nn.Module], first: int) -> None:
        super().__init__()
        for i, module in enumerate(modules, start=first):
            self.add_module(str(i), module)

    def forward(self, x: Tensor) -> Tensor:
        """Run them in order."""
        for module in self.children():
            x = module(x)
        return x
