"""Gradients that are added up twice over the same ranks, or added up where their siblings are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.agreement import rows_of
from shardtoll.analyzers.findings.replicas.gradients import GROUP_ABOVE, NAMED
from shardtoll.analyzers.findings.replicas.reductions import reductions, sums
from shardtoll.analyzers.shared.remedy_code import parameter
from shardtoll.analyzers.shared.tally import keep, numbered, text
from shardtoll.ledger import Evidence, Figure, Finding, Remedy, Rows, Where
from shardtoll.ledger.records.finding import Confidence, Severity
from shardtoll.ledger.words.human import place
from shardtoll.ledger.words.human import plural as times
from shardtoll.ledger.words.human import ranks as rank_words
from shardtoll.ledger.words.names import shortened

SAME: Final = ("rank", "step", "over", "op", "message_bytes")


def find(context: Context) -> list[Finding]:
    """Return the doubled reductions, and the sums among means."""
    frame = reductions(context)
    frame = keep(frame, (frame["op"] == "all_reduce") & frame["over"].notna())
    if frame.empty:
        return []
    doubled, after_wrapper = _chains(frame), _after_wrapper(context, frame)
    return [*doubled, *after_wrapper, *_sums_among_means(context, frame)]


def _chains(frame: pd.DataFrame) -> list[Finding]:
    """Return the gradients whose second SUM began with the first one's result: they are n times too large."""
    hashed = keep(frame, sums(frame) & frame["input_hash"].notna() & frame["output_hash"].notna())
    if hashed.empty:
        return []
    where = numbered(hashed, [*SAME, "name"])
    before = hashed["output_hash"].groupby(where).shift()
    first_source = hashed["source"].groupby(where).shift()
    chained = (before == hashed["input_hash"]) & (hashed["output_hash"] != hashed["input_hash"])
    rows = keep(hashed.assign(first_source=first_source), chained)
    why = "the second starts from the result of the first, and both sum"
    return _findings(rows, "its gradient is reduced twice", why)


def _after_wrapper(context: Context, frame: pd.DataFrame) -> list[Finding]:
    """Return the gradients that a wrapper reduced and the program added up once more over the same ranks.

    They were equal on all ranks before the second: it multiplies them by the number of ranks.
    """
    table = context.parameters
    by_ddp = keep(table, (table["reduced_by_wrapper"] == True) & (table["wrapper"] == "DDP"))  # noqa: E712
    groups = {
        (str(name), int(rank)): str(group)
        for name, rank, group in by_ddp[["name", "rank", "group"]].dropna().itertuples(index=False)
    }
    if not groups:
        return []
    cause = frame["caused_by_op"].fillna("").str
    by_hand = keep(
        frame, sums(frame) & frame["input_hash"].notna() & ~cause.contains("DDP|DistributedDataParallel")
    )
    by_hand = keep(by_hand, by_hand["source"].notna())
    if by_hand.empty:
        return []
    same_group = [
        groups.get((str(name), int(rank))) == str(group)
        for name, rank, group in by_hand[["name", "rank", "group"]].itertuples(index=False)
    ]
    rows = by_hand[np.array(same_group, dtype=bool)]
    if rows.empty:
        return []
    equal = rows.groupby(["name", "step", "seq"], dropna=False)["input_hash"]
    rows = keep(
        rows,
        (equal.transform("nunique") == 1) & (equal.transform("size") == rows["group_size"].astype(np.int64)),
    )
    rows = keep(rows, _kept(context, rows)) if not rows.empty else rows
    why = "DDP had averaged it, so all ranks sent the same, and this adds that up"
    sure = not rows_of(context, "gradient").empty
    what = "its gradient is reduced again by hand"
    return _findings(rows.assign(first_source="DDP"), what, why, "certain" if sure else "likely")


def _kept(context: Context, rows: pd.DataFrame) -> pd.Series[bool]:
    """Return whether the result was used as it is: whoever divides it afterwards does no harm.

    By fingerprint: the optimizer's gradient is the result. If no gradient is on record, it counts as used.
    """
    used = rows_of(context, "gradient")
    used = used[["name", "rank", "step", "hash"]].drop_duplicates(["name", "rank", "step"])
    keys = ["name", "rank", "step"]
    plain = rows[[*keys, "input_hash", "output_hash"]].astype(
        {"name": object, "rank": np.int64, "step": np.int64}
    )
    used = used.astype({"name": object, "rank": np.int64, "step": np.int64})
    joined = plain.merge(used, on=keys, how="left")
    # Divided by a power of two it is what it was: those are the bytes that were sent.
    undone = (joined["hash"] == joined["input_hash"]).fillna(False).to_numpy(dtype=bool)
    changed = joined["hash"].notna() & ~(joined["hash"] == joined["output_hash"]).fillna(False)
    kept: pd.Series[bool] = pd.Series(~undone & ~changed.to_numpy(dtype=bool), index=rows.index)
    return kept


def _findings(rows: pd.DataFrame, what: str, why: str, confidence: Confidence = "certain") -> list[Finding]:
    if rows.empty:
        return []
    by_name = {str(name): of_name for name, of_name in rows.groupby("name", sort=False)}
    if len(by_name) > GROUP_ABOVE:
        return [_doubled(rows, list(by_name), what, why, confidence)]
    return [_doubled(of_name, [name], what, why, confidence) for name, of_name in by_name.items()]


