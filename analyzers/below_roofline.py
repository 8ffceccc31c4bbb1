"""Transfers far slower than the fabric allows, waiting for late ranks left out."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.tally import Line, keep, tally
from shardtoll.analyzers.words import times
from shardtoll.ledger import Evidence, Finding, Remedy

MEASURED_FACTOR: Final = 2.0
"""Against floors measured on this machine: published sweeps of a sound fabric repeat within 5 %, and
mid sizes of a tuned library lie up to 1.6 times above the floor model."""

MODELLED_FACTOR: Final = 3.0
"""Against shipped figures: sound machines of another make lie up to twice above them."""

SHARED_CORES_FACTOR: Final = 10.0
"""On CPUs, where ranks share cores with each other and with the transport: a rank that is not
scheduled delays a transfer by whole time slices, which says nothing of the fabric."""

LEAST_COLLECTIVES: Final = 3
"""The factor is a median; of fewer it would be an accident."""

LEAST_SHARE: Final = 0.01
"""Share of the step that reaching the floor must be able to save."""

KEYS: Final = ("net", "op")

COLUMNS: Final = (
    *("step", "rank", "op", "group", "mesh_dim", "net", "match_id", "message_bytes"),
    *("exposed_ns", "transfer_ns", "busbw_gbps", "floor_ns", "floor_latency_ns"),
)
"""What is looked at of a collective."""


def _judged(context: Context) -> pd.DataFrame:
    """Return the collectives that can be judged, one row a rank, with `factor` of the whole collective,
    moving_ns (exposed time less waiting) and over_ns (what of it lies above the floor).

    Of a collective's ranks the fastest transfer counts: the fabric did that much. Messages that
    latency dominates are judged only on accelerators with measured floors. Where ranks send different
    amounts, what each receives is not on record, and nothing is judged.
    """
    frame = context.in_alike[list(COLUMNS)]
    known = frame["transfer_ns"].notna() & (frame["floor_ns"] > 0) & frame["match_id"].notna()
    if context.on_cpu or not context.fabric.measured:
        known &= 2 * frame["floor_latency_ns"] < frame["floor_ns"]
    frame = keep(frame, known)
    sizes = frame.groupby("match_id")["message_bytes"]
    frame = keep(frame, ~(sizes.transform("min") != sizes.transform("max")).fillna(False).astype(bool))
    fastest = frame.groupby("match_id")["transfer_ns"].transform("min").to_numpy(dtype=np.float64)
    over = (frame["transfer_ns"] - frame["floor_ns"]).clip(lower=0)
    moving = frame["transfer_ns"].where(frame["transfer_ns"] < frame["exposed_ns"], frame["exposed_ns"])
    judged: pd.DataFrame = frame.assign(
        factor=fastest / frame["floor_ns"].to_numpy(dtype=np.float64),
        moving_ns=moving,
        over_ns=over.where(over < moving, moving),
    )
    return judged


def find(context: Context) -> list[Finding]:
    """Return one finding a group and op whose median transfer is several times its floor.

    Toll: exposed transfer per step, on the rank where it is largest; waiting for late ranks is billed as
    straggler. The counterfactual is the same collectives at their floors; the saving is what of the
    transfer above the floor was exposed.
    """
    limit = MEASURED_FACTOR if context.fabric.measured else MODELLED_FACTOR
    if context.on_cpu:
        limit = SHARED_CORES_FACTOR
    frame = _judged(context)
    if frame.empty:
        return []
    result = tally(frame, KEYS, ("moving_ns", "over_ns", "message_bytes", "floor_ns"), context.alike)
    # A message is in two lines, of its send and of its receive.
    each = frame.assign(code=result.code).drop_duplicates(["match_id", "code"])
    once = each.groupby("code")["factor"]
    factors = once.agg(["median", "size", "max"])
    findings = []
    for line in result.lines:
        factor, seen = float(factors["median"][line.code]), int(factors["size"][line.code])
        share = context.share(line.figures["over_ns"], context.alike)
        if factor >= limit and seen >= LEAST_COLLECTIVES and share is not None and share >= LEAST_SHARE:
            rows = keep(frame, result.code == line.code)
            worst = float(factors["max"][line.code])
            findings.append(_finding(context, line, rows, (factor, worst, limit), seen))
    return findings


def _finding(
    context: Context, line: Line, rows: pd.DataFrame, factors: tuple[float, float, float], seen: int
) -> Finding:
    factor, worst, limit = factors
    toll, saving = line.figures["moving_ns"], line.figures["over_ns"]
    op, fabric = str(line.first["op"]), context.fabric
    advice = (
        "Waiting for late ranks is not in these times: look at the transport. Check that the right "
        "interface is used and that no other job shares the link."
    )
    if not fabric.measured:
        advice += (
            " The fabric's figures were not measured on this machine: run `shardtoll calibrate` before you "
            "conclude."
        )
    return Finding(
        kind="below-roofline",
        severity="warning",
        title=f"{op} on {line.first['net']} takes {factor:.1f} times what {fabric.name} allows (median of "
        f"{times(seen, 'collective')}, waiting left out), {times(line.each, 'time')} a step",
        toll_ns=toll,
        floor_ns=line.figures["floor_ns"],
        saving_ns=None if toll is None or saving is None else min(toll, saving),
        bytes=line.figures["message_bytes"],
        count=line.count,
        ranks=line.ranks,
        where=line.where("group", "mesh_dim", op=op),
        evidence=(
            Evidence("median transfer over floor", round(factor, 2), "x"),
            Evidence("largest", round(worst, 2), "x"),
            Evidence("limit for this finding", limit, "x"),
            Evidence("collectives judged", seen),
            Evidence("median busbw", round(float(rows["busbw_gbps"].median()), 3), "GB/s"),
            Evidence("median message", int(rows["message_bytes"].median()), "bytes"),
            Evidence("fabric", f"{fabric.name}: {fabric.provenance}"),
        ),
        remedy=Remedy(
            text=advice,
            code=_code(context.ledger.run.backend, measured=fabric.measured),
            counterfactual="the same collectives at their floors",
        ),
        confidence="likely" if fabric.measured else "possible",
    )


def _code(backend: str | None, *, measured: bool) -> str:
    """Return how to choose the interface, and to see which one was chosen; to measure the fabric first."""
    if "gloo" in (backend or ""):
        lines = ['os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # the fast one; before init_process_group']
    else:
        lines = [
            "# before init_process_group; NCCL then logs the interfaces and paths that it uses",
            'os.environ["NCCL_DEBUG"] = "INFO"',
            'os.environ["NCCL_SOCKET_IFNAME"] = "eth0"  # the fast one; NCCL_IB_HCA for InfiniBand',
        ]
    if not measured:
        lines.insert(0, 'subprocess.run(["shardtoll", "calibrate", "-o", "fabric.toml"])  # first')
    return "\n".join(lines)
