"""In which module and phase a late rank was late, from the operators of an audit.

A step is cut at the operators and collectives on record. Each operator is one piece, and so is the gap
between two. A late rank was late in the piece that it has most longer than the others. Time outside operators
(sleeping, Python, files) shows as a gap: the modules on its two sides say where it is.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import keep, text, with_columns
from shardtoll.ledger import Where

EXPLAINS: Final = 0.5
"""Part of what the rank has longer that one place must account for to be named."""

LEAST_NS: Final = 1_000_000
"""Less in one place may be anything."""

BEGIN, END = "the step's beginning", "the step's end"
SIDES: Final = ("phase", "module", "op")
PIECE: Final = ("gap", *(f"before_{name}" for name in SIDES), *SIDES)


class LatePlace(Struct, frozen=True):
    """The piece of its steps that a late rank has longer than others."""

    where: Where
    clause: str
    """As it stands in a sentence: `in backward of blocks.1`."""
    longer_ns: int
    """Per step, in the step in the middle."""
    lines: str | None = None
    """Next to which lines of code a gap is: `after t.py:4 and before its backward`."""


def late_place(context: Context, late: pd.DataFrame, part: str | None) -> LatePlace | None:
    """Return where the late rank of `late` (see `lateness.waits`) was late in the surveyed steps.

    `part` is what it spends longer: `compute_ns` looks at operators, `host_ns` at gaps, None at both.
    """
    late = keep(late, late["step"].isin(context.surveyed))
    if late.empty:
        return None
    rank = int(late["late_rank"].iloc[0])
    pairs = late[["step", "rank"]].drop_duplicates()
    pieces = _pieces(context, pairs)
    if part is not None:
        pieces = keep(pieces, pieces["gap"] == (part != "compute_ns"))
    by_gap = _longest(pieces, rank, ["gap", *(f"before_{name}" for name in SIDES), *SIDES])
    by_module = _longest(keep(pieces, ~pieces["gap"]), rank, ["gap", "phase", "module"])
    waited = float(late.groupby("rank")["waited_ns"].sum().max()) / late["step"].nunique()
    best = max(
        (candidate for candidate in (by_gap, by_module) if candidate is not None),
        key=lambda candidate: candidate[1],
        default=None,
    )
    if best is None or best[1] < max(LEAST_NS, EXPLAINS * waited):
        return None
    piece, longer = best
    if not piece["gap"]:
        return _of_operator(piece, longer)
    of_rank = keep(pieces, pieces["rank"] == rank)
    return _of_gap(piece, longer, _source(of_rank, piece, "before_source"), _source(of_rank, piece, "source"))


def _pieces(context: Context, pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the pieces of the steps of `pairs` (step, rank) with `PIECE` and time_ns, added up by piece."""
    steps = pairs.merge(context.step_rows, on=["step", "rank"])
    end_ns = steps["start_ns"] + steps["duration_ns"]
    computes = context.computes_in_steps[["step", "rank", *SIDES, "source", "start_ns", "duration_ns"]]
    calls = keep(context.in_steps, context.in_steps["step"].isin(context.surveyed))
    calls = calls[["step", "rank", *SIDES, "source", "issue_ns", "start_ns", "duration_ns", "exposed_ns"]]
    # Who waits does so until the collective has ended: that is nobody's work, and no gap either.
    blocked_ns = calls["exposed_ns"].fillna(0)
    blocked_from_ns = calls["start_ns"] + calls["duration_ns"] - blocked_ns
    calls = calls.drop(columns=["exposed_ns"]).rename(columns={"issue_ns": "issued_ns"})
    marks = [
        computes,
        with_columns(calls, start_ns=calls["issued_ns"], duration_ns=0),
        with_columns(calls, start_ns=blocked_from_ns, duration_ns=blocked_ns, blocked=True),
        steps[["step", "rank", "start_ns"]].assign(op=BEGIN, duration_ns=0),
        steps[["step", "rank"]].assign(start_ns=end_ns, op=END, duration_ns=0),
    ]
    frame = pd.concat(marks, ignore_index=True).merge(pairs, on=["step", "rank"])
    frame = keep(frame, frame["start_ns"].notna() & frame["duration_ns"].notna())
    frame[list(SIDES)] = frame[list(SIDES)].astype("object").where(frame[list(SIDES)].notna(), None)
    frame[["start_ns", "duration_ns"]] = frame[["start_ns", "duration_ns"]].astype("int64")
    frame = frame.sort_values(["rank", "step", "start_ns"], kind="stable", ignore_index=True)
    of = frame.groupby(["rank", "step"], sort=False)
    ended = (frame["start_ns"] + frame["duration_ns"]).groupby([frame["rank"], frame["step"]]).cummax()
    gap = frame["start_ns"] - ended.groupby([frame["rank"], frame["step"]]).shift()
    sides = [*SIDES, "source"]
    before = of[sides].shift().rename(columns={name: f"before_{name}" for name in sides})
    gaps = frame.join(before).assign(gap=True, time_ns=gap.clip(lower=0))
    gaps = keep(gaps, gap.notna())
    worked = keep(with_columns(frame, gap=False, time_ns=frame["duration_ns"]), frame["blocked"].isna())
    both = pd.concat([gaps, worked], ignore_index=True)
    both = keep(both[["step", "rank", "time_ns", *PIECE, "source", "before_source"]], both["time_ns"] > 0)
    filled: pd.DataFrame = both.fillna(dict.fromkeys(PIECE[1:], ""))
    return filled


