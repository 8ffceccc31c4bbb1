"""Which rows of the collectives' table are one collective, all of whose ranks are on record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shardtoll.dashboards.members import KEYS, members
from shardtoll.ledger import Report
from shardtoll.ledger.levels import alike_steps
from shardtoll.ledger.tables import to_frame

if TYPE_CHECKING:
    import pandas as pd

LEAST_LATE_NS: Final = 10_000
"""A rank that comes less than this after the one before it is not late: somebody is always last."""

_PEERS: Final = ("send", "recv")
_COLUMNS: Final = (
    "group", "group_size", "mesh_dim", "rank", "step", "seq", "op", "message_bytes", "issue_ns", "start_ns",
    "duration_ns", "exposed_ns", "wait_ns", "transfer_ns", "busbw_gbps",
)  # fmt: skip


def matched(report: Report) -> pd.DataFrame:
    """Return the rows of collectives that every rank of their group has with a known wait, in the order in
    which they were asked for, with a column more: `collective`, equal on the rows that are one.

    Messages between two ranks are left out. So are, where there are others, steps that some ranks surveyed
    and others watched: they wait for capture.
    """
    import pandas as pd

    frame = to_frame(report.tables["collectives"].select(list(_COLUMNS)))
    # Numbered by first appearance, in the order that the ranks are known in.
    number = frame.groupby(list(KEYS), sort=False).ngroup().to_numpy()
    ranks = list(members(report, frame).values())
    codes = {group: at for at, group in enumerate(dict.fromkeys(ranks))}
    words = pd.array([None if group is None else codes[group] for group in ranks], dtype="Int64")
    of_name = frame["group"].factorize()[0]
    frame = frame.assign(members=words.take(number) * (int(of_name.max(initial=0)) + 1) + of_name)
    peers = set(frame.loc[frame["op"].isin(_PEERS), "members"].dropna())
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
    each = frame.groupby([*keys, "nth"], sort=False)
    frame["collective"] = each.ngroup()
    frame["whole"] = each["rank"].transform("size") == frame["group_size"]
    # Where a rank has more of them than another, the order is not what it seems.
    whole: pd.DataFrame = frame[frame.groupby(keys)["whole"].transform("all").astype(bool)]
    return whole
