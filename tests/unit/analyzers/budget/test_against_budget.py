"""A run held to a budget: each limit against figures worked out by hand, and what is not known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from shardtoll.analyzers.budget.against_budget import judge
from shardtoll.analyzers.budget.of_run import draft
from shardtoll.dashboards.check.words import name as name_of
from shardtoll.ledger import Collective, Count, Finding, Group, Notice, Report, UsageError, Where
from shardtoll.ledger.answers.budget import budget_of
from shardtoll.ledger.answers.overrun import BudgetCheck, Overrun, check_to_json
from shardtoll.ledger.records.finding import KINDS
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

WRONG = [kind for kind, family in KINDS.items() if family == "correctness"]
analyze = running("implicit-redistribute", *WRONG)

GROUPS = (Group("pg", (0, 1)), Group("3", (0, 1), "tp"))


def implicit(**given: Any) -> Collective:
    return collective(
        **{
            "op": "all_gather",
            "implicit": True,
            "module": "layers.0.mlp",
            "caused_by_op": "aten.mm.default",
            "placements_from": "(Shard(0),)",
            "placements_to": "(Replicate(),)",
            "source": "train.py:7 (step)",
            "phase": "forward",
            "group": "3",
            "mesh_dim": "tp",
        }
        | given
    )


def report(rows: Iterable[Collective] = (), **given: Any) -> Report:
    given.setdefault("groups", GROUPS)
    return analyze(ledger(rows, **given))


def held(of: Report, **budget: Any) -> BudgetCheck:
    return judge(of, budget_of(budget, "b"), allow_unknown=budget.pop("allow_unknown", False))


def only(of: Report, **budget: Any) -> Overrun:
    (found,) = held(of, **budget).overruns
    return found


# Two steps of two ranks: rank 1 sends most in step 1, three collectives of 1 MiB (half of it on the wire
# for a gather over two, all of it for the sum).
MIB = 1 << 20
BUSY = [
    *(collective(step=number, rank=rank, seq=1) for number in (0, 1) for rank in (0, 1)),
    implicit(step=1, rank=1, seq=2),
    implicit(step=1, rank=1, seq=3, module="layers.1.mlp"),
    collective(step=None, rank=1, seq=9, message_bytes=1 << 40),
]
STEPS = [step(number, rank) for number in (0, 1) for rank in (0, 1)]


def test_counts_and_bytes_are_those_of_the_busiest_rank_and_step():
    busy = report(BUSY, steps=STEPS)
    assert held(busy, max_collectives=3, max_wire_bytes=2 * MIB).passed
    over = only(busy, max_collectives=2)
    assert (over.answer, over.found, over.limit, over.step, over.rank) == ("over", 3, 2, 1, 1)
    assert {(call.op, call.count, call.source) for call in over.calls} == {
        ("all_reduce", 1, None),
        ("all_gather", 1, "train.py:7 (step)"),
    }
    over = only(busy, max_wire_bytes=2 * MIB - 1)
    assert (over.found, over.step, over.rank) == (2 * MIB, 1, 1)
    # The sum of most bytes has no line; the gathers' is told.
    assert over.source == "train.py:7 (step)"


def test_sections_count_their_own():
    busy = report(BUSY, steps=STEPS)
    fits = {
        "module": {
            "layers.*": {"max_collectives": 2, "max_wire_bytes": MIB},
            "layers.0": {"max_collectives": 1},
        },
        "group": {"tp": {"max_collectives": 2}, "pg": {"max_collectives": 1}},
        "phase": {"forward": {"max_collectives": 2}, "backward": {"max_wire_bytes": MIB}},
    }
    assert held(busy, **fits).passed
    for part, name, key, least in (
        ("module", "layers.*", "max_collectives", 2),
        ("module", "layers.*", "max_wire_bytes", MIB),
        ("group", "tp", "max_collectives", 2),
        ("group", "pg", "max_collectives", 1),
        ("phase", "forward", "max_collectives", 2),
        ("phase", "backward", "max_wire_bytes", MIB),
    ):
        over = only(busy, **{part: {name: {key: least - 1}}})
        assert (over.limit_name, over.place, over.found) == (key, f'{part} "{name}"', least)


def test_steps_that_are_skipped_count_for_nothing():
    busy = [collective(step=0, seq=at) for at in range(5)] + [collective(step=1, seq=6)]
    of = report(busy, steps=[step(0), step(1)])
    assert only(of, max_collectives=1).found == 5
    assert held(of, max_collectives=1, skip_steps=1).passed
    with pytest.raises(UsageError, match="no finished step after the first 2"):
        held(of, max_collectives=1, skip_steps=2)


def test_each_implicit_collective_is_named_once_with_line_cause_and_placements():
    rows = [
        implicit(seq=1),
        implicit(seq=2, module="layers.1.mlp"),
        implicit(seq=3, module="head", source="h.py:1"),
        implicit(seq=4, module=None, parameter="layers.2.w", op="reduce_scatter", phase="optimizer"),
        implicit(seq=5, placements_from="(_NormPartial(2),)", module="layers.0"),
    ]
    found = held(report(rows), no_implicit=["layers.*", "layers.0", "*"]).overruns
    assert [(one.place, one.found, one.source) for one in found] == [
        ("layers.*", 2, "train.py:7 (step)"),
        ("layers.*", 1, "train.py:7 (step)"),
        ("*", 1, "h.py:1"),
    ]
    assert "2 implicit all_gathers of (Shard(0),) -> (Replicate(),) for aten.mm.default in layers.*.mlp" in (
        found[0].why
    )
    assert held(report(rows[2:3]), no_implicit=["layers.*"]).passed


def test_what_is_forbidden_is_named_with_its_finding():
    of = report([implicit()])
    over = only(of, forbid=["implicit-redistribute", "wrong-gradient"])
    assert (over.place, over.source) == ("implicit-redistribute", "train.py:7 (step)")
    assert "made DTensor redistribute" in over.why


def test_exposed_share_and_step_time_are_of_the_worst_rank_without_capture():
    # 40 of 90 ms on rank 0, 72 of 90 on rank 1.
    steps = [
        step(rank=0, duration_ns=100 * MS, idle_ns=0, unattributed_ns=10 * MS, capture_ns=10 * MS),
        step(
            rank=1,
            exposed_comm_ns=72 * MS,
            compute_ns=18 * MS,
            idle_ns=0,
            unattributed_ns=10 * MS,
            capture_ns=10 * MS,
        ),
    ]
    of = report(steps=steps)
    assert held(of, max_exposed_fraction=0.8, max_step_ms=90).passed
    over = only(of, max_exposed_fraction=0.79)
    assert (over.found, over.rank) == (pytest.approx(0.8), 1)
    assert only(of, max_step_ms=89.9).found == 90
    section = report([collective(exposed_ns=30 * MS)], steps=[step()])
    assert held(section, group={"pg": {"max_exposed_fraction": 0.3}}).passed
    assert only(section, group={"pg": {"max_exposed_fraction": 0.29}}).found == pytest.approx(0.3)


def test_surveyed_steps_are_no_times_where_others_were_watched():
    watched = {"compute_ns": 0, "idle_ns": 0, "unattributed_ns": 60 * MS, "level": "watch"}
    steps = [step(0, duration_ns=400 * MS, unattributed_ns=300 * MS), step(1, **watched)]
    assert held(report(steps=steps), max_step_ms=100).passed


def test_what_is_not_known_counts_as_over_unless_allowed():
    of = report([collective(message_bytes=None, wire_bytes=None), collective(seq=2)])
    over = only(of, max_wire_bytes=10 * MIB)
    assert (over.answer, over.found) == ("cannot be told", MIB)
    assert "of 1 collective their size is not known" in over.why
    # What is known is more than the limit already.
    assert only(of, max_wire_bytes=MIB - 1).answer == "over"
    check = judge(of, budget_of({"max_wire_bytes": 10 * MIB}, "b"), allow_unknown=True)
    assert check.passed
    assert check.overruns
    assert not judge(of, budget_of({"max_wire_bytes": 1}, "b"), allow_unknown=True).passed


def test_collectives_that_are_counted_and_not_listed_count():
    of = report([collective()], counts=[Count(0, 0, "pg", 5, 1), Count(0, 1, "pg", None, 0)])
    assert only(of, max_collectives=4).found == 5
    assert only(of, group={"pg": {"max_collectives": 4}}).found == 5
    assert held(of, max_collectives=5, group={"3": {"max_collectives": 0}}).passed
    for limits in (
        {"max_wire_bytes": 10 * MIB},
        {"no_implicit": ["*"]},
        {"phase": {"forward": {"max_collectives": 3}}},
        {"module": {"layers.*": {"max_collectives": 3}}},
    ):
        assert only(of, **limits).answer == "cannot be told", limits
    # All four could be in forward, and would still fit.
    assert held(of, phase={"forward": {"max_collectives": 4}}).passed


def test_who_asked_and_where_must_be_known():
    unasked = report([implicit(implicit=None)])
    assert only(unasked, no_implicit=["layers.*"]).answer == "cannot be told"
    assert held(unasked, no_implicit=["head"]).passed
    nowhere = report([implicit(module=None, parameter=None)])
    assert only(nowhere, no_implicit=["layers.*"]).answer == "cannot be told"
    assert only(nowhere, no_implicit=["*"]).answer == "over"
    assert only(nowhere, module={"layers.*": {"max_collectives": 0}}).answer == "cannot be told"
    asked = report([collective(module=None)])
    assert held(asked, no_implicit=["layers.*"]).passed


def test_the_time_of_a_forecast_step_limits_later_ones():
    run = run_of(backend="fake", device="H100", source="dry", ranks_seen=(0,))
    one = report([collective(exposed_ns=40 * MS)], run=run, steps=[step()])
    made = draft(one, run="dry", slack=0.1)
    assert made.budget.limits.max_step_ms == pytest.approx(110.0, abs=0.01)
    assert made.budget.limits.max_exposed_fraction == pytest.approx(0.44, abs=0.001)
    assert any("those of the forecast" in line for lines in made.comments.values() for line in lines)
    assert judge(one, made.budget).passed
    longer = step(duration_ns=120 * MS, compute_ns=70 * MS)
    slow = report([collective(exposed_ns=40 * MS)], run=run, steps=[longer])
    assert [each.limit_name for each in judge(slow, made.budget).overruns] == ["max_step_ms"]


def test_times_of_a_fake_group_or_without_a_clock_cannot_be_told():
    fake = report([collective()], run=run_of(backend="fake"))
    for limits in (
        {"max_step_ms": 1e9},
        {"max_exposed_fraction": 1},
        {"phase": {"forward": {"max_exposed_fraction": 1}}},
    ):
        assert "fake process group" in only(fake, **limits).why
    device = run_of(backend="nccl", device="NVIDIA H100 80GB HBM3")
    assert (
        only(report([collective(exposed_ns=None)], run=device), max_exposed_fraction=1).answer
        == "cannot be told"
    )
    # On the CPU the blocked time of a step is known whatever is known of each collective.
    assert held(report([collective(exposed_ns=None)]), max_exposed_fraction=0.4).passed


def test_no_implicit_of_a_section_is_of_its_collectives_only():
    mixed = report(
        [
            implicit(seq=1),
            implicit(seq=2, module="head", group="pg", mesh_dim=None, phase="backward"),
            collective(seq=3, module="head"),
        ]
    )
    for part, name, clean in (
        ("group", "tp", "pg"),
        ("module", "layers.*", "tail"),
        ("phase", "forward", "optimizer"),
    ):
        over = only(mixed, **{part: {name: {"no_implicit": ["*"]}}})
        assert (over.answer, over.found, over.section) == ("over", 1, f'{part} "{name}"')
        assert over.calls[0].module == "layers.0.mlp"
        assert held(mixed, **{part: {name: {"no_implicit": ["head"]}}}).passed
        assert held(mixed, **{part: {clean: {"no_implicit": ["layers.*"]}}}).passed
    both = held(mixed, no_implicit=["*"], phase={"backward": {"no_implicit": ["*"]}})
    assert [one.section for one in both.overruns] == [None, None, 'phase "backward"']
    assert both.limits == 2
    assert name_of(both.overruns[2]) == 'no_implicit "*" of phase "backward"'
    assert name_of(both.overruns[0]) == 'no_implicit "*"'


def test_what_may_be_implicit_in_a_section_cannot_be_told():
    clean = {"no_implicit": ["*"]}
    nowhere = report([implicit(module=None)])
    assert only(nowhere, module={"layers.*": clean}).answer == "cannot be told"
    assert only(nowhere, group={"tp": {"no_implicit": ["head"]}}).answer == "cannot be told"
    assert only(nowhere, group={"tp": clean}).answer == "over"
    assert held(nowhere, group={"pg": clean}).passed
    unasked = report([implicit(implicit=None)])
    assert only(unasked, phase={"forward": clean}).answer == "cannot be told"
    assert held(unasked, phase={"backward": clean}).passed
    counted = report([collective()], counts=[Count(0, 0, "pg", 7, 1)])
    assert only(counted, phase={"forward": clean}).answer == "cannot be told"
    assert only(counted, group={"pg": clean}).answer == "cannot be told"
    assert held(counted, group={"tp": clean}).passed, "all of that group are on record"
    (said,) = held(report([implicit()]), group={"pg": {"no_implicit": ["lay"]}}).warnings
    assert 'no module on record is named by "lay"' in said


def found(kind: str, **where: Any) -> Finding:
    return Finding(kind, "info", f"a {kind}", None, None, None, None, 3, (1,), Where(**where))


@pytest.mark.parametrize(
    ("section", "inside", "outside", "untold"),
    [
        ({"phase": "backward"}, {"phase": "backward"}, {"phase": "forward"}, {"module": "a"}),
        ({"group": "t*"}, {"group": "3", "mesh_dim": "tp"}, {"group": "dp"}, {"phase": "forward"}),
        ({"group": "3"}, {"group": "3", "mesh_dim": "tp"}, {"mesh_dim": "dp"}, {}),
        ({"module": "layers.*"}, {"module": "layers.*.mlp"}, {"module": "head"}, {"phase": "forward"}),
        ({"module": "m.1"}, {"module": "m.1.mlp"}, {"module": "m.2"}, {"module": "m.*.mlp"}),
        ({"module": "m.1*"}, {"parameter": "m.12.w"}, {"parameter": "head.w"}, {"module": "m.*"}),
        ({"module": ""}, {"module": ""}, {"module": "layers.*"}, {"group": "dp"}),
        ({"module": "a.b"}, {"module": "a.b"}, {"module": "*"}, {"module": "*.b"}),
    ],
)  # fmt: skip
def test_a_kind_is_forbidden_where_its_section_stands(
    section: dict[str, str], inside: dict[str, Any], outside: dict[str, Any], untold: dict[str, Any]
):
    ((part, name),) = section.items()
    budget = {part: {name: {"forbid": ["recompute"]}}}
    of = replace(
        report([collective()]), findings=(found("recompute", **outside), found("wide-dtype", **inside))
    )
    assert held(of, **budget).passed
    over = only(replace(of, findings=(found("recompute", **inside),)), **budget)
    assert (over.answer, over.found, over.place, over.section) == ("over", 3, "recompute", f'{part} "{name}"')
    assert name_of(over) == f'forbid recompute of {part} "{name}"'
    maybe = replace(of, findings=(found("recompute", **untold),))
    assert (only(maybe, **budget).answer, only(maybe, **budget).found) == ("cannot be told", None)
    assert f'whether this is in {part} "{name}"' in only(maybe, **budget).why
    assert held(maybe, forbid=["wide-dtype"], **budget).limits == 2
    assert only(maybe, forbid=["recompute"]).answer == "over", "at the top any place will do"


@pytest.mark.parametrize(
    ("kind", "parameter", "listed", "module", "answer"),
    [
        # Three places, of which the first is the place and all are parameters.
        ("wrong-gradient", "layers.0.w", "layers.0.w, layers.1.w, head.w", "head", "over"),
        ("wrong-gradient", "layers.0.w", "layers.0.w, layers.1.w, head.w", "layers.1", "over"),
        ("wrong-gradient", "layers.0.w", "layers.0.w, layers.1.w, head.w", "embed", None),
        # Not all of them are named.
        ("wrong-gradient", "layers.0.w", "layers.0.w, layers.1.w", "head", "cannot be told"),
        ("wrong-gradient", "layers.0.w", None, "head", "cannot be told"),
        ("wrong-gradient", "layers.0.w", None, "layers.0", "over"),
        # A collective's parameters: as many as are joined, how often it ran is another thing.
        ("recompute", "layers.0.w, head.w", None, "head", "over"),
        ("recompute", "layers.0.w, head.w", None, "embed", None),
        ("recompute", "layers.*.w, head.w", None, "layers.3", "cannot be told"),
        ("recompute", "layers.0.w, ... (12 parameters)", None, "head", "cannot be told"),
        ("recompute", "layers.0.w, ... (12 parameters)", None, "layers.0", "over"),
    ],
)
def test_what_stands_for_several_places_passes_no_section_that_one_may_be_in(
    kind: str, parameter: str, listed: str | None, module: str, answer: str | None
):
    grouped = found(kind, parameter=parameter, module="layers.0" if kind == "wrong-gradient" else None)
    grouped = replace(grouped, parameters=tuple(listed.split(", ")) if listed else ())
    of = replace(report([collective()]), findings=(grouped,))
    budget = {"module": {module: {"forbid": [kind]}}}
    assert [one.answer for one in held(of, **budget).overruns] == ([answer] if answer else [])


def test_the_group_of_one_parameter_is_not_that_of_all():
    of = report([collective()])
    for count, answers in ((1, []), (3, ["cannot be told"])):
        one = replace(found("replica-drift", parameter="a.w", module="a", group="dp"), count=count)
        budget = {"group": {"tp": {"forbid": ["replica-drift"]}}}
        assert [over.answer for over in held(replace(of, findings=(one,)), **budget).overruns] == answers


def watch(number: int, rank: int, exposed_ms: int) -> Any:
    return step(number, rank, compute_ns=0, exposed_comm_ns=exposed_ms * MS, idle_ns=0,
                unattributed_ns=(100 - exposed_ms) * MS, level="watch")  # fmt: skip


def test_a_watched_step_that_does_not_tell_its_exposed_time_passes_no_limit_on_it():
    steps = [watch(number, rank, 20 * rank) for number in (0, 1) for rank in (0, 1)]
    told, untold = (
        report([collective(step=1, rank=0, exposed_ns=exposed)], steps=steps) for exposed in (0, None)
    )
    assert held(told, max_exposed_fraction=0.2).passed
    found = only(untold, max_exposed_fraction=0.2)
    assert (found.answer, found.step, found.rank) == ("cannot be told", 1, 0)
    assert "of 1 collective their exposed time is not known" in found.why
    # A lower bound that is over is over.
    part = report([collective(step=0, rank=1, exposed_ns=None)], steps=steps)
    assert only(part, max_exposed_fraction=0.1).why == "20 % at least, 10 % allowed"
    counted = report(steps=steps, counts=[Count(1, 0, "pg", 7, 1)])
    assert only(counted, max_exposed_fraction=0.2).answer == "cannot be told"
    # Of a step that is not judged nothing need be known.
    surveyed = report([collective(step=9, exposed_ns=None)], steps=[*steps, step(9), step(9, 1)])
    assert held(surveyed, max_exposed_fraction=0.2).passed


def test_no_limit_on_exposed_time_is_written_where_it_is_not_told():
    of = report([collective(exposed_ns=None)], steps=[watch(n, r, 0) for n in (0, 1) for r in (0, 1)])
    made = draft(of, run="r", slack=0.1)
    assert made.budget.limits.max_exposed_fraction is None
    assert made.budget.limits.max_step_ms == pytest.approx(110, abs=2e-3)
    assert "exposed time is not known" in made.comments["max_exposed_fraction"][0]
    assert judge(of, made.budget).overruns == ()


def test_a_record_that_broke_off_passes_nothing():
    of = report([collective()], notices=[Notice(1, "capture-stopped", "stopped: KeyError")])
    over = only(of, max_collectives=9)
    assert (over.limit_name, over.answer) == ("record", "cannot be told")
    assert "KeyError" in over.why


def test_names_that_name_nothing_are_told():
    of = report([implicit()], computes=[compute(module="head")], run=run_of(4, ranks_seen=(0, 1)))
    check = held(
        of,
        no_implicit=["layer.*", "head"],
        module={"tail": {"max_collectives": 1}},
        group={"cp": {"max_collectives": 1}},
    )
    assert check.passed
    said = "\n".join(check.warnings)
    assert "ranks 2-3 of 4 not seen" in said
    assert 'no module on record is named by "layer.*"' in said
    assert "layers.0.mlp" in said
    assert 'named by "tail"' in said
    assert 'no group or mesh dimension is named by "cp", so it limits nothing; there are 3, pg, tp' in said
    assert '"head"' not in said
    (said,) = held(report([collective()]), no_implicit=["layers.*"]).warnings
    assert "no module is on record" in said


def test_an_empty_run_is_told():
    with pytest.raises(UsageError, match="no finished step"):
        held(report([collective()], steps=[]), max_collectives=1)


def test_json_has_what_was_found():
    document = check_to_json(held(report(BUSY, steps=STEPS), max_collectives=2))
    assert (document["passed"], document["steps"], document["ranks"], document["limits"]) == (False, 2, 2, 1)
    (over,) = document["overruns"]
    assert over["limit_name"] == "max_collectives"
    assert over["calls"][0]["op"] in ("all_gather", "all_reduce")


@pytest.mark.parametrize(
    "rows",
    [
        BUSY,
        [],
        [
            implicit(),
            implicit(step=1, module="layers.1.mlp"),
            collective(module="head"),
            implicit(module="tail"),
        ],
        [collective(message_bytes=None, wire_bytes=None, implicit=None, module=None)],
        [implicit(implicit=None), collective(phase="optimizer", parameter="head.w")],
        [implicit(module="")],
        [implicit(module=None)],
    ],
)
def test_a_run_keeps_the_budget_made_of_it(rows: list[Collective]):
    for more in (
        {},
        {"counts": [Count(0, 0, "pg", 7, 1)]},
        {"run": run_of(backend="fake")},
        {"run": run_of(backend="nccl", device="NVIDIA H100 80GB HBM3")},
    ):
        of = report(
            rows, steps=STEPS, computes=[compute(module="head"), compute(module="layers.0.norm")], **more
        )
        for slack in (0.0, 0.1):
            made = draft(of, run="r", slack=slack).budget
            assert judge(of, made).overruns == ()
            assert not [one for one in judge(of, made).warnings if "names" in one or "named" in one]


def test_a_made_budget_is_exact_and_names_what_is_clean():
    of = report(BUSY, steps=STEPS, computes=[compute(module=name) for name in ("head.up", "layers.0.norm")])
    made = draft(of, run="r", slack=0.1)
    assert (made.budget.limits.max_collectives, made.budget.limits.max_wire_bytes) == (3, 2 * MIB)
    # 40 of 100 ms in each step: no noise, and a tenth more.
    assert made.budget.limits.max_exposed_fraction == pytest.approx(0.44, abs=2e-4)
    assert made.budget.limits.max_step_ms == pytest.approx(110, abs=2e-3)
    assert set(made.budget.no_implicit) == {"head", "layers.*.norm"}
    assert {(one.label(), one.limits.max_collectives) for one in made.budget.sections} == {
        ('group "tp"', 2),
        ('phase "forward"', 2),
        ('phase "backward"', 1),
    }
    assert made.budget.forbid == (
        *("wrong-gradient", "replica-drift", "unsynced-parameter"),
        *("missing-zero-grad", "non-finite", "identical-shards"),
    )
    one_step = draft(report(BUSY, steps=STEPS[:2]), run="r", slack=0.1)
    assert one_step.budget.limits.max_step_ms is None
    assert "noise of one step" in one_step.comments["max_exposed_fraction"][0]


@pytest.mark.parametrize(("slow_ms", "limit"), [(130, 146.25), (300, None)])
def test_a_limit_on_time_is_written_only_where_steps_are_steady(slow_ms: int, limit: float | None):
    # Four steps of 100 ms and one of 130: mean 106, deviation 13.42, so 146.25 ms. Of 300: mean 140 and
    # deviation 89.4, so 408 ms, 2.9 times the mean.
    lasted = [100, 100, 100, 100, slow_ms]
    steps = [
        step(number, rank, start_ns=number * 1000 * MS, duration_ns=ms * MS, idle_ns=(ms - 90) * MS)
        for number, ms in enumerate(lasted)
        for rank in (0, 1)
    ]
    made = draft(report(steps=steps), run="r", slack=0.0)
    assert made.budget.limits.max_step_ms == (None if limit is None else pytest.approx(limit, abs=0.01))
    told = "\n".join(made.comments.get("max_step_ms", ()))
    assert ("not steady: 100 to 300 ms" in told, "2.9 times the mean" in told) == (
        limit is None,
        limit is None,
    )
    assert judge(report(steps=steps), made.budget).passed


def test_no_budget_of_a_broken_or_empty_record():
    broken = report([collective()], notices=[Notice(1, "capture-stopped", "stopped: KeyError")])
    with pytest.raises(UsageError, match="KeyError"):
        draft(broken, run="r", slack=0)
    with pytest.raises(UsageError, match="no finished step"):
        draft(report(steps=[]), run="r", slack=0)
