"""Floors that the job itself refutes: its transfers took less than the least time a model allows."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.peers import ROOTED, SYNCHRONISING
from shardtoll.analyzers.shared.tally import codes, keep, number
from shardtoll.ledger.words.human import duration, ranks, some_size
from shardtoll.ledger.words.human import plural as times

LIMIT: Final = 0.9
"""Transfers below this part of their floor refute it. Closer to it a clock's error, or being the one of
twenty sound runs that is faster, explains the difference."""

KEYS: Final = ("op", "message_bytes", "group_id", "group_size", "cost_id", "floor_ns", "light_ns")

BESIDES: Final = ("net", "rank", "match_id", "transfer_ns", "duration_ns", "torn")
"""Other columns that are looked at; a run of a million collectives is not copied whole."""

SHOWN: Final = 3
"""Refuted floors named in the fabric's line; the others are counted."""


class Refuted(Struct, frozen=True):
    """One floor that measured times lie below."""

    op: str
    net: str
    ranks: tuple[int, ...]
    message_bytes: int | None
    floor_ns: int
    light_ns: int | None
    """The links' speed of light, if the job was faster than that too; None if it holds."""
    factor: float
    """Median time over the floor, of the slowest rank of each collective; below `LIMIT`."""
    seen: int
    """Collectives."""

    def words(self, others: int) -> str:
        """Return how long it took against its floor; `others`: number of other sizes that beat theirs."""
        whole = "" if self.seen == 1 else f" in the median of {times(self.seen, 'collective')}"
        light = (
            "" if self.light_ns is None else f" and than the links' speed of light, {duration(self.light_ns)}"
        )
        besides = f" ({times(others, 'other size')} of it likewise)" if others else ""
        took, floor = duration(self.factor * self.floor_ns), duration(self.floor_ns)
        what = f"{self.op} of {some_size(self.message_bytes)} on {self.net} ({ranks(self.ranks)})"
        return f"{what} took {took}{whole}, less than its floor of {floor}{light}{besides}"


def refute(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[Refuted, ...]]:
    """Return the collectives without the floors that are refuted, and those floors, the worst first.

    The rank with the longest transfer counts, so that one rank's clock or late start refutes nothing. If
    transfer and waiting cannot be separated, as with one rank seen of many, the whole span is used, as no
    transfer lasts longer. Rooted operations refute nothing: ranks leave early, or come when all is done. A
    floor that was refuted is unknown: a model that is wrong there says nothing of the least time. The speed
    of light, which follows from the links alone, stays unless transfers lie below that as well.
    """
    if not _any_below(frame):
        return frame, ()
    spanned = frame["op"].isin(SYNCHRONISING) & frame["duration_ns"].notna() & ~frame["torn"]
    # The time that a rank spends in a rooted operation is not that of the whole, whatever it waited.
    rooted = frame["op"].isin(ROOTED)
    comparable = (frame["transfer_ns"].notna() | spanned) & (frame["floor_ns"] > 0)
    comparable &= frame["match_id"].notna() & ~rooted
    # A floor that came with the record, of a fabric not at hand, has no cost to be held against.
    comparable &= frame["cost_id"].notna()
    rows = keep(frame[[*KEYS, *BESIDES]], comparable)
    rows = rows.assign(took_ns=rows["transfer_ns"].fillna(rows["duration_ns"]))
    rows = keep(rows, rows["took_ns"] > 0)
    if rows.empty:
        return frame, ()
    code, keys = codes(rows, KEYS)
    each = rows.assign(code=code).groupby(["match_id", "code"])["took_ns"].max()
    middle = each.astype("float64").groupby(level="code").agg(["median", "size"])
    floors = keys["floor_ns"].to_numpy(dtype=np.float64)
    factors = middle["median"].to_numpy(dtype=np.float64) / floors[middle.index.to_numpy(dtype=np.int64)]
    wrong = {
        int(kind): float(factor) for kind, factor in zip(middle.index, factors, strict=True) if factor < LIMIT
    }
    if not wrong:
        return frame, ()
    light = (keys["light_ns"] / keys["floor_ns"]).to_numpy(dtype=np.float64, na_value=np.nan)
    faster = [kind for kind, factor in wrong.items() if factor < LIMIT * light[kind]]
    refuted = []
    rows_of: dict[Any, Any] = dict(rows.groupby(code).indices)
    rank = rows["rank"].to_numpy(dtype=np.int64)
    seen = dict(zip(middle.index, middle["size"], strict=True))
    named = {name: keys[name].to_list() for name in ("op", "net", "message_bytes", "floor_ns", "light_ns")}
    for kind, factor in wrong.items():
        op, net, sent, floor_ns, light_ns = (values[kind] for values in named.values())
        refuted.append(
            Refuted(
                op=str(op),
                net=str(net),
                ranks=tuple(np.unique(rank[rows_of[kind]]).tolist()),
                message_bytes=number(sent),
                floor_ns=int(floor_ns),
                light_ns=int(light_ns) if kind in faster else None,
                factor=factor,
                seen=int(seen[kind]),
            )
        )
    # All rows with such a floor lose it, those whose own transfer is unknown too.
    cost_ids = keys["cost_id"].to_numpy(dtype=np.int64)
    frame = frame.copy(deep=False)
    for name, places in (
        ("floor_ns", list(wrong)),
        ("expected_ns", list(wrong)),
        ("expected_latency_ns", list(wrong)),
        ("band_low_ns", list(wrong)),
        ("band_high_ns", list(wrong)),
        ("light_ns", faster),
    ):
        frame[name] = frame[name].mask(frame["cost_id"].isin(cost_ids[places]))
    return frame, tuple(sorted(refuted, key=lambda floor: floor.factor))


def _any_below(frame: pd.DataFrame) -> bool:
    """Return whether any record took less than the limit of its floor: a median below it needs one."""
    transfer, span, floor = (
        frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
        for name in ("transfer_ns", "duration_ns", "floor_ns")
    )
    took = np.where(np.isnan(transfer), span, transfer)
    part = np.divide(took, floor, out=np.full(len(frame), np.inf), where=(floor > 0) & (took > 0))
    return bool((part < LIMIT).any())


def note(refuted: tuple[Refuted, ...]) -> str:
    """Return the sentence for the fabric's line; empty if no floor is refuted."""
    if not refuted:
        return ""
    kinds = Counter((floor.op, floor.net) for floor in refuted)
    # The worst of each op and group, as `refuted` has them in that order.
    worst = {(floor.op, floor.net): floor for floor in reversed(refuted)}
    shown = [floor for floor in refuted if worst[floor.op, floor.net] is floor]
    named = "; ".join(floor.words(kinds[floor.op, floor.net] - 1) for floor in shown[:SHOWN])
    more = f"; and {len(shown) - SHOWN} more ops" if len(shown) > SHOWN else ""
    lost = "floors" if all(floor.light_ns is None for floor in refuted) else "floors and speeds of light"
    return (
        f"REFUTED by this job's measurements: {named}{more}. These {lost} are left out as unknown; calibrate "
        "the fabric or name another"
    )
