"""The device idle while the host fetches a batch."""

from __future__ import annotations

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.stalled import costs, finding, lost, often
from shardtoll.analyzers.words import ranks
from shardtoll.ledger import Finding, Remedy

CODE = (
    "loader = DataLoader(dataset, batch_size=batch_size, num_workers=8, pin_memory=True,\n"
    "                    prefetch_factor=4, persistent_workers=True)"
)


def find(context: Context) -> list[Finding]:
    """Return at most one finding. Toll: idle time per step during data loading, on the worst rank."""
    return [
        finding(
            one,
            "data-stall",
            f"the device is idle for {costs(one)} while its batch is fetched, "
            f"{often(one.line.figures['count'])}, "
            f"on {ranks(one.line.ranks)}",
            Remedy(
                "Fetch batches in worker processes ahead of the step, and copy them from pinned memory. "
                "Where "
                "that is done, the workers are too slow: more of them, cheaper transforms, nearer data.",
                CODE,
                "the same step with its batch ready",
            ),
            saving_ns=one.lost_ns,
        )
        for one in lost(context, "data")
    ]
