"""Reports made by hand with what analyses find in them: which records match, and who waited for whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.analyses import filled, match_ids
from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.context.fill import LEAST_LATE_NS
from shardtoll.analyzers.findings.stages.pipeline_bubble import pipelines
from shardtoll.analyzers.findings.stragglers.step_waits import step_waits
from shardtoll.analyzers.findings.trust.unbilled_time import unbilled_time
from shardtoll.analyzers.roofline import choose_fabric
from shardtoll.ledger import Ledger, Report
from shardtoll.ledger.tables.tables import SCHEMAS


def matched(report: Report) -> Report:
    """Return the report with its records matched; `wait_ns` and `transfer_ns` stay as they were written."""
    ledger = Ledger(report.run, report.groups, report.tables)
    context = make_context(ledger, choose_fabric(report.run))
    given = ledger.frame("collectives")
    frame = context.collectives.assign(wait_ns=given["wait_ns"], transfer_ns=given["transfer_ns"])
    frame["waited_ns"] = (frame["exposed_ns"] - frame["transfer_ns"]).clip(lower=0)
    told = frame["wait_ns"].notna() & frame["transfer_ns"].notna() & context.matches.rows["whole"]
    told = told.astype(bool) & ~frame["match_id"].isin(frame.loc[~told, "match_id"])
    by_wait = frame[told].sort_values("wait_ns", kind="stable").groupby("match_id")
    last = by_wait.head(1).set_index("match_id")
    after = by_wait["wait_ns"].nth(1).groupby(frame["match_id"]).first() - last["wait_ns"]
    for name, values in (("last_rank", last["rank"]), ("after_ns", after), ("last_ns", last["rank"] * 0)):
        frame[name] = pd.array(frame["match_id"].map(values).where(told), dtype="Int64")
    frame["arrival_ns"] = frame["arrival_ns"].mask(told, 0)
    frame["late_ns"] = frame["after_ns"]
    frame["late_rank"] = frame["last_rank"].where((frame["after_ns"] >= LEAST_LATE_NS).fillna(False))
    context = replace(context, collectives=frame, memo={})
    columns = ["group_id", "late_rank", "late_ns", "waited_ns"]
    return replace(
        report,
        groups=(*report.groups, *context.matches.undescribed),
        tables={
            **report.tables,
            "collectives": filled(
                report.tables["collectives"], frame[columns].assign(match_id=match_ids(context))
            ),
            "steps": filled(report.tables["steps"], step_waits(context)),
        },
        pipelines=pipelines(context),
    )


def with_unbilled(report: Report) -> Report:
    """Return the report with what the analysis of its steps and stalls says that no finding prices."""
    empty = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    tables = {**empty, **{name: report.tables[name] for name in ("steps", "stalls")}}
    context = make_context(Ledger(report.run, report.groups, tables), choose_fabric(report.run))
    return replace(report, unbilled=unbilled_time(context, report.findings))


def match_numbers(report: Report) -> npt.NDArray[np.int64]:
    """Return each collective's number of its match, -1 where it has none, once analyses have matched them."""
    numbers = matched(report).collectives["match_id"]
    return numbers.to_numpy(dtype=np.int64, na_value=-1)
