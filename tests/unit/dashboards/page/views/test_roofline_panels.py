"""The roofline of a step on terminal and page, and its JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from shardtoll.dashboards.page import page
from shardtoll.dashboards.page.html import frame
from shardtoll.dashboards.page.views import light, operators
from shardtoll.dashboards.terminal.terminal import renderable
from shardtoll.ledger import Report, SchemaError
from shardtoll.ledger.answers.step_roofline import OpRoofline, RankRoofline, StepRoofline
from tests import sample_reports

MS = 1_000_000
HOSTILE = "<img src=x onerror=alert(1)>"


def section(**given: Any) -> StepRoofline:
    rank = RankRoofline(
        rank=0, steps=3, took_ns=24 * MS, exposed_comm_ns=6 * MS, flops=10**12, hfu=0.4, mfu=0.31,
        known_share=0.9, compute_light_ns=10 * MS, compute_floor_ns=15 * MS, comm_light_ns=12 * MS,
        comm_floor_ns=14 * MS, comm_serial_ns=16 * MS, comm_known_share=1.0, light_ns=12 * MS,
        best_overlap_ns=15 * MS, serial_ns=31 * MS, hideable_ns=5 * MS,
    )  # fmt: skip
    values: dict[str, Any] = {
        "gpu": "NVIDIA H100 SXM 80 GB",
        "why_unknown": None,
        "peak_tflops": {"bfloat16": 989.0, "float32": 67.0},
        "memory_gbps": 3350.0,
        "reached_tflops": 794.5,
        "ranks": (replace(rank, rank=1, took_ns=20 * MS), rank),
        "ops": (
            OpRoofline(
                "aten::mm", "bfloat16", "bf16[8,8]", 2.0, 10**9, 10**6, 1e3, 2000, 500.0, 1011, "compute"
            ),
            OpRoofline(HOSTILE, None, HOSTILE, 1.0, None, None, None, 5000, None, None, None),
        ),
        "assumptions": ("it all overlaps", HOSTILE),
        "refuted": (),
    } | given
    return StepRoofline(**values)


def report(device: str = "cuda", **given: Any) -> Report:
    found = sample_reports.report()
    return replace(found, run=replace(found.run, device=device), roofline=section(**given))


def printed(found: Report, width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width, highlight=False).print(renderable(found))
    return out.getvalue()


def test_the_slowest_ranks_bounds_stand_under_the_step():
    text = printed(report())
    assert "rank 0 (slowest)" in text
    assert "speed of light 12.0 ms · best overlap 15.0 ms · took 24.0 ms without capture · " in text
    assert "MFU 31 % · HFU 40 %" in text
    assert "compute could hide 5.00 ms" in text
    assert "it all overlaps" in text


def test_what_is_refuted_or_guessed_is_said():
    text = printed(report(refuted=("a", "b", "c", "d"), guesses=("memory_gbps",)))
    assert text.count("REFUTED") == 3
    assert "and 1 more" in text
    assert "GUESS: memory_gbps" in text


def test_an_unknown_accelerator_is_one_line():
    text = printed(report(gpu=None, why_unknown="it has no name"))
    (line,) = [line for line in text.splitlines() if "speed of light" in line]
    assert "unknown: it has no name" in line


def test_jobs_on_cpus_have_no_hardware_to_speak_of_but_a_refuted_bound_is_said():
    cpus = {"device": "cpu", "gpu": None, "why_unknown": "the job computed on CPUs"}
    assert "speed of light" not in printed(report(**cpus))
    text = page.render(report(**cpus))
    assert 'id="light"' not in text
    assert 'id="operators"' not in text
    assert "REFUTED: so" in page.render(report(**cpus, refuted=("so",)))
    assert 'id="light"' in page.render(report(**{**cpus, "device": None}))


def test_reports_without_the_section_look_as_before():
    plain = replace(sample_reports.report(), roofline=None)
    assert "speed of light" not in printed(plain)
    assert 'id="light"' not in page.render(plain)


def test_bars_hold_the_bounds_and_unknown_has_none():
    found = section()
    bars = {trace["name"]: trace["x"] for trace in light.figure(found).data}
    assert bars["took"] == [20.0, 24.0]
    assert bars["best overlap"] == [15.0, 15.0]
    unknown = replace(found, ranks=tuple(replace(rank, comm_light_ns=None) for rank in found.ranks))
    bars = {trace["name"]: trace["x"] for trace in light.figure(unknown).data}
    assert bars["communication at the speed of light"] == [None, None]


def test_operators_lie_under_their_ceilings():
    drawn = operators.figure(section())
    ceiling, points = drawn.data
    assert max(ceiling["y"]) == 989.0
    ridge = 989.0e3 / 3350.0
    assert float(f"{ridge:.6g}") in ceiling["x"]
    assert (points["x"], points["y"]) == ([1000.0], [500.0])
    assert "1 of 2 operators not drawn" in drawn.notes[0]


def test_no_timed_operator_nothing_to_draw():
    assert operators.figure(section(ops=())).empty


def test_nothing_of_a_trace_gets_into_the_page_as_html():
    text = page.render(report())
    assert HOSTILE not in text
    assert 'id="light"' in text
    assert 'id="operators"' in text


def one_op(**given: Any) -> OpRoofline:
    return replace(section().ops[0], **given)


@pytest.mark.parametrize(
    "op",
    [
        one_op(intensity=math.nan),
        one_op(tflops=math.inf),
        one_op(tflops=0.0),
        one_op(intensity=1e-320),
        one_op(tflops=1e300),
    ],
)
def test_an_operator_beyond_measure_is_not_drawn_and_harms_no_other(op: OpRoofline) -> None:
    drawn = operators.figure(section(ops=(op, *section().ops)))
    assert "2 of 3 operators not drawn" in drawn.notes[0]
    assert [trace["x"] for trace in drawn.data if trace["mode"] == "markers"] == [[1000.0]]
    assert frame.embedded([drawn.data, drawn.layout])
    assert operators.figure(section(ops=(op,))).empty


@pytest.mark.parametrize(
    "given", [{"peak_tflops": {"bfloat16": 0.0}}, {"memory_gbps": 0.0}, {"memory_gbps": 1e-300}]
)
def test_a_peak_of_nothing_is_no_ceiling(given: dict[str, Any]) -> None:
    drawn = operators.figure(section(**given))
    assert [trace["mode"] for trace in drawn.data] == ["markers"]
    assert frame.embedded([drawn.data, drawn.layout])


def test_many_operators_are_cut_and_that_is_said() -> None:
    found = section(ops=tuple(one_op(op=f"aten::op{at}", count=1e6 + at) for at in range(1000)))
    assert operators.figure(found).notes == ["Only the first 200 of 1,000 operators are shown."]
    table = operators.numbers(found)
    assert table.count("<tr>") == 201
    assert "<td>1,000,199</td>" in table, "a count has no exponent"


def test_without_shapes_a_mark_has_no_empty_line() -> None:
    drawn = operators.figure(section(ops=(one_op(shapes=None),)))
    assert not any("<br><br>" in text for text in drawn.strings)


def test_what_is_known_is_in_tables_where_nothing_can_be_drawn() -> None:
    text = page.render(report(gpu=None, why_unknown="it has no name", ops=section().ops[1:]))
    assert text.count("The figures as a table") == 2
    assert "1 of 1 operator not drawn" in text
    assert 'aria-label="operators"' in text
    assert "Not known: it has no name." in text


def test_no_two_bars_are_told_apart_by_colour_alone() -> None:
    marks = [trace["marker"]["pattern"]["shape"] for trace in light.figure(section()).data]
    assert len(set(marks)) == len(marks)


def test_many_ranks_are_cut_to_the_slowest():
    ranks = tuple(replace(section().ranks[0], rank=at, took_ns=at * MS) for at in range(100))
    found = section(ranks=ranks)
    assert "Only the 32 slowest of 100" in light.figure(found).notes[0]
    assert "<td>99</td>" in light.numbers(found)
    assert "<td>1</td>" not in light.numbers(found)


def test_json_keeps_it_and_reads_what_earlier_versions_wrote():
    made = report()
    assert Report.from_json(made.to_json()).roofline == made.roofline
    document = json.loads(made.to_json())
    del document["roofline"]
    assert Report.from_json(json.dumps(document)).roofline is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda part: part.update(ranks=7),
        lambda part: part["ranks"][0].update(took_ns="soon"),
        lambda part: part["ranks"][0].update(light_ns=-1),
        lambda part: part["ranks"][0].update(took_ns=10**400),
        lambda part: part["ops"][0].update(intensity=1e300),
        lambda part: part["ranks"][0].pop("mfu"),
        lambda part: part["ops"][0].update(bound="luck"),
        lambda part: part["ops"][0].update(tflops=math.inf),
        lambda part: part.update(peak_tflops={"bfloat16": math.nan}),
        lambda part: part.update(peak_tflops=[]),
        lambda part: part.pop("gpu"),
        lambda part: part.update(more=1),
    ],
)
def test_a_damaged_section_is_told_in_one_line(damage):
    document = json.loads(report().to_json())
    damage(document["roofline"])
    with pytest.raises(SchemaError, match="damaged") as caught:
        Report.from_json(json.dumps(document))
    assert "\n" not in str(caught.value)


def test_a_sum_that_leaves_collectives_out_says_how_many_it_holds():
    rank = section().ranks[1]
    few = replace(rank, comm_count=74, comm_light_count=3, comm_floor_count=1)
    text = printed(report(ranks=(few,)), width=300)
    assert "communication 12.0 ms (3 of 74 collectives); floors" in text
    assert "communication 14.0 ms (1 of 74 collectives); one after" in text
    whole = replace(few, comm_light_count=74, comm_floor_count=74)
    assert "of 74 collectives" not in printed(report(ranks=(whole,)), width=300)
