"""Whether a run would show a finding of another if it had it: what is not looked at proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow.compute as pc

from shardtoll.ledger import Finding, Report
from shardtoll.ledger.levels import surveyed_steps

Looked = Callable[[Report], bool]


def _values(*kinds: str) -> Looked:
    def looked(report: Report) -> bool:
        return bool({*kinds} & {*pc.unique(report.tables["values"].column("kind")).to_pylist()})

    return looked


def _states(report: Report) -> bool:
    # What parameters began with is taken with gradients too.
    values = report.tables["values"].select(["kind", "step"])
    after = values.filter(pc.is_valid(values.column("step")))
    return bool({"parameter", "buffer"} & {*pc.unique(after.column("kind")).to_pylist()})


def _checked(report: Report) -> bool:
    return "gradients-checked" in pc.unique(report.tables["notices"].column("kind")).to_pylist()


def _surveyed(report: Report) -> bool:
    return bool(surveyed_steps(report.tables["steps"]))


def _rows(table: str) -> Looked:
    return lambda report: report.tables[table].num_rows > 0


_SURVEY: Final = (_surveyed, "has no surveyed step", 'audit(model, level="survey")')
_CHECK: Final = (
    _checked,
    "did not check its gradients",
    "call check_gradients(model, reference, loss) in it",
)
_GRADIENTS: Final = (_values("gradient"), "has no gradients on record", 'audit(model, checks=("gradients",))')
_STATES: Final = (
    _states,
    "did not compare replicas",
    'audit(model, checks=("replicas",))',
)
_INPUTS: Final = (_values("input"), "has no inputs on record", 'audit(model, checks=("data",))')
_MODEL: Final = (_rows("parameters"), "has no parameters on record", 'audit(model, checks=("gradients",))')
_OPERATORS: Final = (_rows("computes"), "has no operators on record", 'audit(model, level="survey")')

LOOKS: Final[Mapping[str, tuple[tuple[Looked, str, str], ...]]] = {
    "implicit-redistribute": (_SURVEY,),
    "redundant-collective": (_SURVEY,),
    "duplicated-compute": (_SURVEY, _OPERATORS),
    "recompute": (_SURVEY,),
    "wrong-gradient": (_CHECK, _GRADIENTS),
    "replica-drift": (_STATES,),
    "unsynced-parameter": (_MODEL,),
    "duplicated-data": (_INPUTS,),
}
"""Kind -> what a run must have looked at, in words that follow `the run after`, and how to have it do so."""


def unseen(finding: Finding, before: Report, after: Report) -> str | None:
    """Return why the absence of the finding in the run after proves nothing; None where it does.

    Only what the run before looked at, and so may have found it by, is asked of the run after.
    """
    if before.tables["steps"].num_rows and not after.tables["steps"].num_rows:
        return "the run after has no finished step"
    for looked, lacks, how in LOOKS.get(finding.kind, ()):
        if looked(before) and not looked(after):
            return f"the run after {lacks}: {how}"
    if before.run.source == "live" and after.run.source == "trace" and finding.kind in LOOKS:
        return "the run after is a trace, which does not tell of it: record it with audit()"
    gone = set(after.run.ranks_missing)
    if before.run.world_size == after.run.world_size and gone and set(finding.ranks) & gone:
        return "ranks that had it left no records in the run after"
    return None
