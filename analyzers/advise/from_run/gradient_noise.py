"""The gradient noise scale of a run whose checks recorded its gradients, from one step to the next.

McCandlish et al. (arXiv 1812.06162) estimate it from gradients of a small and a large batch. Gradients of two
steps tell the same: |g|^2 holds the signal and the noise of one batch, and the product of two of them the
signal alone, for their noises are independent. Sketches are linear, so that the product is known from
|g - h|^2, which the sketches' difference estimates.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from shardtoll.analyzers.shared.whole_gradients import gradients, wholes
from shardtoll.ledger import SKETCH_COLUMNS, Report

LEAST_ERRORS: Final = 3.0
"""The signal must be as many of its own standard errors: else noise hides it."""

LEAST_ALIKE: Final = 1e-2
"""Replicas' gradients may lie apart by this share of the norm: they differ by rounding."""


def noise_scale_in_batches(report: Report) -> float | None:
    """Return the noise scale as a multiple of the batch of one optimizer step.

    None without gradients of two steps (`audit(checks=("gradients",))`), and if noise hides the signal. Only
    steps that follow each other are compared, as parameters change; what they change in between counts as
    noise. Gradients that are not finite, not of the whole parameter or not alike on replicas are left out.
    """
    if report.run.source == "dry":
        return None
    whole = wholes(report, gradients(report))
    if whole.empty:
        return None
    sound = whole["finite"] & ~whole["disagree"] & (whole["covered"] == whole["numel"])
    whole = whole[sound & (whole["spread"] < LEAST_ALIKE)]
    steps = sorted(set(whole.index.get_level_values("step")))
    squares, products, errors = [], [], []
    for step, after in pairwise(steps):
        if after != step + 1:
            continue
        one, two = whole.xs(step, level="step"), whole.xs(after, level="step")
        names = one.index.intersection(two.index)
        if not len(names):
            continue
        one, two = one.loc[names], two.loc[names]
        columns = list(SKETCH_COLUMNS)
        apart = (one[columns].to_numpy(np.float64) - two[columns].to_numpy(np.float64)) ** 2
        apart_square = apart.mean(axis=1)
        both = (one["norm"].to_numpy(np.float64) ** 2 + two["norm"].to_numpy(np.float64) ** 2).sum()
        squares.append(both / 2)
        products.append((both - apart_square.sum()) / 2)
        # A mean of n squares of sums of random signs is off by sqrt(2 / n) of itself.
        errors.append(np.sqrt(2 / len(columns)) * np.sqrt((apart_square**2).sum()) / 2)
    if not products:
        return None
    signal, power = float(np.mean(products)), float(np.mean(squares))
    error = float(np.sqrt(np.sum(np.square(errors)))) / len(errors)
    if signal <= LEAST_ERRORS * error or power <= signal:
        return None
    return (power - signal) / signal
