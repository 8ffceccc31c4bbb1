"""An instant in which ranks wait is billed once, whatever makes them wait: straggler, bubble or imbalance."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.findings.stages.pipeline_bubble import message_waits
from shardtoll.analyzers.findings.stragglers.late_bills import billed_ns
from shardtoll.analyzers.roofline import choose_fabric
from shardtoll.ledger import Ledger
from tests.unit.analyzers.made_jobs import Meet, Own, job, pipelines
from tests.unit.analyzers.of_kinds import running

WAITING = ("straggler", "pipeline-bubble", "pipeline-imbalance", "exposed-communication", "host-sync")
analyze = running(*WAITING)
MS = 1_000_000
CHAIN = {"a": (0, 1), "b": (1, 2), "c": (2, 3)}


@st.composite
def jobs(draw: st.DrawFn) -> Ledger:
    """Draw a job of pipelines in which some ranks are slow, all of a stage or any."""
    stages, replicas = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    chunks = draw(st.sampled_from([1, 1, 2]))
    ranks = st.integers(0, stages * replicas - 1)
    slow = draw(st.dictionaries(ranks, st.floats(1.1, 4.0), max_size=3))
    stage = draw(st.one_of(st.none(), st.integers(0, stages - 1)))
    if stage is not None:
        slow |= {stage * replicas + replica: 1.5 for replica in range(replicas)}
    return pipelines(stages, replicas, draw(st.integers(2, 6)), chunks=chunks, slow=slow)


@st.composite
def chains(draw: st.DrawFn) -> Ledger:
    """Draw four ranks of which each meets the next, and some of which are late."""
    a, b, c = (Meet(name, ns=MS // 100) for name in CHAIN)
    own = [Own(draw(st.integers(1, 40)) * MS, draw(st.booleans())) for _ in range(4)]
    programs = {
        0: [own[0], a, Own(MS), a],
        1: [own[1], a, Own(MS), b, a],
        2: [own[2], c, Own(MS), b, c],
        3: [own[3], c, Own(MS), c],
    }
    return job(programs, CHAIN)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.one_of(jobs(), chains()))
def test_waiting_is_billed_once(ledger: Ledger) -> None:
    report = analyze(ledger)
    steps = report.steps
    lost = (steps["exposed_comm_ns"] + steps["idle_ns"]).groupby(steps["rank"]).sum()
    number = steps["step"].nunique()
    tolls = {f.kind: 0 for f in report.findings}
    for finding in report.findings:
        tolls[finding.kind] += finding.toll_ns or 0
    billed = sum(toll for kind, toll in tolls.items() if kind in WAITING)
    assert billed <= lost.sum() / number + len(report.findings)
    # What the slowest stage makes others wait is no bubble.
    for imbalance in (f for f in report.findings if f.kind == "pipeline-imbalance"):
        slowest = lost.index.isin(imbalance.ranks)
        others = lost[~slowest].max() / number - (imbalance.toll_ns or 0)
        most = max(lost[slowest].max() / number, others)
        assert tolls.get("pipeline-bubble", 0) <= most + 2


@settings(max_examples=15, deadline=None, derandomize=True)
@given(jobs())
def test_no_collective_is_billed_for_more_than_it_exposes(ledger: Ledger) -> None:
    context = make_context(ledger, choose_fabric(ledger.run))
    frame = context.in_alike
    straggling = billed_ns(context).reindex(frame.index, fill_value=0)
    bubble = message_waits(context)["lost_ns"].reindex(frame.index, fill_value=0)
    assert ((straggling + bubble).astype("int64") <= frame["exposed_ns"].astype("int64")).all()
    by_rank = (straggling + bubble).groupby(frame["rank"]).sum()
    steps = context.step_rows
    lost = (steps["exposed_comm_ns"] + steps["idle_ns"]).groupby(steps["rank"]).sum()
    assert (by_rank <= lost.reindex(by_rank.index)).all()
