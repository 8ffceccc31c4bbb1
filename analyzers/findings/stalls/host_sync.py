"""The host waiting for the device, and reading values of tensors one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stalls.stalled import WARNING_SHARE, Lost, costs, finding, lost, often
from shardtoll.analyzers.findings.stragglers.step_excess import told_steps
from shardtoll.analyzers.shared import serving_remedies
from shardtoll.analyzers.shared.tally import Line, keep, steps_spoken_of, tally
from shardtoll.ledger import Evidence, Finding, Occurrence, Remedy
from shardtoll.ledger.records.stall import BLOCKED
from shardtoll.ledger.words.human import duration, percent, place, ranks

LEAST_STEPS: Final = 2
"""Surveyed steps from which a read in each of them is a habit."""

ALONE: Final = 0.5
"""Share of the step from which one wait in one step is enough for a finding."""

KEYS: Final = ("call", "phase", "module", "source")
TEXT: Final = (
    "Read values from the device every 100 steps only. `.item()`, `.cpu()`, printing a tensor, a "
    "branch on a tensor's value, `nonzero` and boolean masks all wait for it. `.tolist()` reads many values "
    "at once."
)
CODE: Final = (
    "losses.append(loss.detach())  # no .item() in the step\n"
    "if step % 100 == 0:\n"
    "    print(torch.stack(losses).mean().item())"
)


def find(context: Context) -> list[Finding]:
    """Return one finding, whose places are each call, phase, module and line.

    Toll: in traces the idle time around the calls per step, on the worst rank. In audits on CPUs, which have
    no device that could stand idle, the time of the reads themselves. On accelerators it is unknown without a
    trace. A run of both has one finding of each.
    """
    findings = []
    for stall in lost(context, "host-sync"):
        result = tally(stall.rows, ("name", *KEYS[1:]), ("lost_ns", "count"), told_steps(context))
        places = _places(result.lines, "name", "lost_ns")
        first = places[0].where
        call = first.op or "a synchronisation"
        title = (
            f"the host waits for the device by {_all_of(len(places), call)}, {stall.often}"
            f"{'' if len(places) > 1 else ','}{_mostly(places)}on {ranks(stall.line.ranks)}: the device is "
            f"then idle for {costs(stall)}"
        )
        remedy = _remedy(context, "the same step without these waits")
        alone = _alone(context, stall)
        if alone:
            title += "; one wait in one recorded step may be for work from before the recording"
            steps = "passes" if context.serves else "steps"
            first_of_all = f"Record more {steps} first: this one wait may not repeat. "
            remedy = replace(remedy, text=first_of_all + remedy.text)
        where = replace(first, op=None)
        made = finding(
            *(stall, "host-sync", title, remedy),
            where=where,
            saving_ns=stall.lost_ns,
            confidence="possible" if alone else "likely",
        )
        findings.append(replace(made, places=places if len(places) > 1 else ()))
    return findings + _reads(context)


def _alone(context: Context, stall: Lost) -> bool:
    """Return whether a single wait takes most of the only recorded step: nothing shows that it repeats.

    A trace may begin while the device works on what was launched before, which is then on no record.
    """
    once = stall.line.figures["count"] == 1 and stall.steps == 1
    return once and stall.share > ALONE and context.ledger.run.source == "trace"


def _remedy(context: Context, counterfactual: str | None) -> Remedy:
    if context.serves:
        return Remedy(serving_remedies.HOST_SYNC.text, serving_remedies.HOST_SYNC.code, counterfactual)
    return Remedy(TEXT, CODE, counterfactual)


def _places(lines: Sequence[Line], call: str, cost: str) -> tuple[Occurrence, ...]:
    """Return the places, the most expensive first; `cost` names the figure that is a place's toll."""
    places = [
        Occurrence(
            line.where("phase", "module", "source", op=line.text(call) or None),
            line.figures["count"] or 0,
            line.figures[cost],
        )
        for line in lines
    ]
    return tuple(sorted(places, key=lambda one: (-(one.toll_ns or 0), -one.count)))


