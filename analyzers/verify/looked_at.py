"""Whether a run would show a finding of another if it had it: what is not looked at proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow.compute as pc

from shardtoll.analyzers.verify.reduced_since import not_shown
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.records.levels import surveyed_steps

Looked = Callable[[Report], bool]


def _values(*kinds: str) -> Looked:
    def looked(report: Report) -> bool:
        return bool({*kinds} & {*pc.unique(report.tables["values"].column("kind")).to_pylist()})

    return looked


def _states(report: Report) -> bool:
    # Initial parameters are recorded for gradients too.
    values = report.tables["values"].select(["kind", "step"])
    after = values.filter(pc.is_valid(values.column("step")))
    return bool({"parameter", "buffer"} & {*pc.unique(after.column("kind")).to_pylist()})


def _checked(report: Report) -> bool:
    return "gradients-checked" in pc.unique(report.tables["notices"].column("kind")).to_pylist()


def _surveyed(report: Report) -> bool:
    return bool(surveyed_steps(report.tables["steps"]))


def _looked_at(report: Report) -> bool:
    # Older records do not say so, and have parameters only if a check was to look at them.
    return bool({True, None} & {*pc.unique(report.tables["parameters"].column("checked")).to_pylist()})


def _rows(table: str) -> Looked:
    return lambda report: report.tables[table].num_rows > 0


EPOCH_ORDER: Final = "epoch order"
"""Value of `where.op` that marks a finding about the order of batches: only whole epochs show it."""


def _batches(report: Report) -> int:
    """Return how many batches the rank with most has on record."""
    table = report.tables["values"]
    inputs = table.filter(pc.equal(table.column("kind"), "input")).select(["rank", "step", "nth"])
    looks = (
        inputs.group_by(["rank", "step", "nth"]).aggregate([]).group_by("rank").aggregate([([], "count_all")])
    )
    return max(looks.column("count_all").to_pylist(), default=0)


def _last_steps(report: Report) -> tuple[int, ...]:
    """Return the number of the last step that each rank finished; -1 for one that finished none."""
    steps = report.tables["steps"].select(["rank", "step"]).group_by("rank").aggregate([("step", "max")])
    last = dict(zip(*(steps.column(name).to_pylist() for name in ("rank", "step_max")), strict=True))
    return tuple(last.get(rank, -1) for rank in report.run.ranks_seen)


def _stands_before(before: Report, after: Report) -> str | None:
    """Return that the run after did not get past the step in which the one before hung; None if it did."""
    hung_in = max(_last_steps(before), default=-1) + 1
    ended = min(_last_steps(after), default=-1)
    if ended >= hung_in:
        return None
    last = "finished no step" if ended < 0 else f"ends with step {ended} on some rank"
    return f"the run after {last}, and the one before hung in step {hung_in}: run more steps"


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
_MODEL: Final = (_rows("parameters"), "has no parameters on record", "audit(model)")
_CHECKED: Final = (_looked_at, "checked no parameters", 'audit(model, checks=("gradients",))')
_SHARDS: Final = (_values("shard"), "has no sharded parameters on record", "audit(model)")
_OPERATORS: Final = (_rows("computes"), "has no operators on record", 'audit(model, level="survey")')

LOOKS: Final[Mapping[str, tuple[tuple[Looked, str, str], ...]]] = {
    "implicit-redistribute": (_SURVEY,),
    "redundant-collective": (_SURVEY,),
    "sync-every-microbatch": (_SURVEY,),
    "latency-bound": (_SURVEY,),
    "below-roofline": (_SURVEY,),
    "exposed-communication": (_SURVEY,),
    "serialized-collectives": (_SURVEY,),
    "cross-node-traffic": (_SURVEY,),
    "wide-dtype": (_SURVEY,),
    "straggler": (_SURVEY,),
    "duplicated-compute": (_SURVEY, _OPERATORS),
    "duplicated-data": (_INPUTS,),
    "recompute": (_SURVEY,),
    "wrong-gradient": (_CHECK, _GRADIENTS),
    "replica-drift": (_STATES,),
    "unsynced-parameter": (_CHECKED, _MODEL),
    "non-finite": (_SURVEY,),
    "identical-shards": (_SURVEY, _SHARDS),
    "needless-barrier": (_SURVEY,),
    "constant-buffers": (_SURVEY,),
    "unused-parameter-search": (_SURVEY,),
    "missing-zero-grad": (_SURVEY,),
    "expert-imbalance": (_SURVEY,),
    "gathered-logits": (_SURVEY,),
    "pipeline-bubble": (_SURVEY,),
    "pipeline-imbalance": (_SURVEY,),
    "data-stall": (_SURVEY,),
    "host-sync": (_SURVEY,),
    "launch-bound": (_SURVEY,),
    "transfer-stall": (_SURVEY,),
    "checkpoint-stall": (_SURVEY,),
    "unattributed-time": (_SURVEY,),
    "unmatched-collectives": (),
    "incomplete-input": (),
    "clock-skew": (),
    "hang": (),
}
"""Kind -> what a run must have looked at, in words that follow `the run after`, and how to have it do so.

Every kind has an entry. Watched steps show some times too, but not their causes. A run that looked at less
than the one before is not asked to prove anything. A `hang` is asked for by steps: `_stands_before`."""

NOT_IN_TRACES: Final = (
    *("implicit-redistribute", "redundant-collective", "sync-every-microbatch", "duplicated-compute"),
    *("recompute", "wrong-gradient", "replica-drift", "unsynced-parameter", "duplicated-data", "wide-dtype"),
    *("non-finite", "identical-shards", "constant-buffers", "unused-parameter-search", "missing-zero-grad"),
    *("expert-imbalance", "gathered-logits", "hang"),
)
"""Kinds that rest on values, placements, operators' inputs or flight files, which traces do not have."""


def unseen(finding: Finding, before: Report, after: Report) -> str | None:
    """Return why the absence of the finding in the run after proves nothing; None if it proves something.

    Only what the run before looked at, and so may have found it by, is asked of the run after.
    """
    if before.tables["steps"].num_rows and not after.tables["steps"].num_rows:
        return "the run after has no finished step"
    epochs = finding.where.op == EPOCH_ORDER
    if epochs and _batches(after) < _batches(before):
        return f"the run after has {_batches(after)} batches on record, the one before {_batches(before)}"
    if finding.kind == "hang" and (short := _stands_before(before, after)) is not None:
        return short
    for looked, lacks, how in LOOKS.get(finding.kind, ()):
        if looked(before) and not looked(after):
            return f"the run after {lacks}: {how}"
    if before.run.source == "live" and after.run.source == "trace" and finding.kind in NOT_IN_TRACES:
        return "the run after is a trace, which does not tell of it: record it with audit()"
    gone = set(after.run.ranks_missing)
    if before.run.world_size == after.run.world_size and gone and set(finding.ranks) & gone:
        return "ranks that had it left no records in the run after"
    return not_shown(finding, after) if finding.kind == "unsynced-parameter" else None
