"""Advice on checkpoints: what one costs, how often to write one, and what failures leave of the time."""

from __future__ import annotations

from shardtoll.analyzers.shared.checkpoint_interval import (
    LLAMA3,
    FailureRate,
    best_interval_s,
    goodput,
)
from shardtoll.ledger.answers.advice import FailureAdvice


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

    `blocked_s`: measured time that one keeps training waiting; None estimates it from its bytes
    (fp32 parameters and two moments, 12 a parameter) and `write_gbps`, 1 GB/s for each node up to 100 if
    that is None. An asynchronous one blocks only for the copy to host memory, 20 GB/s a GPU over PCIe.
    """
    size = 12 * parameters
    rate_gbps = write_gbps
    if blocked_s is None:
        rate_gbps = write_gbps if write_gbps is not None else float(min(100, max(1, gpus // 8)))
        blocked_s = size / gpus / 20e9 if asynchronous else size / (rate_gbps * 1e9)
    if recovery_s is None:
        # Noticing, scheduling and starting: about 10 minutes; loading at the rate of writing.
        recovery_s = 600 + size / ((rate_gbps or 1.0) * 1e9)
    per_day = failures_per_day if failures_per_day is not None else rate.per_gpu_day * gpus
    source = "given" if failures_per_day is not None else rate.source
    mean_s = 86400 / per_day
    interval = best_interval_s(blocked_s, mean_s)
    around = [interval * factor for factor in (0.25, 0.5, 1, 2, 4)]
    return FailureAdvice(
        checkpoint_bytes=size,
        blocked_s=blocked_s,
        write_gbps=rate_gbps,
        recovery_s=recovery_s,
        failures_per_day=per_day,
        mean_hours_between=mean_s / 3600,
        interval_s=interval,
        goodput=goodput(interval, blocked_s, recovery_s, mean_s),
        source=source,
        at_intervals=tuple((each, goodput(each, blocked_s, recovery_s, mean_s)) for each in around),
    )
