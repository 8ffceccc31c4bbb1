"""Ranks, stages and micro-batches of pipelines, from the messages of their schedules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from shardtoll.analyzers import run
from shardtoll.analyzers.pipelines.pipeline_shape import Shape
from shardtoll.ledger import Collective, Finding, Group, Report, merge
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import find
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.shared_inputs import shared
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of, step
from tests.unit.analyzers.made_jobs import pipelines

SCHEDULE = "ScheduleAny"


def messages(
    homes: Sequence[int],
    batches: int,
    ranks: int,
    group: str = "g",
    mesh_dim: str | None = None,
    first: int = 0,
) -> list[Collective]:
    """Every boundary between stages of different ranks is crossed once a micro-batch, each way."""
    rows: list[Collective] = []
    crossings = [(a, b) for a, b in pairwise(homes) if a != b]
    number = 0
    for phase, pairs in (("forward", crossings), ("backward", [(b, a) for a, b in reversed(crossings)])):
        for sender, receiver in pairs * batches:
            number += 1
            given = {"group": "g", "group_size": ranks, "mesh_dim": mesh_dim, "phase": phase, "seq": None}
            given |= {"message_bytes": 4096, "start_ns": number * MS // 4, "issue_ns": number * MS // 4}
            given |= {"duration_ns": MS // 8, "exposed_ns": MS // 8}
            ends = (("send", sender, receiver), ("recv", receiver, sender))
            rows += [
                collective(
                    op=op,
                    rank=first + rank,
                    root=first + peer,
                    caused_by_op=f"{SCHEDULE}.{op}_{phase}",
                    **given,
                )
                for op, rank, peer in ends
            ]
    return rows


def analyzed(rows: Sequence[Collective], ranks: int, *groups: Group) -> Report:
    about = run_of(ranks)
    steps = [step(rank=rank) for rank in range(ranks)]
    return run(
        ledger(list(rows), run=about, groups=groups or (Group("g", tuple(range(ranks))),), steps=steps)
    )


def looped(ranks: int, per_rank: int) -> list[int]:
    return [stage % ranks for stage in range(ranks * per_rank)]


def as_v(ranks: int) -> list[int]:
    return [*range(ranks), *reversed(range(ranks))]


@pytest.mark.parametrize("mesh_dim", [None, "PP", "x"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("layout", ["one", "looped", "three", "v"])
def test_micro_batches_are_counted_whatever_the_layout(ranks: int, layout: str, mesh_dim: str | None) -> None:
    per_rank = {"one": 1, "looped": 2, "three": 3, "v": 2}[layout]
    homes = as_v(ranks) if layout == "v" else looped(ranks, per_rank)
    group = Group("g", tuple(range(ranks)), mesh_dim)
    report = analyzed(messages(homes, 5, ranks, mesh_dim=mesh_dim), ranks, group)
    assert report.pipelines is not None
    assert report.pipelines.lines == (tuple(range(ranks)),)
    assert report.pipelines.micro_batches == 5


def test_set_up_is_no_message_between_stages() -> None:
    rows = messages(looped(3, 1), 4, 3)
    vote = {"group": "g", "group_size": 3, "seq": None, "message_bytes": 4, "phase": "other"}
    vote |= {"caused_by_op": f"{SCHEDULE}.set_up"}
    for low in (0, 1):
        for sender, receiver in ((low, low + 1), (low + 1, low)):
            for op, rank, peer in (("send", sender, receiver), ("recv", receiver, sender)):
                rows.append(collective(op=op, rank=rank, root=peer, **vote))
    report = analyzed(rows, 3)
    assert report.pipelines is not None
    assert report.pipelines.micro_batches == 4


def test_pipelines_in_one_group_are_told_apart_by_who_sends_to_whom() -> None:
    both = [
        *messages(looped(2, 1), 3, 4),
        *messages(looped(2, 1), 3, 4, first=2),
    ]
    report = analyzed(both, 4)
    assert report.pipelines is not None
    assert (report.pipelines.lines, report.pipelines.micro_batches) == (((0, 1), (2, 3)), 3)


def test_the_ideal_bubble_is_that_of_the_stages_a_rank_has() -> None:
    assert Shape(4, 8).ideal_share == pytest.approx(3 / 11)
    assert Shape(4, 8, 2).ideal_share == pytest.approx(3 / 19)


def test_a_ring_is_no_pipeline() -> None:
    rows = [
        collective(op=op, rank=rank, root=(rank + way) % 3, phase=phase, seq=None, group="g", group_size=3)
        for phase in ("forward", "backward")
        for rank in range(3)
        for op, way in (("send", 1), ("recv", -1))
    ]
    assert analyzed(rows, 3).pipelines is None


def bubble_of(report: Report) -> tuple[Finding, dict[str, object]]:
    """Return the bubble's finding and its evidence."""
    (bubble,) = (f for f in report.findings if f.kind == "pipeline-bubble")
    return bubble, {item.label: item.value for item in bubble.evidence}


