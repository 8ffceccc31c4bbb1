"""By what compute takes longer on another GPU, without a look at its operators."""

from __future__ import annotations

from shardtoll.analyzers.forecast.compute.cards import Card
from shardtoll.analyzers.forecast.plan.constants import fitted


def compute_factors(before: Card | None, after: Card | None) -> tuple[float, float, float]:
    """Return by what compute takes longer: at least, expected, at most.

    Matmuls go with sustained rates, the rest with memory bandwidth; how much is which, the band holds both.
    1 if a GPU is unknown or both are the same.
    """
    if before is None or after is None or before.gpu == after.gpu:
        return 1.0, 1.0, 1.0
    matmul = _rate(before) / _rate(after)
    memory = before.memory_gbps / after.memory_gbps
    return min(matmul, memory), matmul**0.7 * memory**0.3, max(matmul, memory)


def _rate(card: Card) -> float:
    sustained = fitted().get("sustained", f"{card.key}.bfloat16", card.key)
    return card.peak_tflops("bfloat16") * card.matmul_share * sustained
