"""The host waiting for the device, and reading values of tensors one by one."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.stalled import WARNING_SHARE, costs, finding, lost, often
from shardtoll.analyzers.step_excess import told_steps
from shardtoll.analyzers.tally import Line, keep, tally
from shardtoll.analyzers.words import duration, percent, place, ranks
from shardtoll.ledger import Evidence, Finding, Remedy
from shardtoll.ledger.stall import BLOCKED

LEAST_STEPS: Final = 2
"""Surveyed steps from which a read in each of them is a habit."""

KEYS: Final = ("call", "phase", "module", "source")
TEXT: Final = (
    "Keep values on the device and read them every so many steps: `.item()`, `.cpu()`, printing "
    "a tensor, a branch on a tensor's value, `nonzero` and boolean masks all wait for it. Many values are "
    "read at once by `.tolist()`."
)
CODE: Final = (
    "losses.append(loss.detach())  # no .item() in the step\n"
    "if step % 100 == 0:\n"
    "    print(torch.stack(losses).mean().item())"
)


def find(context: Context) -> list[Finding]:
    """Return one finding a call, phase, module and line.

    Toll: of traces the idle time around the call per step, on the worst rank. Of audits on CPUs, which have
    no device that could stand idle, the time of the reads themselves; on accelerators it is unknown without
    a trace.
    """
    findings = []
    for one in lost(context, "host-sync", ("name", "phase", "module", "source")):
        line = one.line
        call, phase = line.text("name") or "a synchronisation", str(line.first["phase"])
        findings.append(
            finding(
                one,
                "host-sync",
                f"the device is idle for {costs(one)} around {call}, {one.often}, in "
                f"{phase}"
                f"{place(line.text('module'), line.text('source'))}, on {ranks(line.ranks)}: the host waits "
                "for the device",
                Remedy(TEXT, CODE, "the same step without this wait"),
                where=line.where("phase", "module", "source"),
                saving_ns=one.lost_ns,
            )
        )
    return findings + _reads(context)


def _reads(context: Context) -> list[Finding]:
    """What audits saw the host read in at least one place of every surveyed step.

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
    lines = tally(rows, KEYS, ("read_ns", "blocked_ns", "count"), steps).lines
    return [_read(context, line) for line in lines if line.figures["count"]]


def _traced(context: Context) -> tuple[int, ...]:
    """Return the steps of which a trace tells better what the host waited for."""
    return () if context.leadups.empty or context.on_cpu else told_steps(context)


def _read(context: Context, line: Line) -> Finding:
    read, blocked, count = (line.figures[name] or 0 for name in ("read_ns", "blocked_ns", "count"))
    toll = read if context.on_cpu else None
    share = context.share(read + blocked, context.surveyed) or 0.0
    read_share = context.share(read, context.surveyed) or 0.0
    call, phase = str(line.first["call"]), str(line.first["phase"])
    waits = f", and is blocked on collectives for {duration(blocked)} more in it" if blocked else ""
    why = "" if not context.on_cpu else "; on an accelerator each read waits for all that is queued"
    keeps = "reads values of tensors for" if context.on_cpu else "waits for the device for"
    return Finding(
        kind="host-sync",
        severity="warning" if share >= WARNING_SHARE else "info",
        title=f"the host {keeps} {duration(read)} a step ({percent(read_share)}), "
        f"{often(count)}, by {call} in {phase}{place(line.text('module'), line.text('source'))}, on "
        f"{ranks(line.ranks)}{waits}{why}",
        toll_ns=toll,
        floor_ns=None,
        saving_ns=toll,
        bytes=None,
        count=count,
        ranks=line.ranks,
        where=line.where("phase", "module", "source", op=call),
        evidence=(
            Evidence("reads a step", count),
            Evidence("they last, a step", read, "ns"),
            Evidence("blocked on collectives meanwhile, billed as communication", blocked, "ns"),
            Evidence("share of the step, both", round(share, 4)),
        ),
        remedy=Remedy(TEXT, CODE, None if toll is None else "the same step without these reads"),
        confidence="certain" if context.on_cpu else "likely",
    )