LAYOUTS = [(4, 4, 1, False), (4, 8, 2, False), (3, 6, 3, False), (4, 6, 2, True)]
OF_TWO = [(2, 6, 1, False), (2, 6, 2, False), (2, 4, 3, False), (2, 6, 2, True)]


@pytest.mark.parametrize(("ranks", "micro_batches", "chunks", "as_v"), [*LAYOUTS, *OF_TWO])
def test_an_interleaved_schedule_is_counted_in_micro_batches_and_chunks(
    ranks: int, micro_batches: int, chunks: int, as_v: bool
) -> None:
    report = run(pipelines(ranks, 1, micro_batches, chunks=chunks, as_v=as_v))
    bubble, figures = bubble_of(report)
    assert figures["micro-batches"] == micro_batches
    assert figures["stages"] == ranks * chunks
    ideal = (ranks - 1) / (micro_batches * chunks + ranks - 1)
    assert figures["ideal bubble, share of the step"] == pytest.approx(ideal, abs=1e-4)
    assert bubble.remedy is not None
    assert ("nterleaved" in bubble.remedy.text + (bubble.remedy.code or "")) == (chunks == 1)


@pytest.mark.parametrize(("ranks", "micro_batches", "chunks", "as_v"), [*LAYOUTS, *OF_TWO])
def test_without_phases_counts_are_right_or_unknown(
    ranks: int, micro_batches: int, chunks: int, as_v: bool
) -> None:
    report = run(pipelines(ranks, 1, micro_batches, chunks=chunks, told_phases=False, as_v=as_v))
    bubble, figures = bubble_of(report)
    assert figures.get("micro-batches") in (None, micro_batches)
    assert figures.get("stages") in (None, ranks * chunks)
    if "ideal bubble, share of the step" in figures:
        ideal = (ranks - 1) / (micro_batches * chunks + ranks - 1)
        assert figures["ideal bubble, share of the step"] == pytest.approx(ideal, abs=1e-4)
    assert ranks == 2 or "ideal bubble, share of the step" in figures
    assert bubble.remedy is not None
    if "stages" not in figures:
        # What is not known to have one stage a rank is not told to interleave.
        assert "if ranks have one stage each" in bubble.remedy.text
        assert "Interleaved" not in (bubble.remedy.code or "")


def test_micro_batches_that_enter_at_both_ends_are_no_v() -> None:
    rows = [*messages(looped(3, 1), 4, 3), *messages(looped(3, 1)[::-1], 4, 3)]
    report = analyzed(rows, 3)
    assert report.pipelines is not None
    assert report.pipelines.micro_batches is None


def test_the_bubble_of_a_real_pipeline_is_as_published() -> None:
    folder = shared("traces", "outside", "primus_pp8")
    table = load_table()
    report = run(merge([rank_ledger(read_trace(file), table) for file in find([str(folder)])]))
    (bubble,) = (f for f in report.findings if f.kind == "pipeline-bubble")
    figures = {item.label: item.value for item in bubble.evidence}
    assert (figures["stages"], figures["micro-batches"]) == (8, 16)
    assert figures["ideal bubble, share of the step"] == pytest.approx(7 / 23, abs=1e-4)
    first = report.steps[report.steps["rank"] == 0].sort_values("step")
    shares = 1 - first["compute_ns"] / first["duration_ns"]
    assert [round(float(share), 3) for share in shares] == [0.364, 0.366, 0.363]
