"""Lateness is followed to the rank where it begins; ranks that are late because of it are victims."""

from __future__ import annotations

import pytest

from shardtoll.analyzers import run
from shardtoll.ledger import Report, merge
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import find
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.shared_inputs import shared
from tests.unit.analyzers.ledgers import MS
from tests.unit.analyzers.made_jobs import Meet, Own, job, pipelines


def costly(report: Report) -> list[str]:
    """Return the kinds of what the bill says of time, those of the input left out."""
    return [f.kind for f in report.findings if f.kind not in ("incomplete-input", "pipeline-bubble")]


def figure(report: Report, label: str) -> object:
    """Return one figure of the straggler's evidence."""
    (straggler,) = (f for f in report.findings if f.kind == "straggler")
    return next(item.value for item in straggler.evidence if item.label == label)


@pytest.mark.parametrize("slow_rank", [0, 5])
def test_a_slow_worker_of_one_replica_is_named_with_what_the_job_loses(slow_rank: int) -> None:
    slow, even = pipelines(3, 3, 6, slow={slow_rank: 2.0}), pipelines(3, 3, 6)
    report, sound = run(slow), run(even)
    (straggler,) = (f for f in report.findings if f.kind == "straggler")
    assert straggler.ranks == (slow_rank,)
    assert straggler.severity == "warning"
    stage = slow_rank // 3
    assert straggler.title.startswith(f"rank {slow_rank} (stage {stage}) slows the job ")
    assert "more per step computing than the same stage of other replicas" in straggler.title
    # What the job takes without the slow worker is known: the same job was made without it.
    without = figure(report, "the same with this rank as fast as its peers' median, replayed")
    took = int(sound.steps["duration_ns"].mean())
    assert isinstance(without, int)
    assert without == pytest.approx(took, rel=0.001)
    lost = int(report.steps["duration_ns"].mean()) - took
    assert straggler.saving_ns == pytest.approx(lost, rel=0.02)
    # Others are victims, and layers lie as well as before.
    assert costly(report) == ["straggler"]
    assert report.headline is not None
    assert report.headline.startswith(f"Rank {slow_rank} (stage {stage}) slows the job ")


def test_even_replicas_have_no_straggler() -> None:
    report = run(pipelines(3, 3, 6))
    assert costly(report) == []


def test_a_slow_stage_is_slow_in_all_replicas_and_no_rank_is_late() -> None:
    report = run(pipelines(3, 2, 6, slow={2: 2.0, 3: 2.0}))
    kinds = costly(report)
    assert "straggler" not in kinds
    (imbalance,) = (f for f in report.findings if f.kind == "pipeline-imbalance")
    assert imbalance.ranks == (2, 3)


def test_each_instant_of_waiting_is_billed_once() -> None:
    report = run(pipelines(3, 3, 6, slow={0: 2.0}))
    frame = report.collectives
    steps = frame["step"].nunique()
    billed = sum(f.toll_ns or 0 for f in report.findings if f.kind in ("straggler", "pipeline-bubble"))
    assert billed <= frame.groupby("rank")["exposed_ns"].sum().max() / steps * 1.001


CHAIN = {"a": (0, 1), "b": (1, 2), "c": (2, 3)}
A, B, C = (Meet(name, ns=MS // 100) for name in CHAIN)


def chain(first_ns: int, idle: bool = False) -> Report:
    """Return the report of four ranks: 1 waits for 0, then 2 for 1, then 3 for 2."""
    return run(
        job(
            {
                0: [Own(first_ns, idle), A, Own(MS), A],
                1: [Own(10 * MS), A, Own(MS), B, A],
                2: [Own(10 * MS), C, Own(MS), B, C],
                3: [Own(10 * MS), C, Own(MS), C],
            },
            CHAIN,
        )
    )


@pytest.mark.parametrize(("idle", "why"), [(False, "computing"), (True, "had launched nothing")])
def test_in_a_chain_of_victims_the_first_is_the_origin(idle: bool, why: str) -> None:
    report = chain(40 * MS, idle)
    (straggler,) = (f for f in report.findings if f.kind == "straggler")
    assert straggler.ranks == (0,)
    assert why in straggler.title
    assert figure(report, "ranks that are late because of it") == "ranks 1-2"
    assert figure(report, "ranks that wait") == "ranks 1-3"
    assert figure(report, "slowdown of the job by this rank") == pytest.approx(41 / 11, rel=0.01)
    assert costly(report) == ["straggler"]


def test_a_sound_chain_has_no_origin() -> None:
    assert costly(chain(10 * MS)) == []


def test_the_slow_worker_of_sixteen_is_found_in_a_real_job() -> None:
    folder = shared("traces", "outside", "bytedance_ar_pp4_dp4")
    table = load_table()
    report = run(merge([rank_ledger(read_trace(file), table) for file in find([str(folder)])]))
    named = [f for f in report.findings if f.kind == "straggler" and f.severity == "warning"]
    assert [f.ranks for f in named] == [(0,)]
    slowdown = next(
        item.value for item in named[0].evidence if item.label == "slowdown of the job by this rank"
    )
    assert slowdown == pytest.approx(1.97, rel=0.05)
    late = next(item.value for item in named[0].evidence if item.label == "ranks that are late because of it")
    assert late == "ranks 4, 8, 12-15"
    assert "pipeline-imbalance" not in {f.kind for f in report.findings}
    (bubble,) = (f for f in report.findings if f.kind == "pipeline-bubble")
    assert bubble.toll_ns is not None
    assert bubble.toll_ns < 5e9
    assert report.headline is not None
    assert report.headline.startswith("Rank 0 (stage 0) slows the job by a factor of 1.9")
