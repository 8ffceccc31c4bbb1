"""Checkpoints against failures: how often to write one, and what share of the time makes progress.

Young 1974 and Daly 2006 ("A higher order estimate of the optimum checkpoint interval"): with a mean time
between failures M and a checkpoint that blocks for d, the best interval is about sqrt(2 d M), by
Daly's higher order sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from shardtoll.ledger.answers.advice import FailureAdvice


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Failures that stop a job, per GPU and day."""

    name: str
    per_gpu_day: float
    source: str


LLAMA3: Final = FailureRate(
    "llama3-16k",
    419 / (16384 * 54),
    "419 unexpected interruptions in 54 days on 16,384 H100s (The Llama 3 Herd of Models, "
    "arXiv 2407.21783, 3.3.4)",
)
OPT: Final = FailureRate(
    "opt-175b",
    105 / (992 * 60),
    "at least 105 restarts in two months on 992 A100s (OPT, arXiv 2205.01068, 2.5)",
)
RATES: Final = {rate.name: rate for rate in (LLAMA3, OPT)}


def best_interval_s(blocked_s: float, mean_between_s: float) -> float:
    """Daly's interval between checkpoints; the mean time itself if a checkpoint costs twice that."""
    if blocked_s <= 0:
        return 0.0
    if blocked_s >= 2 * mean_between_s:
        return mean_between_s
    ratio = blocked_s / (2 * mean_between_s)
    return math.sqrt(2 * blocked_s * mean_between_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - blocked_s


def goodput(interval_s: float, blocked_s: float, recovery_s: float, mean_between_s: float) -> float:
    """Share of the time that makes progress which stays, failures being a Poisson process.

    Daly's model of exponential failures: a piece of work of `interval_s` with its checkpoint takes
    M exp(R/M) (exp((t + d)/M) - 1) on average.
    """
    if interval_s <= 0:
        return math.exp(-recovery_s / mean_between_s)
    exponent = (interval_s + blocked_s) / mean_between_s
    if exponent > 500:
        return 0.0
    spent = mean_between_s * math.exp(min(500.0, recovery_s / mean_between_s)) * math.expm1(exponent)
    return min(1.0, interval_s / spent)


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
