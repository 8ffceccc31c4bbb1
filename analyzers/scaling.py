"""How well work spreads over more ranks, and where the rest goes.

Efficiency is work per rank and second of the run with more ranks over that of the one with fewer:
E = (W2 / (N2 T2)) / (W1 / (N1 T1)), for work W of a step, N ranks, T a step's time. With W2 = W1 that is
strong scaling (Amdahl, 1967), with W2/N2 = W1/N1 weak scaling (Gustafson, "Reevaluating Amdahl's law", 1988);
both as in Grama et al., "Introduction to parallel computing" (2003), 5.2.

The loss is divided as lost cycles are (Crovella and LeBlanc, "Parallel performance prediction using lost
cycles analysis", 1994): a unit of work costs c = N t / W of rank-time in each part t of the step, and
1 - E = sum over the parts of (c2 - c1) / (whole c2). The parts of a step add up to it, so the losses add up
to 1 - E.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from shardtoll.ledger.comparison import Loss, Scaling

LOSSES: Final = (
    "exposed communication",
    "waiting",
    "bubble",
    "duplicated work",
    "compute slowdown",
    "other",
)

Kind = Literal["strong", "weak", "given", "batch", "unknown"]


def scaling(
    ranks: tuple[int, int],
    parts: tuple[Mapping[str, float], Mapping[str, float]],
    kind: Kind,
    work: tuple[float, float] | None,
    why: str = "",
) -> Scaling | None:
    """Return efficiency and losses of the run with more ranks against the other; None without times.

    `parts`: for each run ns of a mean step and rank by the names in `LOSSES` (compute without what is
    duplicated under `compute slowdown`). `work` of a step of each, needed where `kind` is `given` or
    `batch`. `why` the kind was chosen. Of an unknown kind the figures are those of strong scaling.
    """
    smaller, larger = (0, 1) if ranks[0] <= ranks[1] else (1, 0)
    if kind in ("strong", "unknown"):
        done = (1.0, 1.0)
    elif kind == "weak":
        done = (float(ranks[0]), float(ranks[1]))
    else:
        assert work is not None, "the work is given"
        done = work
    whole = [sum(one.values()) for one in parts]
    if min(whole) <= 0:
        return None
    cost = [ranks[at] / done[at] for at in (0, 1)]
    total = cost[larger] * whole[larger]
    losses = tuple(
        Loss(
            name,
            (cost[larger] * parts[larger].get(name, 0.0) - cost[smaller] * parts[smaller].get(name, 0.0))
            / total,
        )
        for name in LOSSES
    )
    return Scaling(
        kind=kind,
        ranks=(ranks[smaller], ranks[larger]),
        smaller_is="before" if smaller == 0 else "after",
        speedup=(done[larger] / whole[larger]) / (done[smaller] / whole[smaller]),
        efficiency=cost[smaller] * whole[smaller] / total,
        losses=losses,
        why=why,
    )
