"""Checkpoints against failures: how often to write one, and what share of the time makes progress.

With a mean time between failures M and a checkpoint that blocks for d, the best interval is about sqrt(2 d M)
(Young 1974). Daly's higher order is sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d (Daly 2006, "A higher
order estimate of the optimum checkpoint interval").
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct


class FailureRate(Struct, frozen=True):
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


def best_interval_s(blocked_s: float, mean_between_s: float) -> float:
    """Daly's interval between checkpoints; the mean time itself if a checkpoint costs twice that."""
    if blocked_s <= 0:
        return 0.0
    if blocked_s >= 2 * mean_between_s:
        return mean_between_s
    ratio = blocked_s / (2 * mean_between_s)
    return math.sqrt(2 * blocked_s * mean_between_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - blocked_s


def goodput(interval_s: float, blocked_s: float, recovery_s: float, mean_between_s: float) -> float:
    """Return the share of the time that makes progress, if failures are a Poisson process.

    Daly's model of exponential failures: work of `interval_s` and its checkpoint take M exp(R/M) (exp((t +
    d)/M) - 1) on average.
    """
    if interval_s <= 0:
        return math.exp(-recovery_s / mean_between_s)
    exponent = (interval_s + blocked_s) / mean_between_s
    if exponent > 500:
        return 0.0
    spent = mean_between_s * math.exp(min(500.0, recovery_s / mean_between_s)) * math.expm1(exponent)
    return min(1.0, interval_s / spent)
