"""Whether ranks that compute on CPUs share cores, so that each delays the others."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.ledger import Notice, Run


class Crowded(Struct, frozen=True):
    """A host with fewer CPU cores than ranks."""

    ranks: int
    cores: int
    first_rank: int


def crowded(context: Context) -> Crowded | None:
    """Return the host with most ranks if they share cores; None if each has its own, or on devices.

    The system's scheduler then decides which rank comes last; it causes a finding only if that rank slept.
    """
    run = context.ledger.run
    on_host, first_rank = _most_on_a_host(run)
    if not context.on_cpu or run.cores is None or on_host <= run.cores:
        return None
    return Crowded(on_host, run.cores, first_rank)


def crowded_notice(context: Context) -> tuple[Notice, ...]:
    """Return the notice about shared cores, once; empty if ranks have their own."""
    shared = crowded(context)
    if shared is None:
        return ()
    cores = "one CPU core" if shared.cores == 1 else f"{shared.cores} CPU cores"
    text = (
        f"{shared.ranks} ranks share {cores} of a host and delay each other. So waiting for a late rank is "
        "a finding only if it slept. Give each rank a core to see who else is late"
    )
    return (Notice(shared.first_rank, "cores-shared", text),)


def _most_on_a_host(run: Run) -> tuple[int, int]:
    """Return how many ranks stand on the host with most, as far as known, and the first seen of them."""
    seen = [host for host in run.rank_hosts if host is not None]
    first = run.ranks_seen[0] if run.ranks_seen else 0
    if seen and len(seen) == len(run.ranks_seen):
        host, count = Counter(run.rank_hosts).most_common(1)[0]
        first = run.ranks_seen[run.rank_hosts.index(host)]
        return max(count, run.ranks_per_host or 0), first
    if len(run.hosts) == 1 and run.ranks_per_host is None:
        return len(run.ranks_seen), first
    return run.ranks_per_host or 0, first
