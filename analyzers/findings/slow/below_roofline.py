"""Transfers far slower than the fabric allows, waiting for late ranks left out, and the likely reasons."""

from __future__ import annotations

import json
from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.slow import transfers
from shardtoll.analyzers.findings.slow.contrasts import (
    BESIDE,
    compute_overlap,
    contention,
    dtypes_of_ranks,
    mixed_dtypes,
)
from shardtoll.analyzers.findings.slow.rates import (
    few_channels,
    fewer_cards,
    host_staged,
    other_algorithm,
    small_message,
)
from shardtoll.analyzers.findings.slow.reasons import Floats, Mask, Reason, Slow, best
from shardtoll.analyzers.findings.slow.slow_ranks import slow_rank
from shardtoll.analyzers.findings.slow.transfers import doubtful_limit, limit, of_its_size
from shardtoll.analyzers.roofline import Cost, Placement, extrapolated, measured_ranks
from shardtoll.analyzers.roofline.model.ways import Way, ways
from shardtoll.analyzers.shared.tally import Line, keep, number, numbered, tally
from shardtoll.ledger import Evidence, Finding, Remedy, Rows
from shardtoll.ledger.records.volume import busbw_factor
from shardtoll.ledger.words.human import duration, often, percent, size
from shardtoll.ledger.words.human import plural as times
from shardtoll.ledger.words.human import ranks as ranks_words

LEAST_COLLECTIVES: Final = 3
"""The factor is a median; of fewer it would be an accident."""

LEAST_OF_PART: Final = 5
"""The same if only collectives of one size or of one group are slow: more such parts can be slow by
accident."""

LEAST_SHARE: Final = 0.01
"""Share of the step that reaching the expected time must be able to save."""

KEYS: Final = ("net", "op")
FIGURES: Final = ("moving_ns", "over_ns", "message_bytes", "floor_ns", "light_ns")

BASIS: Final = {
    "measured": "measured on this machine",
    "transferred": "other collectives of this group size, measured on this machine, and carried over",
    "model": "model of the fabric's figures, not measured here",
}


class _Part(Struct, frozen=True):
    """The collectives of one op and net that a finding is about."""

    slow: Mask
    of: str
    """Which of them, as ` of 16.8 MB`; empty for all."""


def find(context: Context) -> list[Finding]:
    """Return one finding a group and op whose transfers lie well above the band of sound runs.

    The median over all of them is judged. If that is sound, these are judged: the median over those of one
    size (to a factor of two), of one group, and with company on the links. Toll: exposed transfer per step,
    on the rank where it is largest; waiting for late ranks is billed as straggler. The counterfactual is the
    same collectives at their expected times; the saving is what of the transfer above those was exposed.
    """
    every, frame = transfers.judged(context), transfers.rows(context)
    if every.empty:
        return []
    findings = []
    line_of = numbered(every, KEYS)
    for code in range(int(line_of.max()) + 1):
        each = keep(every, line_of == code)
        part = _slow_part(context, each)
        if part is None:
            continue
        slow = each[part.slow]
        of_op = keep(frame, frame["match_id"].isin(slow["match_id"]) & (frame["op"] == slow["op"].iloc[0]))
        (line,) = tally(of_op, KEYS, FIGURES, context.alike, times_in=context.timed).lines
        share = context.share(line.figures["over_ns"], context.timed)
        if share is not None and share >= LEAST_SHARE:
            findings.append(_finding(context, line, of_op, Slow(context, each, part.slow, every), part))
    return findings


