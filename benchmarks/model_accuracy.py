"""How far the cost model lies from all measured sweeps, beside the two cost models inside torch.

Sweeps: `$SHARDTOLL_SHARED/sweeps` (nccl-tests' output as CSV). Relative errors, median / p90, by size band,
of what was calibrated on every second size of the same sweep, transferred from one other sweep of the same
cluster, or not fitted. Beside them on the very same points: DTensor's redistribute_cost and inductor's NCCL
estimator; `x` is how many times smaller our median error is. `noise` is what the out-of-place and in-place
columns of the sweeps differ by, `in band` the share of the measurements within the band that was stated,
`width` how many times its low end that band's high end is, at the median; `floor` and `light` the
shares of the measurements below these, of the floor by more than 2 %.

All of it twice: with the constants that are shipped, which were learned from these very sweeps, and for each
sweep with constants and bands learned anew from the sweeps of all other sources. The second counts.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accuracy.cases import AIMS, Case, cases, read_all
from accuracy.constants import AS_SHIPPED, unseen
from accuracy.peers import PEERS
from harness import Result, main

from shardtoll.analyzers.roofline.evaluate.score import (
    BANDS,
    BELOW,
    Score,
    Scored,
    band_of,
    by_band,
    noise,
    score,
)

HOLDS: Final = 0.90
"""Share of the measurements that the stated bands should hold."""
WORST: Final = 3
"""Sweeps that are named where an aim is missed."""


@dataclass(frozen=True, slots=True)
class Row:
    """One class of cases and one band of sizes."""

    kind: str
    band: str
    ours: Score
    aim: tuple[float, float] | None
    noise: tuple[float, float] | None
    peers: Mapping[str, tuple[Score, float] | None]
    """Peer -> its errors on the points where it says something, and our median on those."""
    worst: tuple[str, ...]

    @property
    def met(self) -> bool | None:
        """Whether the aim for the errors is met; None where there is none."""
        if self.aim is None:
            return None
        return self.ours.median <= self.aim[0] and self.ours.p90 <= self.aim[1]

    @property
    def holds(self) -> bool | None:
        """Whether the bands hold as often as they should; asked of a class as a whole."""
        return self.ours.inside >= HOLDS if self.band == "all" else None


def rows(found: Sequence[Case]) -> list[Row]:
    """Return the table of all classes that have a predicted point."""
    table = []
    for kind, aim in AIMS.items():
        group = [case for case in found if kind in case.kinds]
        floors = noise({case.found.sweep: None for case in group})
        for band, ours in by_band(point for case in group for point in case.found.scored).items():
            if ours is None:
                continue
            peers = {name: _peer(name, group, band) for name in PEERS}
            worst = _worst(group, band)
            table.append(Row(kind, band, ours, aim.by_band.get(band), floors[band], peers, worst))
    return table


def _in_band(points: Iterable[Scored], band: str) -> list[Scored]:
    if band == BELOW:
        return [point for point in points if band_of(point.message_bytes) != BANDS[-1][0]]
    return [point for point in points if band in ("all", band_of(point.message_bytes))]


def _peer(name: str, group: Sequence[Case], band: str) -> tuple[Score, float] | None:
    """Return the peer's errors and our median on the same points; None where it says nothing."""
    theirs, ours = [], []
    for case in group:
        for point in _in_band(case.found.scored, band):
            said_ns = PEERS[name](case.found.sweep, point.message_bytes)
            if said_ns is not None:
                theirs.append(Scored(point.message_bytes, point.measured_ns, said_ns, said_ns, said_ns))
                ours.append(point)
    found, mine = score(theirs), score(ours)
    return None if found is None or mine is None else (found, mine.median)


def _worst(group: Sequence[Case], band: str) -> tuple[str, ...]:
    """Return the cases with the largest median errors, worst first, each with median and p90."""
    scores = [(case.name, score(_in_band(case.found.scored, band))) for case in group]
    known = sorted(((one, name) for name, one in scores if one), key=lambda pair: -pair[0].median)
    return tuple(f"{name} {_pair(one.median, one.p90)}" for one, name in known[:WORST])


def _pair(median: float, p90: float) -> str:
    return f"{100 * median:.1f} / {100 * p90:.1f}"