def _longest(pieces: pd.DataFrame, rank: int, keys: list[str]) -> tuple[dict[str, object], float] | None:
    """Return the piece that the rank has most longer than the median of the others, and by how much a step.

    The median over the steps: a busy machine holds up another place each time.
    """
    if pieces.empty:
        return None
    sums = pieces.groupby([*keys, "step", "rank"], sort=False)["time_ns"].sum().unstack(fill_value=0)
    if rank not in sums.columns or len(sums.columns) < 2:
        return None
    longer = (sums[rank] - sums.drop(columns=rank).median(axis=1)).astype("float64")
    each = longer.unstack("step", fill_value=0.0)
    middle = pd.Series(np.quantile(each.to_numpy(), 0.5, axis=1, method="lower"), index=each.index)
    if middle.empty:
        return None
    number = int(np.argmax(middle.to_numpy()))
    key = middle.index[number]
    return dict(zip(keys, key, strict=True)), float(middle.iloc[number])


def _source(pieces: pd.DataFrame, piece: dict[str, object], column: str) -> str | None:
    """Return the line of code next to most of the time of these gaps: after it (`source`) or before it
    (`before_source`); None if it is unknown."""
    same = np.logical_and.reduce(
        [(pieces[name] == value).to_numpy(dtype=bool) for name, value in piece.items()]
    )
    by_line = pieces[same].groupby(column)["time_ns"].sum()
    return str(by_line.idxmax()) if len(by_line) else None


def _of_operator(piece: dict[str, object], longer: float) -> LatePlace:
    phase, module = str(piece["phase"]), text(piece["module"])
    op = str(piece["op"]) if "op" in piece else None
    where = Where(phase=phase, module=module or None, op=op)
    return LatePlace(where, f"in {phase}{_of(module)}", round(longer))


def _of(module: str | None) -> str:
    return f" of {module}" if module else ""


def _of_gap(piece: dict[str, object], longer: float, ended: str | None, source: str | None) -> LatePlace:
    """`ended` and `source` are the lines of the work before the gap and after it."""
    before_op, op = str(piece["before_op"]), str(piece["op"])
    before, module = str(piece["before_module"]), str(piece["module"])
    phases = str(piece["before_phase"]), str(piece["phase"])
    if before_op == BEGIN:
        phase = phases[1] or None
    elif op == END:
        # Behind the last matmul of backward there is the optimizer, unless the step does more.
        phase = "optimizer" if phases[0] == "backward" else phases[0] or None
    else:
        phase = phases[1]
    sides = f"between {_side(before_op, before)} and {_side(op, module)}"
    where = Where(phase=phase, module=module or before or None, op=sides)
    inside = f"in {phase}, {sides}" if phase else sides
    if "" not in phases and before_op != BEGIN and op != END and phases[0] != phases[1]:
        # From one micro-batch to the next it is in neither.
        inside = f"between {phases[0]} and {phases[1]}" if source else sides
        if source and ended:
            lines = _lines(phases, ended, source)
            return LatePlace(where, f"{inside}, {lines}", round(longer), lines)
    before_line = f"before {_work(phases[1], source)}" if source else None
    return LatePlace(where, f"{inside}, {before_line}" if before_line else inside, round(longer), before_line)


def _work(phase: str, source: str) -> str:
    """Return a line's work of the phase: operators of a backward have the line of their forward."""
    return f"the backward of {source}" if phase == "backward" else source


def _lines(phases: tuple[str, str], ended: str, source: str) -> str:
    """Return between the work of which lines two phases are: `after t.py:4 and before its backward`."""
    if ended == source and phases[1] == "backward":
        return f"after {ended} and before its backward"
    return f"after {_work(phases[0], ended)} and before {_work(phases[1], source)}"


def _side(op: str, module: str) -> str:
    return f"{op}{_of(module)}"
