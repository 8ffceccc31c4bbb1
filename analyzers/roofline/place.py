"""Where the ranks of a group stand: how many hosts, and how many of its ranks share one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shardtoll.analyzers.roofline.fabric import Fabric
from shardtoll.ledger import Run


@dataclass(frozen=True, slots=True)
class Placement:
    """A group on the machine: `ranks` on `nodes` hosts, at most `ranks_per_node` of them on one."""

    ranks: int
    nodes: int
    ranks_per_node: int

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= self.ranks <= self.nodes * self.ranks_per_node:
            raise ValueError(f"{self.ranks} ranks do not fit {self.nodes} x {self.ranks_per_node}")

    @property
    def spans_nodes(self) -> bool:
        """Whether the group has ranks on more than one host."""
        return self.nodes > 1


def one_node(ranks: int) -> Placement:
    """Return the placement of a group whose ranks all share a host."""
    return Placement(ranks, 1, ranks)


def ranks_per_host(run: Run, fabric: Fabric) -> int | None:
    """Return how many consecutive ranks share a host; None where neither run nor fabric tells.

    A run with missing ranks counts too few ranks a host, so it is believed only when it is whole.
    """
    if not run.ranks_missing and run.ranks_per_host is not None:
        return run.ranks_per_host
    if fabric.ranks_per_node is not None:
        return int(fabric.ranks_per_node.value)
    return run.world_size if len(run.hosts) == 1 else None


def place(ranks: Sequence[int], per_host: int | None) -> Placement | None:
    """Return where global `ranks` stand when `per_host` consecutive ones share a host; None unknown."""
    if len(ranks) == 1:
        return one_node(1)
    if per_host is None or per_host < 1:
        return None
    hosts = Counter(rank // per_host for rank in ranks)
    return Placement(len(ranks), len(hosts), max(hosts.values()))
