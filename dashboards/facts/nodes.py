"""The node of each rank of a job, as far as the run itself shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.ledger import Run

UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of all ranks of the job, seen or not."""

    of: npt.NDArray[np.int64]
    """Number of the node by rank; `UNKNOWN` if the run does not show it."""
    names: tuple[str, ...]
    """By number: the host, or `node 3` if only the ranks per host are on record."""

    @property
    def known(self) -> bool:
        """Whether every rank's node is."""
        return bool((self.of != UNKNOWN).all())


def nodes(run: Run) -> Nodes:
    """Return the nodes: by the hosts on record, else by the ranks a host.

    A run with missing ranks counts too few ranks a host, so its number is not believed.
    """
    whole = not run.ranks_missing
    of = np.full(run.world_size, UNKNOWN, dtype=np.int64)
    if run.rank_hosts and any(host is not None for host in run.rank_hosts):
        hosts = list(dict.fromkeys(host for host in run.rank_hosts if host is not None))
        numbers = {host: number for number, host in enumerate(hosts)}
        for rank, host in zip(run.ranks_seen, run.rank_hosts, strict=True):
            if host is not None:
                of[rank] = numbers[host]
        return Nodes(of, tuple(hosts))
    if whole and len(run.hosts) == 1:
        of[:] = 0
        return Nodes(of, run.hosts)
    if whole and run.ranks_per_host:
        of = np.arange(run.world_size, dtype=np.int64) // run.ranks_per_host
        return Nodes(of, tuple(f"node {number}" for number in range(int(of.max()) + 1)))
    return Nodes(of, ())
