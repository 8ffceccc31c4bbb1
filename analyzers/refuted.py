"""Floors that the job itself refutes: its transfers took less than the least time a model allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.roofline import Cost
from shardtoll.analyzers.tally import codes, keep
from shardtoll.analyzers.words import ranks, times

LIMIT: Final = 0.9
"""Transfers below this part of their floor refute it, if they lie below the band of sound runs too. Closer
to it a clock's error, or the spread of what the floor was measured by, explains the difference."""

KEYS: Final = ("op", "message_bytes", "group_id", "group_size", "cost_id", "floor_ns", "light_ns")

BESIDES: Final = ("net", "rank", "match_id", "transfer_ns")
"""Other columns that are looked at; a run of a million collectives is not copied whole."""

SHOWN: Final = 3
"""Refuted floors named in the fabric's line; the others are counted."""


@dataclass(frozen=True, slots=True)
class Refuted:
    """One floor that measured transfers lie below."""

    op: str
    net: str
    ranks: tuple[int, ...]
    floor_ns: int
    factor: float
    """Median transfer over the floor, of the slowest rank of each collective; below `LIMIT`."""
    seen: int
    """Collectives."""

    def words(self) -> str:
        """Return what took how much of its floor."""
        return (
            f"{self.op} on {self.net} ({ranks(self.ranks)}) took {self.factor:.2g} times its floor in the "
            f"median of {times(self.seen, 'collective')}"
        )


def refute(frame: pd.DataFrame, costs: Sequence[Cost]) -> tuple[pd.DataFrame, tuple[Refuted, ...]]:
    """Return the collectives without the floors that are refuted, and those floors, the worst first.

    The rank with the longest transfer counts, so that one rank's clock or late start refutes nothing.
    A floor that was refuted is unknown: a model that is wrong there says nothing of the least time. The speed
    of light, which follows from the links alone, stays unless transfers lie below that as well.
    """
    known = frame["transfer_ns"].notna() & (frame["floor_ns"] > 0) & frame["match_id"].notna()
    # A floor that came with the record, of a fabric not at hand, has no cost to be held against.
    known &= frame["cost_id"].notna()
    rows = keep(frame[[*KEYS, *BESIDES]], known & (frame["transfer_ns"] > 0))
    if rows.empty:
        return frame, ()
    code, keys = codes(rows, KEYS)
    each = rows.assign(code=code).groupby(["match_id", "code"])["transfer_ns"].max()
    middle = each.astype("float64").groupby(level="code").agg(["median", "size"])
    floors = keys["floor_ns"].to_numpy(dtype=np.float64)
    factors = middle["median"].to_numpy(dtype=np.float64) / floors[middle.index.to_numpy(dtype=np.int64)]
    lows = np.array([cost.low_ns for cost in costs], dtype=np.float64)
    low = lows[keys["cost_id"].to_numpy(dtype=np.int64)] / floors
    wrong = {
        int(at): float(factor)
        for at, factor in zip(middle.index, factors, strict=True)
        if factor < min(LIMIT, low[int(at)])
    }
    if not wrong:
        return frame, ()
    found = []
    own: dict[Any, Any] = dict(rows.groupby(code).indices)
    rank = rows["rank"].to_numpy(dtype=np.int64)
    seen = dict(zip(middle.index, middle["size"], strict=True))
    named = {name: keys[name].to_list() for name in ("op", "net", "floor_ns")}
    for at, factor in wrong.items():
        op, net, floor_ns = (named[name][at] for name in ("op", "net", "floor_ns"))
        who = tuple(np.unique(rank[own[at]]).tolist())
        found.append(Refuted(str(op), str(net), who, int(floor_ns), factor, int(seen[at])))
    # All rows with such a floor lose it, those whose own transfer is unknown too.
    cost_ids = keys["cost_id"].to_numpy(dtype=np.int64)
    light = (keys["light_ns"] / keys["floor_ns"]).to_numpy(dtype=np.float64)
    faster = [at for at, factor in wrong.items() if factor < LIMIT * light[at]]
    frame = frame.copy(deep=False)
    for name, places in (
        ("floor_ns", list(wrong)),
        ("floor_latency_ns", list(wrong)),
        ("light_ns", faster),
    ):
        frame[name] = frame[name].mask(frame["cost_id"].isin(cost_ids[places]))
    return frame, tuple(sorted(found, key=lambda one: one.factor))


def note(refuted: tuple[Refuted, ...]) -> str:
    """Return the sentence for the fabric's line; empty where no floor is refuted."""
    if not refuted:
        return ""
    named = "; ".join(one.words() for one in refuted[:SHOWN])
    more = f"; and {len(refuted) - SHOWN} more" if len(refuted) > SHOWN else ""
    return (
        f"REFUTED by this job's measurements: {named}{more}. These floors are left out as unknown; calibrate "
        "the fabric or name another"
    )
