"""Parameters that no reduction takes part in, or that never got a gradient.

Values tell best, if a check took them. Without them `unreduced` goes by the records' structure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas import gradients as replica_gradients
from shardtoll.analyzers.findings.replicas.agreement import rows_of
from shardtoll.analyzers.findings.replicas.gradients import GROUP_ABOVE, NAMED, Apart
from shardtoll.analyzers.findings.replicas.local_parameters import exchanged
from shardtoll.analyzers.findings.replicas.overruled import checked_right
from shardtoll.analyzers.findings.replicas.reductions import covered
from shardtoll.analyzers.findings.replicas.replica_remedies import reduce_code
from shardtoll.analyzers.findings.unsynced.gradient_groups import reducing
from shardtoll.analyzers.findings.unsynced.unreduced import unreduced
from shardtoll.analyzers.findings.unsynced.unreduced_finding import finding_of, used_at
from shardtoll.analyzers.shared.remedy_code import parameter
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import SKETCH_COLUMNS, Evidence, Finding, Remedy, Where
from shardtoll.ledger.records.finding import Confidence
from shardtoll.ledger.words.human import plural as times
from shardtoll.ledger.words.human import ranks as rank_words
from shardtoll.ledger.words.names import shortened


def find(context: Context) -> list[Finding]:
    """Return the parameters that a wrapper does not know, that were left out by hand, and the unused ones."""
    findings = [] if context.parameters.empty else _by_values(context)
    said = {name for finding in findings for name in (finding.where.parameter, *finding.parameters) if name}
    return findings + [finding_of(context, found) for found in unreduced(context, said)]


def _by_values(context: Context) -> list[Finding]:
    unknown = _unknown_to_wrapper(context)
    findings = unknown + _left_out(context, {str(finding.where.parameter) for finding in unknown})
    return findings + _unused(context)


def _unknown_to_wrapper(context: Context) -> list[Finding]:
    table = context.parameters
    trained = table["requires_grad"].astype(bool) & table["tied_to"].isna() & (table["numel"] > 0)
    rows = keep(table, trained & (table["reduced_by_wrapper"] == False))  # noqa: E712
    differ = {difference.replicas.name: difference for difference in replica_gradients.apart(context)}
    seen = _gradients(context)
    findings = []
    for name, of_name in rows.groupby("name", sort=False, observed=True):
        name = str(name)
        ranks = tuple(sorted(int(rank) for rank in of_name["rank"].unique()))
        if len(ranks) < 2 or covered(context).get(name):
            continue
        prints = seen.get(name, {})
        if name in exchanged(context) | checked_right(context) or not of_name["wrapper"].notna().any():
            continue
        if prints and all(len(of_step) == 1 for of_step in prints.values()):
            # Equal gradients: something that does not name it reduces it, as one bucket of all gradients.
            continue
        wrapper = str(of_name["wrapper"].dropna().iloc[0])
        source = used_at(context, name)
        findings.append(_late(name, ranks, wrapper, differ.get(name), _apart_of(context, name), source))
    return findings


def _gradients(context: Context) -> dict[str, dict[int, set[int]]]:
    """Return for each parameter and step the different fingerprints of its gradient."""
    rows = rows_of(context, "gradient")
    rows = keep(rows, rows["hash"].notna())[["name", "step", "hash"]].drop_duplicates()
    prints: dict[str, dict[int, set[int]]] = {}
    for name, step, number in rows.itertuples(index=False):
        prints.setdefault(str(name), {}).setdefault(int(step), set()).add(int(number))
    return prints


def _apart_of(context: Context, name: str) -> float | None:
    """Return how far apart the ranks' gradients are over their size, at the first step on record."""
    rows = rows_of(context, "gradient")
    rows = keep(rows, (rows["name"] == name) & rows["square"].notna())
    if rows.empty:
        return None
    rows = keep(rows, rows["step"] == rows["step"].min())
    sketches = rows[list(SKETCH_COLUMNS)].to_numpy(dtype=np.float64, na_value=np.nan)
    size = math.sqrt(float(rows["square"].mean()))
    if np.isnan(sketches).any() or not size:
        return None
    return math.sqrt(float(((sketches - sketches[0]) ** 2).mean(axis=1).max())) / size


