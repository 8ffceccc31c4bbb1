"""Each matched collective with the rank that came to it last, the dearest ones first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shardtoll.dashboards import human
from shardtoll.ledger import Report
from shardtoll.ledger.levels import alike_steps
from shardtoll.ledger.tables import to_frame

if TYPE_CHECKING:
    import pandas as pd

SHOWN: Final = 12

LEAST_LATE_NS: Final = 10_000
"""A rank that comes less than this after the one before it is not late: somebody is always last."""

HEADS: Final = ("step", "op", "group", "message", "transfer", "longest wait", "late rank", "busbw")

_PEERS: Final = ("send", "recv")
_COLUMNS: Final = (
    "group", "group_size", "mesh_dim", "rank", "step", "seq", "op", "message_bytes", "issue_ns", "start_ns",
    "duration_ns", "exposed_ns", "wait_ns", "transfer_ns", "busbw_gbps",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Late:
    """One collective, all of whose ranks are on record."""

    step: int | None
    op: str
    group: str
    """The mesh dimension it spans; the group's name where there is none."""
    group_size: int
    message_bytes: int | None
    """The largest of its ranks'."""
    transfer_ns: float
    """Median over its ranks, like the bandwidth."""
    wait_ns: int
    """Of the rank that waited longest."""
    rank: int | None
    """The rank that came last; None where it came with the one before it."""
    late_ns: int
    """By how much it came after the one before it."""
    busbw_gbps: float | None

    def cells(self) -> tuple[str, ...]:
        """Return the row in words, in the order of `HEADS`; names are as recorded, not cleaned."""
        late = "none" if self.rank is None else f"{self.rank}, by {human.duration(self.late_ns)}"
        return (
            human.UNKNOWN if self.step is None else str(self.step),
            self.op,
            f"×{self.group_size} {self.group}",
            human.size(self.message_bytes),
            human.duration(self.transfer_ns),
            human.duration(self.wait_ns),
            late,
            human.rate(self.busbw_gbps),
        )


def late_ranks(report: Report, most: int = SHOWN) -> tuple[list[Late], int]:
    """Return the dearest matched collectives, by exposed time on the rank where it is longest; and how many
    there are in all.

    Matched is what every rank of its group has with a known wait. Messages between two ranks are left out.
    So are, where there are others, steps that some ranks surveyed and others watched: they wait for capture.
    """
    frame = to_frame(report.tables["collectives"].select(list(_COLUMNS)))
    frame = frame.assign(members=_members(report, frame))
    peers = set(frame.loc[frame["op"].isin(_PEERS), "members"])
    frame = frame[frame["wait_ns"].notna() & frame["transfer_ns"].notna() & ~frame["op"].isin(_PEERS)]
    frame = frame[frame["members"].notna() & (frame["group_size"] > 1)]
    steps = report.tables["steps"]
    uneven = set(steps.column("step").to_pylist()) - set(alike_steps(steps))
    frame = frame[~frame["step"].isin(uneven)]
    # As the analyses match: by number, or by order in the step where a group has no numbers of its own.
    by_order = frame["members"].isin(set(frame.loc[frame["seq"].isna(), "members"]) | peers)
    frame = frame.assign(by_order=by_order, place=frame["seq"].where(~by_order, frame["step"]))
    frame = frame[frame["place"].notna()]
    place = [frame[key] for key in ("members", "by_order", "place")]
    asked = frame["issue_ns"].where(
        frame["issue_ns"].notna().groupby(place).transform("all"), frame["start_ns"]
    )
    frame = frame.assign(asked=asked).sort_values("asked", kind="stable")
    keys = ["members", "by_order", "place"]
    frame["nth"] = frame.groupby([*keys, "rank"]).cumcount()
    frame["whole"] = frame.groupby([*keys, "nth"])["rank"].transform("size") == frame["group_size"]
    # Where a rank has more of them than another, the order is not what it seems.
    frame = frame[frame.groupby(keys)["whole"].transform("all").astype(bool)]
    if frame.empty:
        return [], 0
    frame["cost"] = frame["exposed_ns"].fillna(frame["duration_ns"]).fillna(0)
    each = frame.groupby([*keys, "nth"], sort=False)
    dear = each["cost"].max().sort_values(ascending=False, kind="stable")
    return [_late(each.get_group(key)) for key in dear.index[:most]], len(dear)


def _members(report: Report, frame: pd.DataFrame) -> pd.Series[Any]:
    """Return for each row a word for its group's ranks, as sub-groups may share a name; None unknown."""
    import pandas as pd

    world = tuple(range(report.run.world_size))
    known: dict[tuple[str, int, int], str | None] = {}
    keys = ["group", "rank", "group_size"]
    for name, rank, size in frame[keys].drop_duplicates().itertuples(index=False):
        fits = {g.ranks for g in report.groups if g.name == name and g.size == size and rank in g.ranks}
        fits = fits or ({world} if size == len(world) else set())
        known[name, rank, size] = f"{name} {fits.pop()}" if len(fits) == 1 else None
    # Numbered by first appearance, in the order that `known` has.
    number = frame.groupby(keys, sort=False).ngroup()
    each = pd.array([*known.values()], dtype="string").take(number.to_numpy())
    words: pd.Series[Any] = pd.Series(each, index=frame.index)
    return words


def _late(rows: pd.DataFrame) -> Late:
    waits = rows["wait_ns"].to_numpy(dtype=np.int64)
    order = np.argsort(waits, kind="stable")
    late = int(waits[order[1]] - waits[order[0]])
    first = rows.iloc[0]
    sizes, rates = rows["message_bytes"].dropna(), rows["busbw_gbps"].dropna()
    last = rows.iloc[int(order[0])]
    return Late(
        step=_number(first["step"]),
        op=str(first["op"]),
        group=str(first["group"] if _missing(first["mesh_dim"]) else first["mesh_dim"]),
        group_size=int(first["group_size"]),
        message_bytes=int(sizes.max()) if len(sizes) else None,
        transfer_ns=float(rows["transfer_ns"].median()),
        wait_ns=int(waits.max()),
        rank=int(last["rank"]) if late >= LEAST_LATE_NS else None,
        late_ns=late,
        busbw_gbps=float(rates.median()) if len(rates) else None,
    )


def _number(value: Any) -> int | None:
    return None if _missing(value) else int(value)


def _missing(value: Any) -> bool:
    import pandas as pd

    return bool(pd.isna(value))
