"""Time of a step that no record explains, and the kernels that ran in it if a trace names them."""

from __future__ import annotations

import json
import re
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stragglers.step_excess import told_steps
from shardtoll.ledger import Evidence, Finding, Remedy, Rows
from shardtoll.ledger.words.human import duration, percent, ranks
from shardtoll.ledger.words.human import plural as times

LIMIT: Final = 0.05
"""Share of a step, the capture's own work left out, above which the bill is not whole."""

SHOWN: Final = 5
"""Kernels named as evidence; their rules for a table are in the remedy."""

PLAIN: Final = (
    "Survey more than one step, so that warm-up and allocation are not the step that is judged. Until then "
    "the other figures of these steps are lower bounds."
)
CLASSIFY: Final = (
    "Write the lines below into own.toml, and report again with `--kernels own.toml`: the names of these "
    "kernels look like communication, and no known library has them. Add the `op` if you know it, or "
    'write what = "compute" instead. Until then the other figures of these steps are lower bounds.'
)


def find(context: Context) -> list[Finding]:
    """Return at most one finding: the steps whose unattributed time is above the limit.

    It has no toll, as the time is not known to be lost. Watched steps are not judged, whose compute is
    not on record by design. Steps in which the capture stopped are
    named too, whatever their share: what followed in them is not on record.
    """
    rows = context.surveyed_rows
    rows = rows[rows["duration_ns"] > 0]
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
    kernels = _kernels(context)
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
        if kernels:
            more = f" and {len(kernels) - 1} more" if len(kernels) > 1 else ""
            title += f"; {_stem(kernels[0][0])}{more} ran in it, which may be communication"
        evidence += [
            Evidence("largest unattributed time", int(worst["rest_ns"]), "ns"),
            Evidence("mean of the steps above the limit", round(float(over["rest_ns"].mean())), "ns"),
            Evidence("capture's own time, mean", round(float(rows["capture_ns"].mean())), "ns"),
        ]
        evidence += [
            Evidence(f"not classified: {name}", round(lost_ns), "ns") for name, lost_ns in kernels[:SHOWN]
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
            rows=Rows.of(steps=over.index),
            evidence=tuple(evidence),
            remedy=_remedy(kernels if len(over) else []),
        )
    ]


def _kernels(context: Context) -> list[tuple[str, float]]:
    """Return the kernels nothing classifies, by name, with their time per step on the worst rank."""
    rows = context.stalls_in_steps
    rows = rows[(rows["kind"] == "unclassified") & (rows["name"] != "") & (rows["lost_ns"] > 0)]
    if rows.empty:
        return []
    by_rank = rows.groupby(["name", "rank"])["lost_ns"].sum().groupby(level="name").max()
    steps = told_steps(context)
    most = by_rank.sort_values(ascending=False, kind="stable")
    return [(str(name), float(lost) / len(steps)) for name, lost in most.items()]


def _remedy(kernels: list[tuple[str, float]]) -> Remedy:
    if not kernels:
        return Remedy(PLAIN)
    rules = [
        f'[[kernel]]\npattern = {_quoted(re.escape(_stem(name)))}\nlibrary = "own"\n# op = "all_reduce"'
        for name, _ in kernels[:SHOWN]
    ]
    return Remedy(CLASSIFY, code="\n\n".join(rules))


def _stem(name: str) -> str:
    """Return a kernel's name without return type, template and call arguments, which vary."""
    return name.removeprefix("void ").partition("(")[0].partition("<")[0].strip() or name


def _quoted(text: str) -> str:
    """Return a TOML string: literal if that is possible, so that backslashes stay as they are."""
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text)