def _slow_part(context: Context, each: pd.DataFrame) -> _Part | None:
    """Return which of them are slow: all, some sizes, some groups, those with company, or none."""
    ratio = each["ratio"].to_numpy(dtype=np.float64)
    if len(ratio) >= LEAST_COLLECTIVES and float(np.median(ratio)) >= 1:
        return _Part(np.ones(len(each), dtype=bool), "")
    sizes = np.maximum(each["message_bytes"].fillna(0).to_numpy(dtype=np.float64), 1)
    slow = _slow_cells(np.floor(np.log2(sizes)), ratio)
    if slow is not None:
        low, high = (size(int(bound)) for bound in (sizes[slow].min(), sizes[slow].max()))
        return _Part(slow, f" of {low}" if low == high else f" of {low} to {high}")
    slow = _slow_cells(each["group_id"].to_numpy(dtype=np.float64, na_value=-1), ratio)
    if slow is None:
        company = (each["others"] >= BESIDE).to_numpy(dtype=np.float64)
        slow = _slow_cells(company, ratio)
        # As gathers in backward, which meet reductions there, and are sound in forward.
        return None if slow is None else _Part(slow, " beside others" if company[slow].all() else " alone")
    groups = sorted({int(group) for group in each["group_id"][slow].dropna()})
    members = ranks_words({rank for group in groups for rank in context.matches.members[group]})
    return _Part(slow, f" of {members}")


def _slow_cells(cell: Floats, ratio: Floats) -> Mask | None:
    """Return the rows of the cells whose median is slow; None if there is none."""
    by_cell = pd.Series(ratio).groupby(cell)
    middle = by_cell.median()[by_cell.size() >= LEAST_OF_PART]
    in_slow_cell: Mask = np.isin(cell, middle[middle >= 1].index.to_numpy(dtype=np.float64))
    return in_slow_cell if in_slow_cell.any() else None


def reasons(of: Slow, frame: pd.DataFrame) -> list[Reason]:
    """Return the likely reasons, the one that explains most first; `frame` has the line's rows of ranks."""
    firsts = of.bad.drop_duplicates("cost_id").set_index("cost_id")
    return best(
        [
            slow_rank(of),
            contention(of),
            dtypes_of_ranks(of, frame),
            mixed_dtypes(of),
            compute_overlap(of),
            few_channels(of),
            fewer_cards(of),
            host_staged(of),
            other_algorithm(of, lambda cost_id: _ways(of.context, cost_id, firsts)),
            small_message(of),
        ]
    )


def _ways(context: Context, cost_id: int, firsts: pd.DataFrame) -> list[Way]:
    """Return the times by each algorithm and protocol that the fabric's library has.

    `firsts` has a collective of each cost id, by that.
    """
    op, moved = str(firsts.at[cost_id, "op"]), number(firsts.at[cost_id, "message_bytes"])
    placement, cost = context.places[cost_id], context.costs[cost_id]
    return [] if moved is None else ways(context.fabric, op, moved, placement, cost)


def _finding(context: Context, line: Line, rows: pd.DataFrame, of: Slow, part: _Part) -> Finding:
    toll, saving = line.figures["moving_ns"], line.figures["over_ns"]
    op, fabric = str(line.first["op"]), context.fabric
    factors, seen = of.column("factor"), int(part.slow.sum())
    likely = reasons(of, rows)
    cost, placement = _typical(of)
    because = f"; likely reason: {likely[0].name}" if likely else ""
    unsure = _too_wide(of)
    if unsure:
        because = f", which may be sound: nobody measured groups of {placement.ranks} ranks"
    return Finding(
        kind="below-roofline",
        severity="info" if unsure or _guessed_among_cores(context, cost, placement) else "warning",
        title=f"{op}{part.of} on {line.first['net']} takes {float(np.median(factors)):.1f} times what is "
        f"expected on {fabric.name} (median of {times(seen, 'collective')}, waiting left out), "
        f"{often(line.each)} per step{because}",
        toll_ns=toll,
        floor_ns=line.figures["floor_ns"],
        saving_ns=None if toll is None or saving is None else min(toll, saving),
        bytes=line.figures["message_bytes"],
        count=line.count,
        ranks=line.ranks,
        where=line.where("group", "mesh_dim", op=op),
        evidence=(
            Evidence("median transfer over prediction", round(float(np.median(factors)), 2), "x"),
            Evidence("largest", round(float(factors.max()), 2), "x"),
            Evidence("limit for this finding", round(_limit(of), 2), "x"),
            *_band(cost, unsure=unsure),
            Evidence("collectives judged", seen),
            *_prediction(cost, placement, rows, of),
            *(
                fact
                for place, reason in enumerate(likely, 1)
                for fact in (
                    Evidence(
                        f"reason {place}: {reason.name}", f"{reason.why} (score {percent(reason.score)})"
                    ),
                    *reason.evidence,
                )
            ),
            Evidence("fabric", context.fabric_words(rows.index.to_numpy())),
        ),
        rows=Rows.of(collectives=rows.index),
        remedy=_remedy(context, likely, cost, placement, unsure=unsure),
        confidence="likely" if of_its_size(context, cost, placement) else "possible",
    )


