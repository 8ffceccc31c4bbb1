"""A collective without a price widens the band of a rescaled run; it does not make it certain."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from shardtoll.analyzers import run
from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.rescale import other_sizes
from shardtoll.analyzers.forecast.rescale.inside import Sent
from shardtoll.analyzers.forecast.rescale.other_sizes import scale_run
from shardtoll.analyzers.forecast.rescale.recorded_step import recorded_step
from shardtoll.analyzers.forecast.rescale.sent_price import Machine, times_ns
from shardtoll.analyzers.forecast.rescale.step_graph import step_graph
from shardtoll.analyzers.replay.events.engine import simulate
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.dashboards.forecast import scaling_page, scaling_shown
from shardtoll.ledger.answers.forecast import Band
from shardtoll.ledger.answers.forecast_json import scaling_to_json
from shardtoll.ledger.words import human
from tests.unit.analyzers.ledgers import MS, collective, ledger, step

MACHINE = Machine(load_fabric("h100x8-ib400"), card_of("h100-sxm"), 8)


def times(world: int, message_bytes: int | None, notes: list[str]) -> tuple[float, float, float]:
    sent = Sent("all_reduce", "dp", 8, None, message_bytes, 0, 1000, 1000, 0)
    return times_ns(sent, 8, world, 1.0, MACHINE, MACHINE, {}, notes)


def test_an_unknown_price_opens_the_band_and_says_so():
    notes: list[str] = []
    assert times(16, None, notes) == (0.0, 1000.0, 10_000.0)
    assert times(4096, None, notes)[2] == 10_000.0
    assert len(set(notes)) == 1
    assert notes[0] == (
        "the price of all_reduce over group of 8 is unknown: its message size is not on record. Bands count "
        "none to ten times its recorded time"
    )


def test_the_machine_that_lacks_the_price_is_named():
    """A run over two hosts of a fabric without links between hosts is to go on one that has them."""
    loopback = Machine(load_fabric("loopback-gloo"), None, 4)
    sent = Sent("all_reduce", "dp", 8, None, 1 << 20, 0, 1000, 1000, 0)
    for before, after in ((loopback, MACHINE), (MACHINE, loopback)):
        notes: list[str] = []
        times_ns(sent, 8, 8, 1.0, before, after, {}, notes)
        (note,) = notes
        assert "unknown: loopback-gloo has no links between hosts" in note


def test_nothing_firm_is_said_of_a_step_with_an_unknown_price():
    """Two ranks on one host: its fabric has no links to the hosts that more ranks would be on."""
    rows = [
        collective(
            step=number, rank=rank, group_size=2, message_bytes=1 << 20, start_ns=30 * MS,
            duration_ns=40 * MS, exposed_ns=40 * MS,
        )
        for number in (0, 1)
        for rank in (0, 1)
    ]  # fmt: skip
    report = run(ledger(rows, steps=[step(number, rank) for number in (0, 1) for rank in (0, 1)]))
    machine = Machine(load_fabric("loopback-gloo"), None, 2)
    answer = scale_run(report, "job", machine, machine, 4)
    priced, unknown = answer.weak
    assert priced.unpriced == ()
    (name,) = unknown.unpriced
    assert name == "all_reduce over group of 2"
    said = scaling_shown.headline(answer)
    assert said.startswith(f"The step on 4 ranks is unknown: {name} has no price. It lies in ")
    assert human.duration(unknown.step_ns.expected) not in said.partition(";")[0]
    cells = scaling_shown.row(unknown)
    assert (cells[1], cells[4], cells[6]) == ("unknown",) * 3
    assert "unknown" not in scaling_shown.row(priced)
    assert any("loopback-gloo has no links between hosts (name a fabric" in note for note in answer.notes)
    curve = next(each for each in scaling_page.figure(answer, answer.weak).data if each["name"] == "expected")
    assert curve["y"][0] is not None
    assert curve["y"][1] is None
    # Where all is priced the answer is firm.
    assert scaling_shown.headline(scale_run(report, "job", machine, machine, 2)).startswith(
        "On 2 ranks the step"
    )


def test_a_known_price_and_an_unchanged_group_need_no_note():
    notes: list[str] = []
    low, expected, high = times(16, 1 << 20, notes)
    assert 0 < low <= expected <= high
    assert times(8, None, notes) == (1000.0, 1000.0, 1000.0)
    assert notes == []


def test_efficiency_is_against_the_fewest_ranks_of_the_same_machine():
    rows = [
        collective(step=number, rank=rank, start_ns=30 * MS, duration_ns=40 * MS, exposed_ns=40 * MS)
        for number in (0, 1)
        for rank in (0, 1)
    ]
    report = run(ledger(rows, steps=[step(number, rank) for number in (0, 1) for rank in (0, 1)]))
    # Such a network makes the step of the run itself twice as fast: that is no efficiency.
    faster = Machine(load_fabric("h100x8-ib400"), None, 8)
    answer = scale_run(report, "job", Machine(load_fabric("loopback-gloo"), None, 2), faster, 64)
    first = answer.weak[0]
    assert first.step_ns.expected < 0.8 * answer.measured_step_ns
    assert (answer.base_world, first.world) == (2, 2)
    for points, work in ((answer.weak, 1), (answer.strong, 2)):
        assert points[0].efficiency.expected == 1
        for point in points:
            share = first.step_ns.expected / point.step_ns.expected * (1 if work == 1 else 2 / point.world)
            assert point.efficiency.expected == pytest.approx(share)
            assert point.efficiency.expected <= 1
            if point is points[0]:
                assert point.efficiency == Band(1.0, 1.0, 1.0)
                continue
            # Either step may be off.
            scaled = 1 if work == 1 else 2 / point.world
            low = points[0].step_ns.low / point.step_ns.high * scaled
            high = points[0].step_ns.high / point.step_ns.low * scaled
            assert (point.efficiency.low, point.efficiency.high) == pytest.approx((low, high))
    base = "work per GPU and second, against that on 2 ranks of CPU on h100x8-ib400"
    said = f"{base}; its band is that of both steps"
    assert scaling_shown.efficiency(answer) == f"efficiency: {said}"
    out = StringIO()
    Console(file=out, width=140).print(scaling_shown.renderable(answer, 140))
    for text in (out.getvalue(), scaling_shown.markdown(answer), scaling_page.render(answer)):
        assert said in " ".join(text.split())
    # On fewer ranks than were measured, these are the base; a share above 1 says how.
    assert scale_run(report, "job", MACHINE, MACHINE, 1).base_world == 1
    cheap = replace(answer.weak[1], efficiency=Band(1.2, 1.1, 1.3))
    assert "above 100 %, more ranks make" in scaling_shown.efficiency(replace(answer, weak=(first, cheap)))


def test_each_kind_of_scaling_names_its_own_base(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [collective(step=number, rank=rank) for number in (0, 1) for rank in (0, 1)]
    report = run(ledger(rows, steps=[step(number, rank) for number in (0, 1) for rank in (0, 1)]))
    point = other_sizes._point

    def unpriced(*given: Any) -> Any:
        """As if the fewest ranks had no price for the same work per step."""
        made = point(*given)
        return replace(made, unpriced=("all_reduce",)) if given[2] == 2 and "strong" in given else made

    monkeypatch.setattr(other_sizes, "_point", unpriced)
    answer = scale_run(report, "job", MACHINE, MACHINE, 8)
    assert (answer.base_world, answer.strong_base_world) == (2, 4)
    for points, base in ((answer.weak, 2), (answer.strong, 4)):
        (one,) = [each.world for each in points if each.efficiency == Band(1.0, 1.0, 1.0)]
        assert one == base
    made = scaling_to_json(answer)
    assert (made["base_world"], made["strong_base_world"]) == (2, 4)
    said = "against that on 2 ranks (with the same work per GPU) and 4 ranks (per step) of"
    assert said in scaling_shown.efficiency(answer)


def test_the_parts_of_a_forecast_add_up_to_its_step():
    rows = [
        collective(step=number, rank=rank, start_ns=30 * MS, duration_ns=40 * MS, exposed_ns=40 * MS)
        for number in (0, 1)
        for rank in (0, 1)
    ]
    report = run(ledger(rows, steps=[step(number, rank) for number in (0, 1) for rank in (0, 1)]))
    point = scale_run(report, "job", MACHINE, MACHINE, 2).weak[0]
    assert (point.compute_ns, sum(point.exposed_ns.values()), point.other_ns) == (50 * MS, 40 * MS, 10 * MS)
    assert point.step_ns.expected == 100 * MS


def buckets(number: int, rank: int):
    """Four buckets of a step of 100 ms: two run at once, one starts while another is waited for, one began
    before the step."""
    spans = ((-5, 15, 5), (30, 20, 0), (35, 25, 10), (55, 35, 25))
    return [
        collective(
            step=number,
            rank=rank,
            seq=1 + 4 * number + place,
            start_ns=(1000 * number + start) * MS,
            issue_ns=(1000 * number + max(start, 0)) * MS,
            duration_ns=lasts * MS,
            exposed_ns=exposed * MS,
        )
        for place, (start, lasts, exposed) in enumerate(spans)
    ]


def watched_run():
    """A first step that is surveyed and slow, and watched steps of 90, 100 and 120 ms; rank 1 is slower."""
    rows, steps = [], []
    for number, lasts in enumerate((400, 90, 100, 120)):
        for rank in (0, 1):
            rows += buckets(number, rank)
            extra = 4 * rank
            steps.append(
                step(
                    number,
                    rank,
                    start_ns=1000 * number * MS,
                    duration_ns=(lasts + extra) * MS,
                    idle_ns=(lasts + extra - 90) * MS,
                    level="watch" if number else "survey",
                )
            )
    return run(ledger(rows, steps=steps))


def test_an_unchanged_run_keeps_its_mean_step():
    mean_ns = (94 + 104 + 124) / 3 * MS
    same = Machine(replace(MACHINE.fabric), card_of("h100-sxm"), 8)
    answer = scale_run(watched_run(), "job", MACHINE, same, 8)
    assert answer.measured_step_ns == pytest.approx(mean_ns)
    for points in (answer.weak, answer.strong):
        assert points[0].step_ns.expected == pytest.approx(mean_ns, rel=1e-9)
        assert points[0].step_ns.high == pytest.approx(1.04 * mean_ns)
        assert points[0].efficiency.expected == pytest.approx(1, rel=1e-9)
    assert any("step 2 of rank 1 stands for all steps" in note for note in answer.notes)


def test_buckets_at_once_are_not_laid_end_to_end():
    sent = [
        Sent("all_reduce", "dp", 2, None, 1, row.start_ns, row.duration_ns, row.exposed_ns or 0, 0)
        for row in buckets(0, 0)
    ]
    graph, compute, nodes = step_graph(sent, 0, 100 * MS)
    assert simulate(graph).makespan_ns == 100 * MS
    assert graph.duration_ns[compute].sum() == 60 * MS
    assert graph.lane[nodes[1]] != graph.lane[nodes[2]]
    bare = graph.duration_ns.copy()
    bare[nodes] = 0
    assert 60 * MS <= simulate(graph, bare).makespan_ns < 70 * MS


def test_a_dry_run_keeps_its_own_step_and_band():
    own = Band(90.4 * MS, 80 * MS, 130 * MS)
    report = watched_run()
    for after in (MACHINE, Machine(load_fabric("h100x8-ib400"), card_of("h100-sxm"), 8)):
        point = scale_run(report, "job", MACHINE, after, 2, own=own).weak[0]
        assert (point.step_ns.expected, point.step_ns.low, point.step_ns.high) == pytest.approx(
            (own.expected, own.low, own.high)
        )


START = 1000
anywhere = st.builds(
    lambda group, start, length, exposed, wait: Sent(
        "all_reduce", group, 4, None, 10, START + start, length, min(exposed, length), min(wait, length)
    ),
    st.sampled_from("ab"), st.integers(-60, 140), st.integers(0, 80), st.integers(0, 80), st.integers(0, 80),
)  # fmt: skip


@given(st.lists(anywhere, max_size=6), st.sampled_from((1, 30, 100)))
@example([Sent("all_reduce", "a", 4, None, 10, START + 90, 40, 0, 0)], 100)
def test_an_unchanged_step_lasts_as_long_as_recorded_wherever_its_collectives_lie(
    sent: list[Sent], duration: int
) -> None:
    sent.sort(key=lambda each: each.start_ns)
    graph, _, nodes = step_graph(sent, START, duration)
    outcome = simulate(graph)
    assert outcome.makespan_ns == outcome.end_ns[-1] == duration
    bare = graph.duration_ns.copy()
    bare[nodes] = 0
    assert simulate(graph, bare).makespan_ns <= duration


def spilling(start: int, exposed: int):
    """Return a report of steps of 100 ms whose one collective of 40 ms starts at `start`."""
    cells = [(number, rank) for number in range(2) for rank in range(2)]
    rows = [
        collective(
            step=number,
            rank=rank,
            seq=1 + number,
            start_ns=(1000 * number + start) * MS,
            issue_ns=(1000 * number + 10) * MS,
            duration_ns=40 * MS,
            exposed_ns=exposed * MS,
        )
        for number, rank in cells
    ]
    steps = [
        step(
            number,
            rank,
            start_ns=1000 * number * MS,
            compute_ns=(100 - exposed) * MS,
            exposed_comm_ns=exposed * MS,
            idle_ns=0,
        )
        for number, rank in cells
    ]
    return run(ledger(rows, steps=steps))


@pytest.mark.parametrize(
    ("start", "exposed", "inside_ms", "tenfold_ms"),
    [(30, 0, 40, 430), (90, 0, 10, 100), (90, 10, 10, 190), (120, 40, 0, 100)],
    ids=["hidden", "runs on", "waited for at the end", "outside"],
)
def test_a_collective_counts_with_what_of_it_lies_in_the_step(
    start: int, exposed: int, inside_ms: int, tenfold_ms: int
) -> None:
    report = spilling(start, exposed)
    assert scale_run(report, "job", MACHINE, MACHINE, 2).weak[0].step_ns.expected == 100 * MS
    recorded = recorded_step(report)
    (sent,) = recorded.sent
    assert sent.duration_ns == inside_ms * MS
    assert recorded.step_ns(1.0, [10.0 * sent.duration_ns]) == tenfold_ms * MS
