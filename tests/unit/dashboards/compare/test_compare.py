"""How a comparison looks on a terminal, as Markdown and as a page."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from shardtoll.analyzers.compare.compare import Options, compare
from shardtoll.dashboards.compare import compare_page, rows
from shardtoll.dashboards.compare.compare_shown import markdown, renderable
from shardtoll.ledger.answers.comparison import Comparison, comparison_to_json
from shardtoll.ledger.words import human
from tests import sample_reports
from tests.unit.analyzers.compare_runs import CALLS, made


def found() -> Comparison:
    gather = {"op": "all_gather", "module": "head", "phase": "forward", "message_bytes": 1 << 21,
              "source": "train.py:42 (step)", "exposed_ns": 20_000_000}  # fmt: skip
    return compare(made(0), made(1, ranks=4, calls=(*CALLS, gather)), ("runs/a", "runs/b"), Options())


FOUND = found()


def printed(comparison: Comparison, width: int) -> str:
    shown = io.StringIO()
    Console(width=width, highlight=False, color_system=None, file=shown).print(renderable(comparison, width))
    return shown.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_it_fits_every_width_and_says_the_same(width: int):
    text = printed(FOUND, width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for part in (
        "the slowest rank's step takes",
        "all_gather",
        "layers.0.mlp",
        "unexplained",
        "scaling, 2 -> 4 ranks",
    ):
        assert part in words


def test_the_step_of_the_slowest_rank_and_the_mean_are_both_named():
    """A report's step is that of its slowest rank; the parts of a comparison add up to the mean."""
    slowest = next(each for each in FOUND.totals if each.name == "step of the slowest rank")
    named = {row[0]: row[1:3] for row in rows.times(FOUND)}
    assert "step" not in named
    for figure, name in ((FOUND.step, rows.MEAN_STEP), (slowest, slowest.name)):
        assert named[name] == tuple(
            human.duration(round(each or 0)) for each in (figure.before, figure.after)
        )
    assert [row[0] for row in rows.times(FOUND)][:2] == [slowest.name, rows.MEAN_STEP]
    by = human.duration(abs(slowest.difference or 0))
    assert FOUND.headline.startswith(f"the slowest rank's step takes {by} ")
    assert "), and the mean of the ranks as much: " in FOUND.headline
    assert "of the mean's change" in FOUND.headline
    alone = compare(made(0, ranks=1), made(1, ranks=1), ("a", "b"))
    assert next(row[0] for row in rows.times(alone)) == "step"
    same = compare(made(0), made(1), ("a", "b"))
    was, now = next(row[1:3] for row in rows.times(same) if row[0] == slowest.name)
    assert f"a step takes {was} before, {now} after on the slowest rank; a change" in same.headline


def test_the_page_is_the_same_twice_and_draws_both_steps():
    one, other = compare_page.render(FOUND), compare_page.render(found())
    assert one == other
    drawn = compare_page.anatomy(FOUND)
    for at, side in enumerate(("before", "after")):
        total = sum(trace["x"][at] for trace in drawn.data)
        assert total == pytest.approx(getattr(FOUND.step, side) / 1e6, abs=1e-4)
    changes = compare_page.changes(FOUND)
    assert {trace["name"] for trace in changes.data} == {"beyond noise", "within noise"}


def test_names_of_users_cannot_act():
    report = sample_reports.hostile()
    comparison = compare(report, sample_reports.report(), ("<script>a</script>", "\x1b[31mb"))
    page, text = compare_page.render(comparison), markdown(comparison)
    for shown in (page, text):
        assert "<script>a" not in shown
        assert "<script>alert" not in shown
        assert "<img" not in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    assert "\x1b" not in printed(comparison, 100)
    json.loads(json.dumps(comparison_to_json(comparison), allow_nan=False))


def test_what_cannot_be_drawn_is_said():
    empty = compare(sample_reports.empty(), sample_reports.empty(), ("a", "b"))
    assert empty.verdict == "too few steps"
    page = compare_page.render(empty)
    assert "One of the runs has no timed step to divide." in page
    assert printed(empty, 80)
    assert "too few steps" in markdown(empty)


def test_what_is_left_out_is_counted():
    many = replace(FOUND, modules=FOUND.modules * 5)
    assert "more, which are in the JSON" in printed(many, 120)
    assert "more, which are in the JSON" in markdown(many)