def show(title: str, found: Sequence[Case], table: Sequence[Row]) -> None:
    """Print the table, refusals, and what is behind each missed aim."""
    print(f"\n== constants {title}; relative errors in %, median / p90 ==")
    for kind in dict.fromkeys(row.kind for row in table):
        group = [case for case in found if kind in case.kinds]
        none = [point for case in group for point in case.found.points if point.cost is None]
        refusals = f", {len(none)} points refused" if none else ""
        print(f"\n{kind} ({len(group)} {'pairs' if 'transferred' in kind else 'sweeps'}{refusals})")
        heads = f"{'ours':>13} {'aim':>10} {'':6} {'in band':>8} {'width':>6}"
        heads += f" {'floor':>6} {'light':>6} {'noise':>12}"
        peers = "".join(f" {name:>22} {'x':>6}" for name in PEERS)
        print(f"  {'band':8} {'points':>6} {heads}{peers}")
        for row in (row for row in table if row.kind == kind):
            print("  " + _line(row))
    _show_missed(table)


def _line(row: Row) -> str:
    aim = "" if row.aim is None else f"{100 * row.aim[0]:.0f} / {100 * row.aim[1]:.0f}"
    verdict = {None: "", True: "met", False: "MISSED"}[row.met]
    inside = f"{100 * row.ours.inside:.0f}{'' if row.holds is not False else ' !'}"
    floor = "" if row.noise is None else _pair(*row.noise)
    ours = _pair(row.ours.median, row.ours.p90)
    text = f"{row.band:8} {row.ours.count:6} {ours:>13} {aim:>10} {verdict:6} {inside:>8}"
    below = f"{100 * row.ours.below_floor:>6.1f} {100 * row.ours.below_light:>6.1f}"
    text += f" {row.ours.width:>5.2f}x {below} {floor:>12}"
    for peer in row.peers.values():
        if peer is None:
            text += f" {'says nothing':>22} {'':>6}"
        else:
            text += f" {_pair(peer[0].median, peer[0].p90):>22} {_times(peer):>6}"
    return text


def _times(peer: tuple[Score, float]) -> str:
    theirs, ours = peer
    return f"{theirs.median / ours:.1f}" if ours > 0 else "-"


def _show_missed(table: Sequence[Row]) -> None:
    missed = [row for row in table if row.met is False or row.holds is False]
    for row in missed:
        what = "the error's aim" if row.met is False else f"{100 * HOLDS:.0f} % in the band"
        if row.met is False and row.holds is False:
            what += f" and {100 * HOLDS:.0f} % in the band"
        print(f"\nmissed, {row.kind}, {row.band}: {what}; worst: {'; '.join(row.worst)}")


def measure(arguments: argparse.Namespace) -> Result:
    """Score every case with every set of constants, print the tables, and return the figures."""
    sweeps = read_all(arguments.sweeps)
    if not sweeps:
        raise SystemExit(f"no sweep in {arguments.sweeps}: name their folder with --sweeps")
    figures: dict[str, float | None] = {}
    aims: dict[str, float] = {}
    ways = {"as shipped": dict.fromkeys(sweeps, AS_SHIPPED)}
    if not arguments.quick:
        ways["that have not seen the sweep's source"] = unseen(sweeps)
    for title, constants in ways.items():
        found = list(cases(sweeps, constants))
        table = rows(found)
        show(title, found, table)
        for row in table:
            key = f"{title}: {row.kind}, {row.band}"
            figures |= {
                f"{key}: median": row.ours.median,
                f"{key}: p90": row.ours.p90,
                f"{key}: in band": row.ours.inside,
                f"{key}: width": row.ours.width,
                f"{key}: below floor": row.ours.below_floor,
                f"{key}: below light": row.ours.below_light,
                f"{key}: points": float(row.ours.count),
            }
            for name, peer in row.peers.items():
                figures[f"{key}: {name} median"] = None if peer is None else peer[0].median
            # Where the whole has an aim it stands for its bands; the table holds theirs.
            if row.aim is not None and (row.band == "all" or "all" not in AIMS[row.kind].by_band):
                aims |= {f"{key}: median": row.aim[0], f"{key}: p90": row.aim[1]}
    return Result(figures, aims)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="shipped constants only: learn none (minutes)")
    shared = Path(os.environ.get("SHARDTOLL_SHARED", "shared"))
    parser.add_argument("--sweeps", type=Path, default=shared / "sweeps", help="folder of sweeps as CSV")


if __name__ == "__main__":
    main(measure, about=__doc__ or "", options=_options)