def _late(
    name: str,
    ranks: Sequence[int],
    wrapper: str,
    apart: Apart | None,
    relative: float | None,
    source: str | None,
) -> Finding:
    relative = apart.split.relative if apart is not None else relative
    story = "each rank trains it on its own data alone"
    if relative is not None:
        story += f", and their gradients are {100 * relative:.3g} % apart"
    where = Where.of_parameter(name, phase="backward", source=source)
    part = where.module or name
    return Finding(
        kind="unsynced-parameter",
        severity="error",
        title=f"{name} takes part in no reduction: {wrapper} does not know it, as a "
        f"parameter added after wrapping; {story}",
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=1,
        ranks=tuple(ranks),
        where=where,
        evidence=(
            Evidence("wrapper", wrapper),
            Evidence("known to the wrapper", "no"),
            Evidence("reductions of it by name", "none on record"),
            Evidence("distance / size of the ranks' gradients", relative),
            Evidence("ranks", rank_words(ranks)),
        ),
        remedy=Remedy(
            f"Add {part} to the model first and wrap it last, when all its parameters exist. If it has to "
            "be added later, wrap again, and make its values equal on all ranks.",
            f"model.{part} = ...  # first\nmodel = DistributedDataParallel(model)  # then wrap"
            if wrapper == "DDP"
            else f"model.{part} = ...  # first\nfully_shard(model)  # then wrap",
        ),
        confidence="likely"
        if apart is None or wrapper != "DDP"
        else "certain"
        if apart.unless is None
        else "possible",
    )


def _left_out(context: Context, unknown: set[str]) -> list[Finding]:
    """Return plain parameters whose replicas' gradients differ and that no reduction names, while "
    "others' are."""
    table = context.parameters
    wrapped = bool(table["wrapper"].notna().any())
    if not wrapped and not covered(context):
        return []
    by_name: dict[str, list[Apart]] = {}
    for difference in replica_gradients.apart(context):
        sets = difference.replicas
        apart = (
            difference.split.case in ("parts", "classes")
            and not difference.reduced
            and difference.unless is None
        )
        if apart and sets.basis == "start" and sets.name not in unknown:
            by_name.setdefault(sets.name, []).append(difference)
    if len(by_name) > GROUP_ABOVE:
        return [
            _omitted(context, [difference for of in by_name.values() for difference in of], list(by_name))
        ]
    return [_omitted(context, of_name, [name]) for name, of_name in by_name.items()]


def _omitted(context: Context, members: Sequence[Apart], names: Sequence[str]) -> Finding:
    worst = max(members, key=lambda difference: difference.split.relative or 0.0)
    ranks = tuple(sorted({rank for difference in members for rank in difference.replicas.ranks}))
    subject = (
        f"{names[0]} takes"
        if len(names) == 1
        else f"{len(names)} parameters ({shortened(names, NAMED)}) take"
    )
    over = worst.over or worst.replicas.mesh_dim
    source = _source_of_others(context, ranks) or used_at(context, names[0])
    return Finding(
        kind="unsynced-parameter",
        severity="error",
        title=f"{subject} part in no reduction, while gradients of others are reduced: on "
        f"{rank_words(ranks)} they are {100 * (worst.split.relative or 0.0):.3g} % apart",
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=len(names),
        ranks=ranks,
        where=Where.of_parameter(names[0], phase="backward", source=source, mesh_dim=over),
        evidence=(
            Evidence("reductions of it by name", "none on record"),
            Evidence("replicas because", "the ranks began with equal values"),
            Evidence("distance / size of the ranks' gradients", worst.split.relative),
            Evidence("tolerance", worst.split.tolerance),
            *((Evidence("parameters", ", ".join(names)),) if len(names) > 1 else ()),
        ),
        remedy=Remedy(
            "Reduce its gradient with the others, after backward and before the optimizer.",
            reduce_code(names, over),
        ),
        confidence="likely",
        parameters=tuple(names) if len(names) > 1 else (),
    )


