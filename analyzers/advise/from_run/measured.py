"""A run's measurements other than step time: how fast its loaders delivered, the cost of a checkpoint.

The gradient noise scale of a run whose checks recorded its gradients, from one step to the next.

McCandlish et al. (arXiv 1812.06162) estimate it from gradients of a small and a large batch. Gradients of two
steps tell the same: |g|^2 holds the signal and the noise of one batch. The product of two of them holds the
signal alone, as their noises are independent. Each is divided by its own norm, as clipping, a gradient scaler
and a model that learns change the norms from step to step. The result is their cosine. Sketches are linear,
so that it is known from the distance of the two, which the sketches' difference estimates.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import Any, Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.advise.from_run.step_layout import degrees_of
from shardtoll.analyzers.shared.checkpoint_bytes import written
from shardtoll.analyzers.shared.whole_gradients import gradients, wholes
from shardtoll.ledger import SKETCH_COLUMNS, Report, UsageError

LEAST_ERRORS: Final = 3.0
"""The signal must be as many of its own standard errors: else noise hides it."""

LEAST_ALIKE: Final = 1e-2
"""Replicas' gradients may lie apart by this share of the norm: they differ by rounding."""


def measured_beside(report: Report, tokens: int | None = None) -> dict[str, Any]:
    """Return the fields of `Beside` that the run measured; those it did not are missing.

    `tokens`: of one optimizer step over all replicas; None if that is not known.
    """
    made: dict[str, Any] = {}
    rates = loader_rates(report)
    if rates is not None:
        made["loader_sequences_per_s"], made["loader_most_sequences_per_s"] = rates
    made.update(checkpoint_cost(report))
    if tokens is not None and (batches := noise_scale_in_batches(report)) is not None:
        made["noise_scale_tokens"] = batches * tokens
    return made


def checkpoint_cost(report: Report) -> dict[str, Any]:
    """Seconds that one checkpoint blocks the rank that it blocks longest, and GB/s of all ranks if known."""
    if report.run.source == "dry":
        return {}
    rows = [row for row in report.tables["stalls"].to_pylist() if row["kind"] == "checkpoint"]
    by_rank: dict[int, list[int]] = {}
    for row in rows:
        spent = by_rank.setdefault(row["rank"], [0, 0])
        spent[0] += row["total_ns"]
        spent[1] += row["count"]
    if not by_rank:
        return {}
    blocked_ns, saves = max(by_rank.values())
    made: dict[str, Any] = {"checkpoint_blocked_s": blocked_ns / max(1, saves) / 1e9}
    wrote = written(rows)
    if wrote is not None:
        made["checkpoint_gbps"] = wrote.gbps
    return made


def loader_rates(report: Report) -> tuple[float, float | None] | None:
    """Sequences per second and node that the loaders delivered at least, and can deliver at most.

    A rank got `samples` in the time of its steps: the loaders can do that. They may do more if the loop did
    not wait for them. The limit is the samples by the time that it waited. Workers load during a step
    too. None if it never waited. Ranks of one replica read the same sequences, which count once. None if
    no fetch is on record, the replicas are unknown, or a dry run made it.
    """
    if report.run.source == "dry":
        return None
    took = {(row["step"], row["rank"]): row["duration_ns"] for row in report.tables["steps"].to_pylist()}
    by_rank: dict[int, dict[int, list[int]]] = {}
    for row in report.tables["stalls"].to_pylist():
        if row["kind"] != "data" or not row["samples"] or not took.get((row["step"], row["rank"])):
            continue
        spent = took[row["step"], row["rank"]]
        got = by_rank.setdefault(row["rank"], {}).setdefault(row["step"], [0, 0, spent])
        got[0] += row["samples"]
        got[1] += row["total_ns"]
        got[2] += row["before_ns"] or 0
    if not by_rank:
        return None
    sums = [tuple(map(sum, zip(*steps.values(), strict=True))) for steps in by_rank.values()]
    replicas = _replicas_of_a_node(report)
    if replicas is None:
        return None
    node = replicas / len(sums)
    least = sum(1e9 * samples / whole for samples, _, whole in sums) * node
    if not all(waited for _, waited, _ in sums):
        return least, None
    return least, max(least, sum(1e9 * samples / waited for samples, waited, _ in sums) * node)


def _replicas_of_a_node(report: Report) -> int | None:
    """Replicas whose sequences a node reads, of first pipeline stages if there are some; None if unknown."""
    run = report.run
    try:
        degrees = degrees_of(report)
    except UsageError:
        return None
    ranks = run.ranks_per_host or len(run.ranks_seen)
    return min(degrees.dp, ceil(ranks / (degrees.tp * degrees.cp)))


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
