"""Jobs whose late ranks are known: one collective every 10 ms on four ranks."""

from __future__ import annotations

from shardtoll.analyzers import run
from shardtoll.ledger import Leadup
from tests.unit.analyzers.fabrics import ROUND
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of

RANKS = 4
EVERY = 10 * MS


def leadup(rank, index, late, **parts):
    given = dict.fromkeys(("comm_ns", "copy_ns", "data_ns", "sync_ns", "host_ns"), 0) | {
        "compute_ns": 4 * MS,
        "phase": "backward",
    }
    given |= {name: value for name, value in parts.items() if late}
    return Leadup(0, rank, index, since_ns=index * EVERY, **given)


SLOW = {"late": 0, "transfer": 8 * MS}
ON_DEVICES = run_of(RANKS, backend="nccl", device="cuda")


def job(late_ranks, late=2 * MS, transfer=1 * MS, exposed=None, **parts):
    """One collective every 10 ms on four ranks; `late_ranks[n]` comes `late` after the others to the n-th."""
    rows, leadups = [], []
    for n, late_rank in enumerate(late_ranks):
        end = (n + 1) * EVERY
        for rank in range(RANKS):
            long = transfer + (0 if rank == late_rank else late)
            rows.append(
                collective(
                    rank=rank,
                    seq=n + 1,
                    group_size=RANKS,
                    start_ns=end - long,
                    duration_ns=long,
                    exposed_ns=long if exposed is None else exposed,
                )
            )
            leadups.append(leadup(rank, n, rank == late_rank, **parts))
    return rows, leadups


def reported(rows, leadups=(), analyze=run, **given):
    about = given.pop("run", run_of(RANKS))
    return analyze(ledger(rows, run=about, leadups=leadups, **given))


def with_floors(about=ON_DEVICES, **given):
    rows, leadups = job([2] * 5, **SLOW)
    return run(ledger(rows, run=about, leadups=leadups, **given), ROUND)
