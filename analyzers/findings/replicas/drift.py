"""Parameters and buffers that replicas hold and that are not equal any more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas import gradients
from shardtoll.analyzers.findings.replicas.agreement import EPS, Split, looks, split, suspects
from shardtoll.analyzers.findings.replicas.by_design import design
from shardtoll.analyzers.findings.replicas.gradients import GROUP_ABOVE, NAMED, RANKS_SHOWN
from shardtoll.analyzers.findings.replicas.replica_remedies import drift_remedy
from shardtoll.analyzers.findings.replicas.replicas import Replicas, replicas
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import SKETCH_COLUMNS, Evidence, Finding, Where
from shardtoll.ledger.words.human import plural as times
from shardtoll.ledger.words.human import ranks as rank_words
from shardtoll.ledger.words.names import shortened

BEFORE: Final = -1
"""Stands for the look before the first step."""


class Drift(Struct, frozen=True):
    """Replicas that hold different values."""

    replicas: Replicas
    split: Split
    """At the last look."""
    first: int
    """Step after which they were first seen to differ; BEFORE where they began so."""
    equal_before: int | None
    """The last step after which they were seen equal."""
    looks: int
    first_relative: float | None
    unless: str | None = None
    """Condition, in words, under which it is right all the same."""


def _drifts(context: Context) -> list[Drift]:
    values = context.values
    values = keep(values, (values["kind"] == "parameter") & (values["numel"] > 0))
    if values["step"].isna().all():
        # Before the first step alone: nobody asked for replicas.
        return []
    rows = values.assign(step=values["step"].fillna(BEFORE).astype(np.int64))
    sets = replicas(context)
    drifts = []
    differing = suspects(rows, sets)
    looked = rows[rows["name"].isin(differing["name"].unique()).to_numpy(dtype=bool)]
    histories = {str(name): of_name for name, of_name in looked.groupby("name", observed=True)}
    by_set: Any = differing.groupby("set", sort=False)
    for number, of_set in by_set:
        copies = sets[int(number)]
        seen: list[tuple[int, Split]] = []
        history = histories[copies.name]
        for step, at_step in looks(of_set):
            eps = EPS.get(str(at_step["dtype"].iloc[0]), EPS["float32"])
            limit = _limit(history, copies, step, eps)
            how = split(at_step, copies.ranks, eps=limit**2, noise=0.0, absent_counts=False)
            if how is not None:
                seen.append((step, how))
        if all(step == BEFORE for step, _ in seen):
            # The first step made them equal, as when it begins with a broadcast.
            continue
        why = design(context, copies)
        if why is not None and why.unless is None:
            continue
        first, how = seen[0]
        steps = sorted(int(step) for step in history["step"].unique())
        before = [step for step in steps if step < first]
        drifts.append(
            Drift(
                copies,
                seen[-1][1],
                first,
                before[-1] if before else None,
                len(steps),
                how.relative,
                None if why is None else why.unless,
            )
        )
    return drifts


def _limit(history: pd.DataFrame, copies: Replicas, step: int, eps: float) -> float:
    """Return how far apart, relative to their size, rounding may have put replicas by this step.

    The limit is sqrt(eps) of the way that the first of them has gone since the first look: their gradients
    may be that far apart. One spacing of the values themselves is added. A gradient that is not
    reduced puts them apart by about that whole way.
    """
    of_rank = history[(history["rank"] == copies.ranks[0]).to_numpy(dtype=bool)].sort_values("step")
    sketches = of_rank[list(SKETCH_COLUMNS)].to_numpy(dtype=np.float64, na_value=np.nan)
    steps = of_rank["step"].to_numpy(dtype=np.int64)
    number = int(np.searchsorted(steps, step))
    if number >= len(steps) or np.isnan(sketches[[0, number]]).any():
        return eps
    size = math.sqrt(float(np.mean(sketches[number] ** 2)))
    way = math.sqrt(float(np.mean((sketches[number] - sketches[0]) ** 2)))
    return math.sqrt(eps) * way / size + eps if size > 0 else eps


def find(context: Context) -> list[Finding]:
    """Return one finding a parameter whose replicas hold different values, or one for many of them."""
    if context.values.empty:
        return []
    apart = gradients.apart(context)
    wrong = {difference.replicas.name for difference in apart}
    # A parameter that may be right, and that a gradient's finding names, is not named twice.
    explained = {difference.replicas.name for difference in apart if difference.unless is not None}
    alike: dict[tuple[object, ...], dict[str, list[Drift]]] = {}
    for drift in _drifts(context):
        name = drift.replicas.name
        if drift.unless is not None and name in explained:
            continue
        key = (drift.replicas.mesh_dim, drift.first, drift.replicas.basis, name in wrong, drift.unless)
        alike.setdefault(key, {}).setdefault(name, []).append(drift)
    findings = []
    for by_name in alike.values():
        doubt = any(d.unless is not None for of in by_name.values() for d in of)
        if len(by_name) > GROUP_ABOVE or (doubt and len(by_name) > 1):
            findings.append(_finding([d for of in by_name.values() for d in of], list(by_name), wrong))
        else:
            findings += [_finding(of, [name], wrong) for name, of in by_name.items()]
    return findings


def _finding(members: Sequence[Drift], names: Sequence[str], wrong: set[str]) -> Finding:
    worst = max(members, key=lambda drift: drift.split.relative or 0.0)
    sets, how = worst.replicas, worst.split
    everywhere = tuple(sorted({rank for drift in members for rank in drift.replicas.ranks}))
    subject = (
        f"replicas of {names[0]}"
        if len(names) == 1
        else f"replicas of {len(names)} parameters ({shortened(names, NAMED)})"
    )
    over = f" over mesh dim {sets.mesh_dim}" if sets.mesh_dim else ""
    when = "from the start" if worst.first == BEFORE else f"after step {worst.first}"
    because = ", as their gradients do" if names[0] in wrong else ""
    doubt = worst.unless is not None
    outcome = f"right if {worst.unless}" if doubt else "each rank trains a model of its own"
    apart = "" if how.relative is None else f" by {100 * how.relative:.2g} % at the last look"
    return Finding(
        kind="replica-drift",
        severity="warning" if doubt else "error",
        title=f"{subject}{over} differ {when} on {rank_words(everywhere)}{apart}{because}: {outcome}",
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=len(names),
        ranks=everywhere,
        where=Where.of_parameter(names[0], mesh_dim=sets.mesh_dim, group=sets.group),
        evidence=_evidence(worst, names),
        remedy=drift_remedy(sets, gradient_differs=names[0] in wrong, buffer=False),
        confidence="possible" if doubt else "certain" if sets.sure else "likely",
        parameters=tuple(names) if len(names) > 1 else (),
    )


def _evidence(worst: Drift, names: Sequence[str]) -> tuple[Evidence, ...]:
    how, sets = worst.split, worst.replicas
    step_words: dict[Any, str] = {BEFORE: "before the first step", None: "never"}
    facts = [
        Evidence("proof", "invariant: replicas must hold equal values"),
        Evidence("replicas", rank_words(sets.ranks)),
        Evidence("replicas by", sets.basis),
        Evidence("equal", step_words.get(worst.equal_before, f"after step {worst.equal_before}")),
        Evidence("first seen different", step_words.get(worst.first, f"after step {worst.first}")),
        Evidence("distance / size, first seen", worst.first_relative),
        Evidence("distance / size, last look", how.relative),
        Evidence("rounding explains up to", how.tolerance),
        Evidence("looks", times(worst.looks, "look")),
    ]
    if worst.unless is not None:
        facts.append(Evidence("right if", worst.unless))
    if len(names) > 1:
        facts.append(Evidence("parameters", ", ".join(names)))
        facts.append(Evidence("worst parameter", sets.name))
    for rank, size in how.sizes[:RANKS_SHOWN]:
        facts.append(Evidence(f"norm, rank {rank}", size))
    return tuple(facts)
