"""Judges a batch by the noise scale of gradients, and gives the learning rate of another batch."""

from __future__ import annotations

import math

from shardtoll.ledger.answers.advice import BatchAdvice


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
