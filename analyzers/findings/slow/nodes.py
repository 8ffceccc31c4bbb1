"""On which node each rank of the job stands."""

from __future__ import annotations

from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.roofline import ranks_per_host


class Nodes(Struct, frozen=True):
    """The node of each rank."""

    of: tuple[int, ...]
    """By rank."""
    certain: bool
    """Whether the job itself gives the nodes; else they are taken from the fabric."""

    @property
    def count(self) -> int:
        """How many nodes the job has."""
        return len(set(self.of))


def nodes_of(context: Context) -> Nodes | None:
    """Return the nodes; None if neither hosts, launcher nor fabric give the nodes of all ranks."""
    run = context.ledger.run
    names = run.rank_hosts
    if not run.ranks_missing and len(names) == run.world_size and len(set(names)) > 1 and None not in names:
        order = {host: number for number, host in enumerate(dict.fromkeys(names))}
        return Nodes(tuple(order[host] for host in names), certain=True)
    per_host = ranks_per_host(run, context.fabric)
    if per_host is None:
        return None
    said = run.ranks_per_host is not None and not run.ranks_missing
    return Nodes(tuple(rank // per_host for rank in range(run.world_size)), certain=said)
