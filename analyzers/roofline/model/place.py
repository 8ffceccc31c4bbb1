"""Positions of the ranks of a group: how many hosts, and how many of its ranks share one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shardtoll.analyzers.roofline.machines.fabric import Fabric
from shardtoll.ledger import Run


@dataclass(frozen=True, slots=True)
class Placement:
    """A group on the machine: `ranks` on `nodes` hosts, at most `ranks_per_node` of them on one."""

    ranks: int
    nodes: int
    ranks_per_node: int
    sharing: int = 1
    """How many such groups send over each host's network cards at the same time."""
    fewest_ranks: int | None = None
    """Ranks on the host that has the fewest; None: as many as on any other."""
    surely_sharing: int | None = None
    """How many groups share the cards at least, if `sharing` was rounded up; None: as many as `sharing`. The
    speed of light counts with these, as it is a lower bound."""

    def __post_init__(self) -> None:
        if self.sharing < 1:
            raise ValueError(f"{self.sharing} groups cannot share a card")
        if self.surely_sharing is not None and not 1 <= self.surely_sharing <= self.sharing:
            raise ValueError(
                f"{self.surely_sharing} groups are not the least that share among {self.sharing}"
            )
        if not 1 <= self.nodes <= self.ranks <= self.nodes * self.ranks_per_node:
            raise ValueError(f"{self.ranks} ranks do not fit {self.nodes} x {self.ranks_per_node}")
        if self.fewest_ranks is not None and not 1 <= self.fewest_ranks <= self.ranks_per_node:
            raise ValueError(
                f"{self.fewest_ranks} of {self.ranks_per_node} ranks are not the fewest of a host"
            )

    @property
    def spans_nodes(self) -> bool:
        """Whether the group has ranks on more than one host."""
        return self.nodes > 1


def one_node(ranks: int) -> Placement:
    """Return the placement of a group whose ranks all share a host."""
    return Placement(ranks, 1, ranks)


def ranks_per_host(run: Run, fabric: Fabric) -> int | None:
    """Return how many consecutive ranks share a host; None if neither run nor fabric tells.

    Hosts of one NVLink domain, as of an NVL72 rack, count as one: between them no network is used. Domains
    are taken to begin with the first rank.
    """
    given = _ranks_per_host(run, fabric)
    if given is None or fabric.ranks_per_domain is None:
        return given
    return max(given, min(int(fabric.ranks_per_domain.value), run.world_size))


def _ranks_per_host(run: Run, fabric: Fabric) -> int | None:
    """Return how many consecutive ranks share a host.

    A run with missing ranks counts too few ranks a host, so its number is believed only when it is whole. In
    a run with missing ranks the hosts of those seen decide, as far as they can. If several numbers fit, the
    fabric's number is taken if it is one of them.
    """
    if not run.ranks_missing and run.ranks_per_host is not None:
        return run.ranks_per_host
    fitting = _fitting(run, fabric)
    if len(fitting) == 1:
        return fitting[0]
    if fitting and (fabric.ranks_per_node is None or fabric.ranks_per_node.value not in fitting):
        return run.world_size if len(run.hosts) == 1 else None
    if fabric.ranks_per_node is not None:
        return int(fabric.ranks_per_node.value)
    return run.world_size if len(run.hosts) == 1 else None


def hosts_note(run: Run, fabric: Fabric) -> str:
    """Return that the hosts of missing ranks are assumed, if it changes the floors; else nothing."""
    fitting, taken = _fitting(run, fabric), _ranks_per_host(run, fabric)
    hosts = {min(number, run.world_size) for number in fitting}
    if not run.ranks_missing or len(hosts) < 2 or taken is None:
        return ""
    fewer = max((number for number in hosts if number < min(taken, run.world_size)), default=None)
    higher = "" if fewer is None else f"; with {fewer} a host floors would be higher"
    return f"the hosts of the missing ranks are unknown: {taken} ranks a host are assumed{higher}"


def _fitting(run: Run, fabric: Fabric) -> tuple[int, ...]:
    """Return the numbers of consecutive ranks a host that fit the hosts of all seen ranks, ascending.

    Those are looked at that divide the job evenly, and the fabric's. Empty if a host is unknown.
    """
    if not run.rank_hosts or None in run.rank_hosts:
        return ()
    divisors = {number for number in range(1, run.world_size + 1) if run.world_size % number == 0}
    if fabric.ranks_per_node is not None:
        divisors.add(int(fabric.ranks_per_node.value))
    return tuple(number for number in sorted(divisors) if _fits(run, number))


def _fits(run: Run, per_host: int) -> bool:
    pairs = {(rank // per_host, host) for rank, host in zip(run.ranks_seen, run.rank_hosts, strict=True)}
    return len(pairs) == len({block for block, _ in pairs}) == len({host for _, host in pairs})


def place(ranks: Sequence[int], per_host: int | None) -> Placement | None:
    """Return where global `ranks` stand when `per_host` consecutive ones share a host; None unknown."""
    if len(ranks) == 1:
        return one_node(1)
    if per_host is None or per_host < 1:
        return None
    hosts = Counter(rank // per_host for rank in ranks)
    most, least = max(hosts.values()), min(hosts.values())
    return Placement(len(ranks), len(hosts), most, fewest_ranks=None if least == most else least)