def _all_of(places: int, call: str) -> str:
    return call if places == 1 else f"calls at {places:,} places"


def _mostly(places: Sequence[Occurrence]) -> str:
    """Return where the most expensive of the places is, in words that follow a list of calls."""
    where = places[0].where
    line = f" in {where.phase}{place(where.module, where.source)}, "
    return line if len(places) == 1 else f", mostly {often(places[0].count)}{line}"


def _reads(context: Context) -> list[Finding]:
    """Host reads that audits saw in at least one place of every surveyed step.

    One cheap read a step costs a CPU nothing, and is information: the same line stops an accelerator.
    """
    stalls, steps = context.stalls_in_steps, context.surveyed
    rows = keep(stalls, (stalls["kind"] == "host-sync") & stalls["step"].isin(steps))
    rows = keep(rows, (rows["lost_ns"] == 0) & ~rows["step"].isin(_traced(context)))
    if rows.empty or len(steps) < LEAST_STEPS or not context.step_ns:
        return []
    blocked = rows["name"].str.endswith(BLOCKED).to_numpy(dtype=bool, na_value=False)
    rows = rows.assign(
        call=rows["name"].str.removesuffix(BLOCKED),
        blocked_ns=rows["total_ns"].where(blocked, 0),
        read_ns=rows["total_ns"].where(~blocked, 0),
    )
    values = ("read_ns", "blocked_ns", "count")
    result = tally(rows, KEYS, values, steps)
    habits = [line for line in result.lines if line.figures["count"]]
    if not habits:
        return []
    # Reads less than once per step are no habit, and in no figure.
    kept = np.isin(result.code, [line.code for line in habits])
    (whole,) = tally(keep(rows, kept).assign(all=0), ("all",), values, steps).lines
    return [_read(context, whole, _places(habits, "call", "read_ns"))]


def _traced(context: Context) -> tuple[int, ...]:
    """Return the steps of which a trace tells better what the host waited for."""
    return () if context.leadups.empty or context.on_cpu else told_steps(context)


def _read(context: Context, line: Line, places: tuple[Occurrence, ...]) -> Finding:
    read, blocked, count = (line.figures[name] or 0 for name in ("read_ns", "blocked_ns", "count"))
    toll = read if context.on_cpu else None
    share = context.share(read + blocked, context.surveyed) or 0.0
    read_share = context.share(read, context.surveyed) or 0.0
    first = places[0].where
    waits = f", and is blocked on collectives for {duration(blocked)} more in it" if blocked else ""
    why = "" if not context.on_cpu else "; of a tensor on an accelerator each waits for all that is queued"
    keeps = "reads values of tensors for" if context.on_cpu else "waits for the device for"
    return Finding(
        kind="host-sync",
        severity="warning" if share >= WARNING_SHARE else "info",
        title=f"the host {keeps} {duration(read)} per step ({percent(read_share)}), "
        f"{often(count)}, by {_all_of(len(places), first.op or 'reads')}{_mostly(places)}on "
        f"{ranks(line.ranks)}{waits}{why}",
        toll_ns=toll,
        floor_ns=None,
        saving_ns=toll,
        bytes=None,
        count=count,
        ranks=line.ranks,
        rows=steps_spoken_of(context.step_rows, line.ranks, context.surveyed),
        where=first,
        evidence=(
            Evidence("reads per step", count),
            Evidence("they last, per step", read, "ns"),
            Evidence("blocked on collectives meanwhile, billed as communication", blocked, "ns"),
            Evidence("share of the step, both", round(share, 4), "share"),
        ),
        remedy=_remedy(context, None if toll is None else "the same step without these reads"),
        confidence="certain" if context.on_cpu else "likely",
        places=places if len(places) > 1 else (),
    )
