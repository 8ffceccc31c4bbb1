"""Time of a step that no record explains."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.words import duration, percent, ranks, times
from shardtoll.ledger import Evidence, Finding, Remedy

LIMIT: Final = 0.05
"""Share of a step, the capture's own work left out, above which the bill is not whole."""


def find(context: Context) -> list[Finding]:
    """Return at most one finding: the steps whose unattributed time is above the limit.

    It has no toll, as the time is not known to be lost. Steps in which the capture stopped are
    named too, whatever their share: what followed in them is not on record.
    """
    rows = context.step_rows[context.step_rows["duration_ns"] > 0]
    rest = rows["unattributed_ns"] - rows["capture_ns"]
    rows = rows.assign(rest_ns=rest, share=rest / rows["duration_ns"])
    over = rows[rows["share"] > LIMIT]
    stopped = context.notices[
        (context.notices["kind"] == "capture-stopped") & context.notices["step"].notna()
    ]
    if over.empty and stopped.empty:
        return []
    evidence = [
        Evidence(f"step {row['step']} rank {row['rank']}: capture stopped", str(row["text"]))
        for row in stopped.to_dict("records")
    ]
    seen = {int(rank) for rank in over["rank"]} | {int(rank) for rank in stopped["rank"]}
    if over.empty:
        title = f"capture stopped within a step on {ranks(seen)}: what followed in it is not on record"
    else:
        worst = over.sort_values("share", ascending=False, kind="stable").head(1).to_dict("records")[0]
        title = (
            f"up to {percent(float(worst['share']))} of a step is unexplained: "
            f"{duration(int(worst['rest_ns']))} of step {worst['step']} on rank {worst['rank']}, "
            f"above {percent(LIMIT)} in {times(len(over), 'step')} of {ranks(seen)}"
        )
        evidence += [
            Evidence("largest unattributed time", int(worst["rest_ns"]), "ns"),
            Evidence("mean of the steps above the limit", round(float(over["rest_ns"].mean())), "ns"),
            Evidence("capture's own time, mean", round(float(rows["capture_ns"].mean())), "ns"),
        ]
    return [
        Finding(
            kind="unattributed-time",
            severity="warning",
            title=title,
            toll_ns=None,
            floor_ns=None,
            saving_ns=None,
            bytes=None,
            count=1,
            ranks=tuple(sorted(seen)),
            evidence=tuple(evidence),
            remedy=Remedy(
                "Read the other figures of these steps as lower bounds. Survey more than one step, so that "
                "warm-up and allocation are not the step that is judged."
            ),
        )
    ]
