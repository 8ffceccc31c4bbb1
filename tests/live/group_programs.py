"""Programs whose process groups come and go while they are audited."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from shardtoll.profiler import audit
from tests.live.told_kinds import report_of


def groups_that_come_and_go() -> dict[str, Any]:
    """Two steps; in each a sub-group of another size is made, used and destroyed."""
    with audit(level="survey") as session:
        for ranks in ([0, 1], [0, 1, 2]):
            with session.step():
                group = dist.new_group(ranks)
                if dist.get_rank() in ranks:
                    dist.all_reduce(torch.ones(8), group=group)
                    dist.destroy_process_group(group)
                dist.all_reduce(torch.ones(4))
    report = report_of(session, "unmatched-collectives")
    if report is None:
        return {}
    return {
        "groups": [(group.name, group.ranks) for group in report.groups],
        "collectives": report.tables["collectives"].to_pylist(),
        "counts": report.tables["counts"].to_pylist(),
        "kinds": [finding.kind for finding in report.findings],
    }
