"""Which rank of which node takes which place of a global batch: a pure function, the same on every rank.

The samples of a shard go to the node that owns it, so that each node's cache holds a part of the data and not all of
it. Nothing depends on what is cached, and a global batch has the same samples whatever is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from forebay.sharding import rank_slice

__all__ = ["divide_places", "node_of_ranks"]

Int64s = npt.NDArray[np.int64]


def node_of_ranks(world_size: int, nodes: int) -> tuple[int, ...]:
    """The node of each rank: neighbours together, and as even as can be."""
    bounds = [rank_slice(0, world_size, rank=node, world_size=nodes) for node in range(nodes)]
    return tuple(node for node, (first, stop) in enumerate(bounds) for _ in range(first, stop))


def divide_places(owners: Int64s, node_of: Sequence[int], rank: int) -> Int64s:
    """The places of a global batch that one rank takes.

    Each node takes what it owns, from the front, up to the share of its ranks. What is left over goes to the nodes that
    have room, in order. A node's places, those left over by others last, are dealt out to its ranks in turn, so that no
    rank reads them all. On one node: contiguous slices.

    Args:
        owners: int64 (m,), the node that owns the sample at each place.
        node_of: by rank, its node; nodes count from 0.
        rank: whose places are wanted.

    Returns:
        int64 (n,), ascending. The ranks' numbers of places are those of `rank_slice`: they differ by one at most.
    """
    places, world_size = len(owners), len(node_of)
    bounds = [rank_slice(0, places, rank=r, world_size=world_size) for r in range(world_size)]
    if len(set(node_of)) == 1:
        return np.arange(*bounds[rank], dtype=np.int64)
    sizes = np.array([stop - first for first, stop in bounds], np.int64)
    nodes = np.array(node_of, np.int64)
    room = np.bincount(nodes, weights=sizes).astype(np.int64)
    takers = np.full(places, -1, np.int64)
    for node in range(len(room)):
        owned = np.flatnonzero(owners == node)[: room[node]]
        takers[owned] = node
        room[node] -= len(owned)
    left_over = np.flatnonzero(takers < 0)
    given = left_over[np.repeat(np.arange(len(room)), room) == nodes[rank]]
    of_node = np.concatenate((np.flatnonzero(takers == nodes[rank]), given))
    neighbours = np.flatnonzero(nodes == nodes[rank])
    turns = np.concatenate([np.arange(sizes[neighbour]) for neighbour in neighbours])
    dealt_to = np.repeat(neighbours, sizes[neighbours])[np.argsort(turns, kind="stable")]
    return np.sort(of_node[dealt_to == rank])