def _typical(of: Slow) -> tuple[Cost, Placement]:
    """Return the cost of the slow ones whose message is the median one, and where its ranks stand."""
    sizes = of.column("message_bytes")
    cost_id = int(of.bad["cost_id"].iloc[int(np.argsort(sizes, kind="stable")[len(sizes) // 2])])
    return of.context.costs[cost_id], of.context.places[cost_id]


def _limit(of: Slow) -> float:
    """Return the factor from which the slow ones count as slow, in the median."""
    return float(np.median(of.column("factor") / of.column("ratio")))


def _too_wide(of: Slow) -> bool:
    """Whether the median transfer may be a sound one, as its band is wide: nobody measured such groups."""
    context = of.context
    limits = np.array([limit(cost, on_cpu=context.on_cpu) for cost in context.costs])
    priced = zip(context.costs, context.places, strict=True)
    least = np.array([doubtful_limit(context, cost, placement) for cost, placement in priced])
    cost_id = of.bad["cost_id"].to_numpy(dtype=np.int64)
    doubted = (least < limits)[cost_id] & (of.column("factor") < limits[cost_id])
    return 2 * int(doubted.sum()) > len(doubted)


def _band(cost: Cost, *, unsure: bool) -> tuple[Evidence, ...]:
    """Return how long a sound run may take if that is too long to judge by."""
    if not unsure:
        return ()
    most = round(cost.high_ns / max(1, cost.time_ns), 2)
    return (Evidence("too wide to judge: a sound run may take, of the prediction", most, "x"),)


def _prediction(cost: Cost, placement: Placement, rows: pd.DataFrame, of: Slow) -> tuple[Evidence, ...]:
    """Return what the typical one should have taken, and how that is known."""
    typical = of.bad[of.bad["cost_id"].map(lambda each: of.context.costs[int(each)] == cost)]
    message = number(typical["message_bytes"].iloc[0])
    factor = busbw_factor(str(typical["op"].iloc[0]), placement.ranks)
    possible = None if not message or not factor else round(message * factor / max(1, cost.time_ns), 3)
    reached = rows["busbw_gbps"].dropna()
    how = " with ".join(part for part in (cost.algorithm, cost.protocol) if part)
    shared = f", {placement.sharing} groups sharing the cards of a node" if placement.sharing > 1 else ""
    guesses = (Evidence("guesses among its numbers", ", ".join(cost.guesses)),) if cost.guesses else ()
    return (
        Evidence("median message", message, "bytes"),
        Evidence("median transfer of it", int(typical["transfer_ns"].median()), "ns"),
        Evidence("expected", cost.time_ns, "ns"),
        Evidence("band of sound runs", f"{duration(cost.low_ns)} to {duration(cost.high_ns)}"),
        Evidence("floor (one of twenty sound runs is faster)", cost.floor_ns, "ns"),
        Evidence("speed of light (physics of the links)", cost.light_ns, "ns"),
        Evidence("prediction by", f"{_basis(of.context, cost, placement)}; {how}{shared}"),
        *guesses,
        Evidence("busbw reached", round(float(reached.median()), 3) if len(reached) else None, "GB/s"),
        Evidence("busbw predicted for the median message", possible, "GB/s"),
    )


def _basis(context: Context, cost: Cost, placement: Placement) -> str:
    """Return in words what the price rests on."""
    if cost.basis != "transferred" or of_its_size(context, cost, placement):
        return BASIS[cost.basis]
    return extrapolated(measured_ranks(context.fabric, placement))


def _guessed_among_cores(context: Context, cost: Cost, placement: Placement) -> bool:
    """Whether one host's cores move the data and compute as well, and nobody measured how fast they do for so
    many ranks.

    How busy the cores are decides then, and no interface does.
    """
    one_host = len(context.ledger.run.hosts) == 1
    return context.on_cpu and one_host and not of_its_size(context, cost, placement)


def _remedy(
    context: Context, likely: list[Reason], cost: Cost, placement: Placement, *, unsure: bool
) -> Remedy:
    measured = of_its_size(context, cost, placement)
    calibrate = ["shardtoll", "calibrate", "-o", "fabric.toml"]
    if cost.basis == "transferred" and not measured:
        calibrate[2:2] = ["--nproc", str(placement.ranks)]
    run = f"subprocess.run({json.dumps(calibrate)})"
    nobody = (
        "nobody has measured this machine"
        if cost.basis == "model"
        else f"nobody has measured groups of {placement.ranks} ranks on this machine"
    )
    if unsure:
        return Remedy(
            text=f"Measure groups of this size with `{' '.join(calibrate[:-2])}`: {nobody}. The band of "
            "sound runs is extrapolated from other sizes, and too wide to judge these times by.",
            code=run,
            counterfactual="the same collectives at their expected times, not their floors",
            measures=True,
        )
    if not likely and _guessed_among_cores(context, cost, placement):
        return Remedy(
            text=f"Measure the fabric under this load with `{' '.join(calibrate[:-2])}`: {nobody}. The same "
            "cores compute and move the data, so other work on them slows both.",
            code=run,
            counterfactual="the same collectives at their expected times, not their floors",
            measures=True,
        )
    if likely:
        others = "; ".join(f"{reason.name} ({percent(reason.score)})" for reason in likely[1:])
        advice = likely[0].text + (f" Else: {others}." if others else "")
        code = likely[0].code or _code(context.ledger.run.backend)
    else:
        advice = (
            f"Set {_switch(context.ledger.run.backend)}, and see which interface carries the data: no record "
            "shows the reason. Waiting for late ranks is not in these times. Check that no other job shares "
            "the link."
        )
        code = _code(context.ledger.run.backend)
    if not measured:
        figures = (
            "The fabric's figures were not measured on this machine"
            if cost.basis == "model"
            else f"Groups of {placement.ranks} ranks were not measured"
        )
        advice += f" {figures}: run `{' '.join(calibrate[:-2])}` before you conclude."
        code = f"{run}  # first: measure it\n{code}"
    return Remedy(
        text=advice,
        code=code,
        counterfactual="the same collectives at their expected times, not their floors",
    )


def _switch(backend: str | None) -> str:
    """Return the setting that chooses or shows the interface."""
    return "GLOO_SOCKET_IFNAME" if "gloo" in (backend or "") else "NCCL_DEBUG=INFO"


def _code(backend: str | None) -> str:
    """Return how to choose the interface, and to see which one was chosen."""
    if "gloo" in (backend or ""):
        return 'os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # the fast one; before init_process_group'
    return "\n".join(
        [
            "# before init_process_group; NCCL then logs the interfaces and paths that it uses",
            'os.environ["NCCL_DEBUG"] = "INFO"',
            'os.environ["NCCL_SOCKET_IFNAME"] = "eth0"  # the fast one; NCCL_IB_HCA for InfiniBand',
        ]
    )
