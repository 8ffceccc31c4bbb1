"""What a batch means: noise scale of gradients, learning rate for another batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardtoll.ledger.answers.advice import BatchAdvice


def noise_scale(
    small_norms_squared: Sequence[float], large_norm_squared: float, small: float, large: float
) -> float | None:
    """Gradient noise scale, in the unit of the batches; None if noise hides the gradient.

    `small_norms_squared`: squared norm of each replica's own gradient, of `small` tokens;
    `large_norm_squared`: of their mean, of `large` tokens. Unbiased estimates of
    McCandlish et al. (arXiv 1812.06162, appendix A.1).
    Raises ValueError for batches that do not differ.
    """
    if not 0 < small < large or not small_norms_squared:
        raise ValueError(f"batches {small} and {large} do not differ")
    mean_small = math.fsum(small_norms_squared) / len(small_norms_squared)
    signal = (large * large_norm_squared - small * mean_small) / (large - small)
    noise = (mean_small - large_norm_squared) / (1 / small - 1 / large)
    if signal <= 0 or noise < 0:
        return None
    return noise / signal


def batch_advice(
    sequences: int, sequence: int, before: int | None = None, noise_scale_tokens: float | None = None
) -> BatchAdvice:
    """Say what the effective batch means. `before`: sequences of the batch in use, None if unknown."""
    tokens = sequences * sequence
    kept = before in (None, sequences)
    factor = None
    if not kept:
        assert before is not None
        ratio = sequences / before
        factor = (math.sqrt(ratio), ratio)
        text = (
            f"The batch changes from {before * sequence:,} to {tokens:,} tokens. Adam's learning rate "
            f"usually follows the square root (x {factor[0]:.2f}), SGD's the ratio (x {factor[1]:.2f})."
        )
    else:
        text = (
            f"Every layout keeps the batch of {tokens:,} tokens ({sequences:,} sequences): "
            "micro-batch x replicas x accumulation."
        )
    if noise_scale_tokens is not None:
        side = "above" if tokens > noise_scale_tokens else "below"
        text += (
            f" It is {side} the measured noise scale of {noise_scale_tokens:,.0f} tokens: beyond that a "
            "larger batch saves few steps."
        )
    return BatchAdvice(sequences, tokens, kept, noise_scale_tokens, factor, text)
