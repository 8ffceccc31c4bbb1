"""Gradients that replicas must hold equal and do not, as the optimizer was about to use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.agreement import (
    EPS,
    MOST_LOOKS,
    Case,
    Split,
    computed_eps,
    gradient_rms,
    looks,
    rows_of,
    split,
    suspects,
)
from shardtoll.analyzers.findings.replicas.by_design import design
from shardtoll.analyzers.findings.replicas.reduced_later import reduced_later
from shardtoll.analyzers.findings.replicas.reductions import covered, mesh_groups
from shardtoll.analyzers.findings.replicas.replica_remedies import gradient_remedy
from shardtoll.analyzers.findings.replicas.replicas import Replicas, replicas
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.placements import kinds
from shardtoll.analyzers.shared.tally import text
from shardtoll.ledger import Cause, Evidence, Finding, Where
from shardtoll.ledger.words.human import others
from shardtoll.ledger.words.human import plural as times
from shardtoll.ledger.words.human import ranks as rank_words
from shardtoll.ledger.words.names import shortened

GROUP_ABOVE: Final = 20
"""Parameters that differ in the same way before they become one finding instead of one each."""
NAMED: Final = 3
RANKS_SHOWN: Final = 16
PROOF: Final = "invariant: replicas must hold equal gradients"


class Apart(Struct, frozen=True):
    """Replicas whose gradients differ."""

    replicas: Replicas
    split: Split
    """At the first step of it."""
    step: int
    steps: int
    """Steps in which they differ."""
    checked: int
    dtype: str
    over: str | None
    """The mesh dimension, if any, over which the reduction is missing."""
    within: str | None
    """The groups whose ranks agree, if those that agree are groups."""
    reduced: tuple[tuple[int, ...], ...]
    """Over which ranks the program reduced this gradient, by its records."""
    local_grad: str | None
    """Placements of the gradient as it was held."""
    unless: str | None = None
    """Condition, in words, under which it is right all the same."""


CAUSES: Final[dict[Case, Cause]] = {
    "parts": "missing-reduction",
    "classes": "missing-reduction",
    "scale": "wrong-scale",
    "absent": "missing",
    "zero": "zero",
    "not-finite": "not-finite",
}


@once
def apart(context: Context) -> list[Apart]:
    """Return the replicas whose gradients differ beyond the tolerance in some step."""
    rows = rows_of(context, "gradient")
    sets = replicas(context)
    if rows.empty or not sets:
        return []
    differing = suspects(rows, sets)
    noise_of = gradient_rms(context)
    differences = []
    by_set: Any = differing.groupby("set", sort=False)
    for number, of_set in by_set:
        copies = sets[int(number)]
        seen: list[tuple[int, Split]] = []
        first_rows: pd.DataFrame | None = None
        for step, at_step in looks(of_set):
            usable = at_step[_claimed(at_step, copies)]
            if usable.empty or (len(usable) < len(at_step)):
                continue
            dtype = str(usable["dtype"].iloc[0])
            eps = max(EPS.get(dtype, EPS["float32"]), computed_eps(context))
            how = split(usable, copies.ranks, eps=eps, noise=eps * noise_of)
            numel = int(usable["numel"].iloc[0])
            if how is not None and not reduced_later(context, copies, step, numel, dtype):
                seen.append((step, how))
                first_rows = usable if first_rows is None else first_rows
        if not seen or first_rows is None:
            continue
        step, how = seen[0]
        if copies.basis == "start" and how.case == "absent":
            # A rank that does not use a parameter it happens to begin equal with others proves nothing.
            continue
        why = design(context, copies) if how.case in ("parts", "classes", "scale", "zero") else None
        if why is not None and why.unless is None:
            continue
        over, within = _structure(context, copies, how)
        differences.append(
            Apart(
                copies,
                how,
                step,
                len(seen),
                min(MOST_LOOKS, int(rows["step"].nunique())),
                str(first_rows["dtype"].iloc[0]),
                over,
                within,
                tuple(sorted(covered(context).get(copies.name, ()))),
                text(first_rows["placements"].iloc[0]),
                None if why is None else why.unless,
            )
        )
    return differences


def _claimed(rows: pd.DataFrame, copies: Replicas) -> pd.Series[bool]:
    """Return which gradients claim to be whole: one that says Partial is for the optimizer to reduce."""

    def whole(placements: str | None, dims: str | None) -> bool:
        placed = kinds(text(placements))
        names = [dim.strip() for dim in (text(dims) or "").split(",") if dim.strip()]
        if len(names) != len(placed) or copies.mesh_dim not in names:
            return "partial" not in placed
        return placed[names.index(copies.mesh_dim)] == "replicate"

    pairs = zip(rows["placements"], rows["mesh_dims"], strict=True)
    claims: pd.Series[bool] = pd.Series([whole(*pair) for pair in pairs], index=rows.index, dtype=bool)
    return claims


def _structure(context: Context, copies: Replicas, how: Split) -> tuple[str | None, str | None]:
    """Return the mesh dimension across which the ranks differ, and the groups within which they agree."""
    classes = {tuple(sorted(ranks)) for ranks in how.classes}
    groups = mesh_groups(context)
    within = None
    if how.case == "classes":
        for group in context.ledger.groups:
            if len(group.ranks) > 1 and tuple(sorted(group.ranks)) in classes:
                within = group.mesh_dim or group.name
                break
    inside = set(copies.ranks)
    across = []
    for dim, along in groups.items():
        here = [set(group) for group in along if set(group) <= inside]
        covers = bool(here) and set().union(*here) == inside
        one_of_each = all(len(group & set(ranks)) <= 1 for group in here for ranks in classes)
        if covers and one_of_each and all(len(group) > 1 for group in here):
            across.append((len(here), dim))
    return (min(across)[1] if across else copies.mesh_dim), within


def find(context: Context) -> list[Finding]:
    """Return one finding a parameter whose replicas hold different gradients, or one for many of them.

    It needs no baseline: that replicas differ proves that at most one of them can be right.
    """
    alike: dict[tuple[object, ...], list[Apart]] = {}
    for difference in apart(context):
        how = difference.split
        classes = how.classes if how.case == "classes" else ()
        # The groups of one mesh dimension differ in the same way: one finding speaks of all of them.
        key = (
            how.case,
            difference.replicas.basis,
            difference.over,
            difference.within,
            classes if difference.over is None else len(classes),
            difference.unless,
        )
        alike.setdefault(key, []).append(difference)
    findings = []
    for members in alike.values():
        by_name: dict[str, list[Apart]] = {}
        for difference in members:
            by_name.setdefault(difference.replicas.name, []).append(difference)
        if len(by_name) > GROUP_ABOVE or (members[0].unless is not None and len(by_name) > 1):
            findings.append(_finding(members, list(by_name)))
        else:
            findings += [_finding(of_name, [name]) for name, of_name in by_name.items()]
    return findings


def _finding(members: Sequence[Apart], names: Sequence[str]) -> Finding:
    worst = max(members, key=lambda difference: difference.split.relative or 0.0)
    how, sets = worst.split, worst.replicas
    everywhere = sorted({rank for difference in members for rank in difference.replicas.ranks})
    doubt = worst.unless is not None
    subject = f"gradient of {names[0]} {'may be' if doubt else 'is'} wrong"
    if len(names) > 1:
        shown = shortened(names, NAMED)
        subject = f"gradients of {len(names)} parameters ({shown}) {'may be' if doubt else 'are'} wrong"
    unless = f"; right if {worst.unless}" if doubt else ""
    short = (worst.unless or "").partition(":")[0]
    wrong = sorted({rank for difference in members for rank in difference.split.odd})
    remedy = gradient_remedy(worst.replicas, how.case, names, worst.over or sets.mesh_dim, how.factor)
    return Finding(
        kind="wrong-gradient",
        severity="warning" if doubt else "error",
        title=f"{subject}: {_why(worst, everywhere)}{unless}",
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=len(names),
        ranks=tuple(wrong or everywhere),
        where=Where.of_parameter(
            names[0], phase="backward", mesh_dim=worst.over or sets.mesh_dim, group=sets.group
        ),
        evidence=_evidence(worst, names),
        cause=CAUSES[how.case],
        parameters=tuple(names) if len(names) > 1 else (),
        remedy=replace(remedy, text=f"Leave it where {short}. Else: {remedy.text}") if doubt else remedy,
        confidence="possible" if doubt else "certain" if sets.sure else "likely",
    )


def _apart(how: Split) -> str:
    return "" if how.relative is None else f", {100 * how.relative:.3g} % apart"


def _why(difference: Apart, everywhere: Sequence[int]) -> str:
    how, sets = difference.split, difference.replicas
    among = rank_words(everywhere)
    over = (
        f"mesh dim {difference.over}" if difference.over else f"group {sets.group}" if sets.group else among
    )
    odd = rank_words(how.odd)
    hidden = sets.basis == "placements"
    match how.case:
        case "absent":
            rest = others(len(sets.ranks) - len(how.odd), "have")
            return f"{odd} of {among} had none, {rest} one: nothing there reached it in backward"
        case "zero":
            return f"it is zero on {odd}, not on the other replicas of {among}{_apart(how)}"
        case "not-finite":
            return f"NaN or infinity on {odd}, finite on the other replicas of {among}"
        case "scale":
            return (
                f"wrong scale: replicas on {among} hold multiples of one gradient, up to "
                f"{how.factor:.4g} times each other"
            )
        case "classes":
            within = f" within {difference.within}" if difference.within else ""
            shown = "; ".join(rank_words(ranks) for ranks in how.classes[:4])
            return (
                f"a reduction over {over} is missing: ranks agree{within} ({shown}) and not across"
                f"{_apart(how)}{_reduced(difference)}"
            )
        case _:
            said = (
                "its placements say Replicate: Partial treated as Replicate"
                if hidden
                else "each rank holds only its own part"
            )
            return (
                f"a reduction over {over} is missing: {among} hold different gradients{_apart(how)}; {said}"
            )


def _reduced(difference: Apart) -> str:
    if not difference.reduced:
        return ""
    shown = "; ".join(rank_words(ranks) for ranks in difference.reduced[:4])
    return f"; it was reduced over {shown} alone"


def _evidence(difference: Apart, names: Sequence[str]) -> tuple[Evidence, ...]:
    how, sets = difference.split, difference.replicas
    basis = {
        "placements": f"placements of the parameter: Replicate over {sets.mesh_dim or 'the mesh'}",
        "wrapper": f"{sets.wrapper} reduces its gradient over group {sets.group}",
        "reduced": "the program reduces its gradient over these ranks",
        "start": "the ranks began with equal values",
    }[sets.basis]
    facts = [
        Evidence("proof", PROOF),
        Evidence("replicas because", basis),
        Evidence("replicas", rank_words(sets.ranks)),
        Evidence("distance / size", how.relative),
        Evidence("tolerance, sqrt of the dtype's spacing", how.tolerance),
        Evidence("first step", difference.step),
        Evidence("steps that differ", f"{difference.steps} of {times(difference.checked, 'checked step')}"),
        Evidence("gradient", f"{difference.local_grad or 'plain'}, {difference.dtype}"),
    ]
    if difference.unless is not None:
        facts.append(Evidence("right if", difference.unless))
    if len(names) > 1:
        facts.append(Evidence("parameters", ", ".join(names)))
        facts.append(Evidence("worst parameter", sets.name))
    if how.factor is not None:
        facts.append(Evidence("factor", how.factor, "x"))
    for rank, size in how.sizes[:RANKS_SHOWN]:
        facts.append(Evidence(f"norm, rank {rank}", size))
    if how.case == "classes":
        facts.append(Evidence("ranks that agree", "; ".join(rank_words(ranks) for ranks in how.classes)))
    reduced = "; ".join(rank_words(ranks) for ranks in difference.reduced) or "none on record by its name"
    facts.append(Evidence("reductions of it", reduced))
    return tuple(facts)
