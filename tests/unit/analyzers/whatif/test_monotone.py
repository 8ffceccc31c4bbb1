"""Several edits together: order plays no part, and one more that only shortens never lengthens the step."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.analyzers.context.context import Context, make_context
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.analyzers.roofline import choose_fabric
from shardtoll.analyzers.whatif.edits.asked import Asked, asked_edits
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.analyzers.whatif.edits.remedies import edit_of
from shardtoll.analyzers.whatif.replayed import Replayer
from shardtoll.ledger import Report, analyze
from shardtoll.profiler.traces import read_traces
from tests.shared_inputs import shared

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
import synthetic_job
from synthetic.spec import Spec

MS = 1_000_000

LENGTHENS = ("expert-imbalance", "pipeline-imbalance")
"""Their edits give every rank the mean of all, which is more than some had."""


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Replayer, list[Edit]]:
    """Return a job with a straggler and three stalls, and edits that shorten it; some are held to little."""
    folder = tmp_path_factory.mktemp("job") / "job"
    stalls = {"data_ns": 3 * MS, "copy_ns": 2 * MS, "sync_ns": MS}
    synthetic_job.write_job(
        folder, Spec(ranks=4, steps=2, layers=4, strategy="ddp", straggler=3, cause="backward", **stalls)
    )
    (read,) = read_traces([str(folder)], cache=False, jobs=1)
    context = make_context(read.ledger, choose_fabric(read.ledger.run))
    recorded = recorded_graph(context)
    assert recorded is not None
    edits = _of_findings(analyze(read.ledger), context)
    asked = Asked(without=("all_reduce",), network=2.0, gpu=1.5, async_copies=True, batch_ready=True)
    edits += asked_edits(context, asked)
    held = [replace(edit, most_ns=bound * MS) for edit in edits for bound in (0.1, 1)]
    return Replayer(context, recorded), edits + held


def _of_findings(report: Report, context: Context) -> list[Edit]:
    return [
        edit
        for number, finding in enumerate(report.findings, 1)
        if finding.kind not in LENGTHENS and (edit := edit_of(context, finding, number)) is not None
    ]


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_one_more_edit_that_shortens_never_lengthens_the_step(
    edited: tuple[Replayer, list[Edit]], data: st.DataObject
) -> None:
    made, edits = edited
    # To overlap what nobody waits for can cost compute more than it saves.
    one_more = data.draw(st.sampled_from([edit for edit in edits if not edit.overlaps]))
    others = [edit for edit in edits if edit is not one_more]
    chosen = [*data.draw(st.lists(st.sampled_from(others), min_size=1, max_size=3, unique_by=id)), one_more]
    with_all, with_one_less, other_order = (
        made.lasts_ns(made.draft(some)) for some in (chosen, chosen[:-1], chosen[::-1])
    )
    assert with_all <= with_one_less * (1 + 1e-9)
    assert with_all == pytest.approx(other_order, rel=1e-9)


def test_two_fixes_of_a_real_job_save_as_much_as_the_better_one_at_least() -> None:
    (read,) = read_traces([str(shared("traces", "param_dlrm_v100_8ranks"))], cache=False, jobs=1)
    report = analyze(read.ledger)
    context = make_context(read.ledger, choose_fabric(read.ledger.run))
    recorded = recorded_graph(context)
    assert recorded is not None
    made = Replayer(context, recorded)
    edits = _of_findings(report, context)
    alone = [made.saved([edit]).mid_ns for edit in edits]
    for first in range(len(edits)):
        for second in range(first):
            both = made.saved([edits[first], edits[second]]).mid_ns
            assert both >= max(alone[first], alone[second]) - 1