def _source_of_others(context: Context, ranks: tuple[int, ...]) -> str | None:
    """Return the line that reduces other gradients over these ranks by hand; None if none does."""
    return next((group.source for group in reducing(context) if group.over == ranks), None)


def _unused(context: Context) -> list[Finding]:
    """Return the parameters that no rank had a gradient of in any checked step, while others had."""
    table = context.parameters
    gradients = rows_of(context, "gradient")
    rows = keep(table, table["requires_grad"].astype(bool) & table["tied_to"].isna() & (table["numel"] > 0))
    rows = keep(rows, ~rows["name"].isin(gradients["name"].unique()))
    by_name = rows.groupby("name", sort=False, observed=True)["has_grad"]
    asked = by_name.count() == by_name.size()
    had = by_name.any()
    never = [
        str(name)
        for name, any_had, all_told in zip(had.index, had.tolist(), asked.tolist(), strict=True)
        if not any_had and all_told
    ]
    others = set(gradients["name"].astype(str)) | set(
        keep(table, table["has_grad"].fillna(False).astype(bool))["name"].astype(str)
    )
    if not never:
        return []
    if not others:
        return [_none_at_all(context, never)] if gradients.empty else []
    steps = int(gradients["step"].nunique())
    shown = ", ".join(never[:NAMED]) + (", ..." if len(never) > NAMED else "")
    ranks = tuple(
        sorted(int(r) for r in rows[rows["name"].isin(never).to_numpy(dtype=bool)]["rank"].unique())
    )
    return [
        _without_gradient(
            f"{shown} never got a gradient in {times(steps, 'checked step')}"
            if len(never) == 1
            else f"{len(never)} parameters never got a gradient in {times(steps, 'checked step')}: {shown}",
            never,
            never,
            ranks,
            len(others),
            Remedy(
                "Use them, or freeze them. Nothing in the loss depends on them: a branch not taken, a "
                "detach(), a module built and not called. Freezing spares their optimizer states and their "
                "part of every reduction.",
                f"{parameter(never[0])}.requires_grad_(False)",
            ),
            "certain",
        )
    ]


def _none_at_all(context: Context, never: Sequence[str]) -> Finding:
    """Return that the optimizer stepped without a single gradient: likely, as it may have others' too."""
    ranks = tuple(sorted(int(rank) for rank in context.parameters["rank"].unique()))
    wrapper = context.parameters["wrapper"].dropna()
    fsdp2 = bool((wrapper.astype(str) == "FSDP2").any())
    return _without_gradient(
        f"none of {times(len(never), 'parameter')} ever had a gradient as the optimizer stepped: "
        "it trains nothing of this model",
        never,
        never[:GROUP_ABOVE],
        ranks,
        0,
        Remedy(
            "Reduce gradients on the last micro-batch: FSDP2 sets a parameter's gradient only then. "
            "Otherwise call backward before step().",
            "model.set_requires_gradient_sync(last_micro_batch)"
            if fsdp2
            else "loss.backward()\noptimizer.step()  # and zero_grad() after it, not between",
        ),
        "likely",
    )


def _without_gradient(
    title: str,
    never: Sequence[str],
    named: Sequence[str],
    ranks: tuple[int, ...],
    others: int,
    remedy: Remedy,
    confidence: Confidence,
) -> Finding:
    """Return the finding of parameters that never got a gradient; `others`: how many had one."""
    return Finding(
        kind="unsynced-parameter",
        severity="warning",
        title=title,
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=len(never),
        ranks=ranks,
        where=Where.of_parameter(never[0], phase="backward"),
        evidence=(
            Evidence("parameters", ", ".join(named)),
            Evidence("ranks", rank_words(ranks)),
            Evidence("parameters that had a gradient", others),
        ),
        remedy=remedy,
        confidence=confidence,
        parameters=tuple(named),
    )
