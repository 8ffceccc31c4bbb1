"""Advice on checkpoints: what one costs, how often to write one, and what failures leave of the time."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.shared.checkpoint_interval import (
    LLAMA3,
    FailureRate,
    best_interval_s,
    goodput,
)
from shardtoll.ledger.answers.advice import FailureAdvice, Saving

RESTART_S: Final = 600.0
"""Assumed time to notice a failure, restart and warm up. Llama 3 405B kept more than 90 % of 54 days with 466
interruptions (arXiv 2407.21783, 3.3.4). So each cost at most 17 minutes, the load and the lost work
included."""
_BYTES_PER_PARAMETER: Final = 12
"""fp32 parameters and the two moments of Adam."""
_NODE_GBPS: Final = 1.0
_MOST_GBPS: Final = 100.0
"""Storage is assumed to take 1 GB/s per node of 8 GPUs, up to 100 GB/s of all."""
_HOST_GBPS: Final = 20.0
"""PCIe copy to host memory, GB/s per GPU: what an asynchronous save blocks for."""


def failure_advice(
    *,
    gpus: int,
    parameters: int,
    rate: FailureRate = LLAMA3,
    failures_per_day: float | None = None,
    blocked_s: float | None = None,
    write_gbps: float | None = None,
    recovery_s: float | None = None,
    asynchronous: bool = False,
) -> FailureAdvice:
    """Advise how often to write checkpoints.

    `blocked_s`: measured time that one keeps training waiting; None estimates it from its bytes and
    `write_gbps`. `write_gbps` None is what storage is assumed to take. Loading is assumed as fast as writing.
    `recovery_s`: from the failure to the first new step, the load included; None assumes it.
    """
    size = _BYTES_PER_PARAMETER * parameters
    gbps = write_gbps if write_gbps is not None else min(_MOST_GBPS, max(1, gpus // 8) * _NODE_GBPS)
    stored_s = size / (gbps * 1e9)
    copied_s = size / gpus / (_HOST_GBPS * 1e9)
    measured = blocked_s is not None
    if blocked_s is None:
        blocked_s = copied_s if asynchronous else stored_s
    load_s = None if recovery_s is not None else stored_s
    if recovery_s is None:
        recovery_s = RESTART_S + stored_s
    per_day = failures_per_day if failures_per_day is not None else rate.per_gpu_day * gpus
    mean_s = 86400 / per_day
    # An asynchronous save is written during the next steps: the one after it cannot begin before.
    interval = best_interval_s(blocked_s, mean_s)
    if asynchronous:
        interval = max(interval, stored_s)
    behind = max(best_interval_s(copied_s, mean_s), stored_s)
    around = [interval * factor for factor in (0.25, 0.5, 1, 2, 4)]
    return FailureAdvice(
        checkpoint_bytes=size,
        blocked_s=blocked_s,
        write_gbps=gbps if write_gbps is not None or not measured else None,
        recovery_s=recovery_s,
        load_s=load_s,
        lost_s=interval / 2,
        failures_per_day=per_day,
        mean_hours_between=mean_s / 3600,
        interval_s=interval,
        goodput=goodput(interval, blocked_s, recovery_s, mean_s),
        source="given" if failures_per_day is not None else rate.source,
        measured=measured,
        asynchronous=Saving(copied_s, behind, goodput(behind, copied_s, recovery_s, mean_s)),
        at_intervals=tuple((each, goodput(each, blocked_s, recovery_s, mean_s)) for each in around),
    )
