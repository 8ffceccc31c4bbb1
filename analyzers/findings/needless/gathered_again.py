"""Parameters that FSDP2 gathers again in backward: by its default, or although it was to keep them."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import Line, keep, tally, with_columns
from shardtoll.ledger import Evidence, Figure, Finding, Remedy, Rows
from shardtoll.ledger.words.human import duration, percent, place, some_size
from shardtoll.ledger.words.human import plural as times

UNSHARD: Final = "FSDP.unshard"

LEAST_SHARE: Final = 0.01
"""Share of the step that gathering again must have exposed for the trade to be worth telling."""

PHASES: Final = ("backward", "recompute")
KEYS: Final = ("group", "net", "reshards")


def find(context: Context) -> list[Finding]:
    """Return at most two findings a group: what was gathered again unasked, and what the default trades."""
    frame = context.in_steps
    gathers = keep(frame, (frame["caused_by_op"] == UNSHARD) & (frame["op"] == "all_gather"))
    again = keep(gathers, gathers["phase"].isin(PHASES) & gathers["reshards"].notna())
    if again.empty:
        return []
    again = with_columns(again, reshards=again["reshards"].astype(bool))
    result = tally(again, KEYS, ("exposed_ns", "message_bytes"), context.steps, times_in=context.timed)
    findings = []
    for line in result.lines:
        rows = again[result.code == line.code]
        spoken = Rows.of(collectives=result.places(line))
        if not line.first["reshards"]:
            findings.append(_unasked(line, rows, spoken))
        elif (context.share(line.figures["exposed_ns"], context.timed) or 0.0) >= LEAST_SHARE:
            findings.append(_trade(context, line, rows, spoken))
    return findings


def _modules(rows: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(str(name) for name in rows["module"].dropna()))


def _unasked(line: Line, rows: pd.DataFrame, spoken: Rows) -> Finding:
    modules = _modules(rows)
    toll, moved = line.figures["exposed_ns"], line.figures["message_bytes"]
    module = modules[0] if len(modules) == 1 else None
    return Finding(
        kind="redundant-collective",
        severity="warning",
        title=f"{times(line.each, 'all_gather')} per step on {line.first['net']} in backward"
        f"{place(module, line.text('source'))} gathers again what reshard_after_forward=False was to keep: "
        "the first backward through a module lets its parameters go, and there is another one",
        toll_ns=toll,
        floor_ns=0,
        saving_ns=toll,
        bytes=moved,
        count=line.count,
        ranks=line.ranks,
        where=line.where("phase", "source", "group", "mesh_dim", op=UNSHARD),
        rows=spoken,
        evidence=(
            Evidence("collective", "all_gather"),
            Evidence("modules gathered again", ", ".join(modules[:5]) or None),
            Evidence("in all steps and ranks", line.total),
        ),
        remedy=Remedy(
            "Call the module once with all inputs in one batch: FSDP2 frees the parameters after the "
            "first of its backwards. If one call needs the result of another, shard the module that makes "
            "the calls instead.",
            "first, second = module(torch.cat([x, y])).split([len(x), len(y)])  # was module(x), module(y)\n"
            "# if y needs module(x): fully_shard(caller, reshard_after_forward=False) in place of module",
            None if toll is None else "the same step without these all_gathers",
        ),
        confidence="likely",
    )


def _trade(context: Context, line: Line, rows: pd.DataFrame, spoken: Rows) -> Finding:
    exposed = line.figures["exposed_ns"] or 0
    kept = _whole_bytes(rows)
    share = context.share(exposed, context.timed) or 0.0
    modules = _modules(rows)
    return Finding(
        kind="redundant-collective",
        severity="info",
        title=f"a choice: FSDP gathers {_gathered(rows, modules)} again in backward on "
        f"{line.first['net']}, {duration(exposed)} of it exposed ({percent(share)}); to keep them "
        f"after forward takes {some_size(kept)} on each rank",
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=line.figures["message_bytes"],
        count=line.count,
        ranks=line.ranks,
        where=line.where("phase", "group", "mesh_dim", op=UNSHARD),
        rows=spoken,
        evidence=(
            Evidence("exposed in backward's gathers, per step", exposed, "ns"),
            Evidence("memory to keep the parameters whole", kept, "bytes"),
            Evidence("modules gathered again", ", ".join(modules[:5]) or None),
        ),
        remedy=Remedy(
            "Keep the parameters after forward if each rank has that memory left; leave it otherwise.",
            "fully_shard(block, reshard_after_forward=False)",
        ),
        figures=(
            Figure("exposed_ns", exposed, "ns"),
            *(() if kept is None else (Figure("kept_bytes", kept, "bytes"),)),
        ),
        confidence="certain",
    )


def _gathered(rows: pd.DataFrame, modules: list[str]) -> str:
    """Return what is gathered in words; the module of some gathers may be unknown."""
    if not modules:
        return "parameters"
    return times(len(modules), "module") + (" and more" if rows["module"].isna().any() else "")


def _whole_bytes(rows: pd.DataFrame) -> int | None:
    """Return the bytes of each parameter gathered, once: what a rank holds if it lets none go."""
    if rows["message_bytes"].isna().any():
        return None
    once = rows.drop_duplicates(["rank", "module", "parameter"])
    of_rank = once.groupby("rank")["message_bytes"].sum()
    return int(of_rank.max())