def _doubled(
    rows: pd.DataFrame, names: Sequence[str], what: str, why: str, confidence: Confidence
) -> Finding:
    first = rows.iloc[0]
    n, source, dim = int(first["group_size"]), text(first["source"]), text(first["mesh_dim"])
    net = f"mesh dim {dim}" if dim else f"group {first['group']}"
    subject = (
        f"gradient of {names[0]} is"
        if len(names) == 1
        else f"gradients of {len(names)} parameters ({shortened(names, NAMED)}) are"
    )
    return _too_large(
        rows,
        names,
        severity="error",
        title=f"{subject} {n} times too large: {what} over {net}{place(None, source)}; {why}",
        message_bytes=int(first["message_bytes"]) if pd.notna(first["message_bytes"]) else None,
        proof=f"invariant: a gradient is added up once over a group; {why}",
        facts=(
            Evidence("first reduction", text(first["first_source"])),
            Evidence("second reduction", source or text(first["caused_by_op"])),
            Evidence("doubled reductions", times(len(rows), "record")),
            *((Evidence("parameters", ", ".join(names)),) if len(names) > 1 else ()),
        ),
        remedy=Remedy(
            "Leave out one of the two reductions; if both must stay, let the second average.",
            "dist.all_reduce(gradient, op=dist.ReduceOp.AVG)  # or delete this line",
        ),
        confidence=confidence,
    )


def _sums_among_means(context: Context, frame: pd.DataFrame) -> list[Finding]:
    """Return the gradients added up by hand if most others over the same ranks are averaged.

    Only possible: what was divided before the reduction does not show. A gradient that was divided after it
    does, and is left out.
    """
    adds = sums(frame).to_numpy(dtype=bool) & frame["reduce_op"].notna().to_numpy(dtype=bool)
    mean = frame["reduce_op"].astype(object).fillna("").astype(str).str.lower().str.contains("avg|mean")
    table = context.parameters
    averaged: dict[tuple[int, ...], set[str]] = {}
    for name, over in (
        frame[mean.to_numpy(dtype=bool)][["name", "over"]].drop_duplicates().itertuples(index=False)
    ):
        averaged.setdefault(over, set()).add(str(name))
    added: dict[tuple[int, ...], set[str]] = {}
    rows = frame[adds & frame["source"].notna().to_numpy(dtype=bool)]
    rows = rows[~rows["implicit"].fillna(False).to_numpy(dtype=bool)]
    by_wrapper = keep(table, table["reduced_by_wrapper"].fillna(False).astype(bool))
    wrapped = set(by_wrapper["name"].astype(str))
    rows = rows[~rows["name"].isin(wrapped).to_numpy(dtype=bool)]
    rows = keep(rows, rows["output_hash"].notna())
    if rows.empty:
        return []
    rows = keep(rows, _kept(context, rows))
    for name, over in rows[["name", "over"]].drop_duplicates().itertuples(index=False):
        added.setdefault(over, set()).add(str(name))
    findings = []
    for over, names in added.items():
        means = averaged.get(over, set())
        names = names - means
        if len(means) > len(names) and names:
            findings.append(
                _sum(rows[rows["name"].isin(names).to_numpy(dtype=bool)], sorted(names), len(means))
            )
    return findings


def _sum(rows: pd.DataFrame, names: Sequence[str], means: int) -> Finding:
    first = rows.iloc[0]
    shown = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    return _too_large(
        rows,
        names,
        severity="warning",
        title=f"gradient of {shown} may be {int(first['group_size'])} times too large: it is added up over "
        f"{rank_words(_ranks(rows))} where those of {times(means, 'other parameter')} are averaged"
        f"{place(None, text(first['source']))}",
        message_bytes=None,
        proof="siblings: the same ranks reduce other gradients with AVG",
        facts=(
            Evidence("operation", text(first["reduce_op"])),
            Evidence("parameters", ", ".join(names)),
        ),
        remedy=Remedy(
            "Average it like the others, or divide by the number of ranks. Leave it if the loss was "
            "divided before.",
            f"dist.all_reduce({parameter(names[0])}.grad, op=dist.ReduceOp.AVG)",
        ),
        confidence="possible",
    )


def _ranks(rows: pd.DataFrame) -> tuple[int, ...]:
    return tuple(sorted(int(rank) for rank in rows["rank"].unique()))


def _too_large(
    rows: pd.DataFrame,
    names: Sequence[str],
    *,
    severity: Severity,
    title: str,
    message_bytes: int | None,
    proof: str,
    facts: tuple[Evidence, ...],
    remedy: Remedy,
    confidence: Confidence,
) -> Finding:
    """Return that the gradients of `names` are as many times too large as the group of `rows` has ranks."""
    first = rows.iloc[0]
    return Finding(
        kind="wrong-gradient",
        severity=severity,
        title=title,
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=message_bytes,
        count=len(names),
        ranks=_ranks(rows),
        where=Where.of_parameter(
            names[0],
            phase=text(first["phase"]),
            op=str(first["op"]),
            source=text(first["source"]),
            group=str(first["group"]),
            mesh_dim=text(first["mesh_dim"]),
        ),
        evidence=(Evidence("proof", proof), Evidence("factor", int(first["group_size"]), "x"), *facts),
        remedy=remedy,
        confidence=confidence,
        rows=Rows.of(collectives=rows["row"]),
        figures=(Figure("too_large_by", int(first["group_size"]), "x"),),
        parameters=tuple(names) if len(names) > 1 else (),
        cause="doubled-reduction",
    )
