"""The gradient noise scale of a run whose checks recorded its gradients, from one step to the next.

McCandlish et al. (arXiv 1812.06162) estimate it from gradients of a small and a large batch. Gradients of two
steps tell the same: |g|^2 holds the signal and the noise of one batch. The product of two of them holds the
signal alone, as their noises are independent. Each is divided by its own norm, as clipping, a gradient scaler
and a model that learns change the norms from step to step. The result is their cosine. Sketches are linear,
so that it is known from the distance of the two, which the sketches' difference estimates.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd

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
    noise. Gradients are left out if they are not finite, not of the whole parameter or not identical on
    replicas.
    """
    if report.run.source == "dry":
        return None
    whole = wholes(report, gradients(report))
    if whole.empty:
        return None
    sound = whole["finite"] & ~whole["disagree"] & (whole["covered"] == whole["numel"])
    whole = whole[sound & (whole["spread"] < LEAST_ALIKE)]
    steps = sorted(set(whole.index.get_level_values("step")))
    cosines, errors = [], []
    for step, after in pairwise(steps):
        if after != step + 1:
            continue
        one, two = whole.xs(step, level="step"), whole.xs(after, level="step")
        names = one.index.intersection(two.index)
        pair = _cosine(one.loc[names], two.loc[names])
        if pair is not None:
            cosines.append(pair[0])
            errors.append(pair[1])
    if not cosines:
        return None
    cosine = float(np.mean(cosines))
    error = float(np.sqrt(np.sum(np.square(errors)))) / len(errors)
    if not LEAST_ERRORS * error < cosine < 1:
        return None
    return (1 - cosine) / cosine


def _cosine(one: pd.DataFrame, two: pd.DataFrame) -> tuple[float, float] | None:
    """Return the cosine of two steps' gradients and its standard error; None of gradients without a norm."""
    columns = list(SKETCH_COLUMNS)
    sketches = [each[columns].to_numpy(np.float64) for each in (one, two)]
    norms = [float(np.linalg.norm(each["norm"].to_numpy(np.float64))) for each in (one, two)]
    if not all(0 < norm < np.inf for norm in norms):
        return None
    apart = ((sketches[0] / norms[0] - sketches[1] / norms[1]) ** 2).mean(axis=1)
    # A mean of n squares of sums of random signs is off by sqrt(2 / n) of itself.
    error = np.sqrt(2 / len(columns)) * np.linalg.norm(apart) / 2
    return float(1 - apart.sum() / 2), float(error)
