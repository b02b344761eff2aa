"""The part of an epoch's order that one node reads whole shards of: what its cache looks ahead in.

It says which shards are the node's; which rank takes which sample is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from forebay.sharding.order import EpochOrder, ShardSpan

__all__ = ["NodeOrder"]

Int64s = npt.NDArray[np.int64]


class NodeOrder:
    """The shards of one node: those at places s of the epoch's order with s mod `nodes` == `node`. Thread-safe.

    Every shard is some node's in every epoch, and another node's in the next one.

    Args:
        order: of the epoch.
        node: from 0.
        nodes: of the job.
    """

    def __init__(self, order: EpochOrder, *, node: int, nodes: int) -> None:
        self.order = order
        self.node, self.nodes = node, nodes
        self.samples = order.samples
        """Positions of the epoch, over all nodes."""

    def owns(self, shards: Int64s) -> npt.NDArray[np.bool_]:
        """Which of the shards, int64 (N,), are the node's: bool (N,)."""
        mine: npt.NDArray[np.bool_] = self.order.places(shards) % self.nodes == self.node
        return mine

    def spans(self, start: int = 0) -> Iterator[ShardSpan]:
        """Those of `EpochOrder.spans` that are of the node's shards."""
        return (span for span in self.order.spans(start) if self.owns(np.array([span.shard]))[0])

    def next_use(self, shards: Int64s, position: int) -> Int64s:
        """As `EpochOrder.next_use`; shards of other nodes are not used again."""
        return np.where(self.owns(shards), self.order.next_use(shards, position), self.samples)

    def following(self) -> NodeOrder:
        """The node's part of the next epoch."""
        return NodeOrder(self.order.following(), node=self.node, nodes=self.nodes)
