"""Filters as links hold them, and reports with only what fits: counted by hand and against plain Python."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.dashboards.app.filters import (
    LONGEST_NAME,
    MOST_NAMES,
    Filter,
    absent,
    apply,
    parse_ranks,
    ranges,
)
from shardtoll.ledger import KINDS, PHASES, Leadup
from shardtoll.ledger.tables.tables import to_records, to_table
from tests import sample_reports
from tests.place_rows import assert_same_findings

NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
MODULES = NAMES.filter(lambda name: all(part.count("*") <= 1 for part in name.split(".")))
FILTERS = st.builds(
    Filter,
    ranks=st.lists(st.integers(0, 2_000), max_size=30).map(tuple),
    groups=st.lists(NAMES, max_size=5).map(tuple),
    modules=st.lists(MODULES, max_size=5).map(tuple),
    phases=st.lists(st.sampled_from(PHASES), max_size=5).map(tuple),
    kinds=st.lists(st.sampled_from(sorted(KINDS)), max_size=5).map(tuple),
)


@settings(deadline=None)
@given(FILTERS)
def test_a_link_restores_the_filter(only: Filter):
    query = only.to_query()
    back = Filter.from_query(f"?view=timeline&{query}&unknown=%00")
    assert back == only
    assert back.refused == ()
    assert back.to_query() == query


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_a_query(query: str):
    only = Filter.from_query(query)
    assert Filter.from_query(only.to_query()) == only


def test_a_filter_is_the_same_in_whatever_order_it_is_given():
    one = Filter(ranks=(8, 0, 1, 2, 3, 3), modules=("b", "a", "b"))
    assert one.to_query() == "ranks=0-3,8&module=a&module=b"
    assert one == Filter.from_query("module=b&ranks=8,3,2,1,0&module=a")
    assert not Filter()
    assert Filter().to_query() == Filter().words() == ""


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("ranks=x", "x is no rank"),
        ("ranks=7-3", "7-3 names no ranks"),
        ("ranks=0-9999999", "0-9999999 names no ranks"),
        ("ranks=0-999999", "more than 100,000 ranks"),
        ("ranks=²", "is no rank"),
        ("phase=sideways", "there is no phase sideways"),
        ("kind=%3Cscript%3E", "there is no kind <script>"),
        ("module=" + "m" * (LONGEST_NAME + 1), "a module of 1,001 characters is left out"),
        ("module=a**b", "more than one *"),
        ("group=g&" * (MOST_NAMES + 1), f"only the first {MOST_NAMES}"),
        ("a" * 30_000, "longer than 20,000 characters"),
    ],
)
def test_what_cannot_be_meant_is_left_out_and_said(query: str, said: str):
    only = Filter.from_query(query)
    assert said in " ".join(only.refused)
    assert only in (Filter(), Filter(groups=("g",)))


def test_ranks_are_written_as_ranges_and_read_back():
    assert parse_ranks(" 0-3, 8 ,10") == ((0, 1, 2, 3, 8, 10), [])
    assert ranges((0, 1, 2, 3, 8, 10, 11)) == "0-3,8,10-11"
    assert ranges(()) == ""


def test_ranks_phases_and_groups_keep_the_rows_that_fit_and_whole_steps():
    report = sample_reports.report()
    frame, steps = report.collectives, report.steps
    for only, fits in (
        (Filter(ranks=(1, 3)), frame["rank"].isin([1, 3])),
        (Filter(phases=("backward",)), frame["phase"] == "backward"),
        (Filter(groups=("tp",)), (frame["group"] == "tp") | (frame["mesh_dim"] == "tp")),
        (Filter(ranks=(0,), phases=("forward",)), (frame["rank"] == 0) & (frame["phase"] == "forward")),
    ):
        kept = apply(report, only)
        expected = frame[fits.fillna(False)]
        assert 0 < len(expected) < len(frame)
        assert kept.collectives.to_dict("records") == expected.to_dict("records")
        wanted = steps[steps["rank"].isin(only.ranks)] if only.ranks else steps
        assert kept.steps.to_dict("records") == wanted.to_dict("records")


def test_a_module_stands_for_all_inside_it_and_a_star_for_one_part():
    modules = [None, "", "layers.1", "layers.1.mlp", "layers.10", "layers.2.mlp.w1", "head"]
    rows = [replace(sample_reports.collectives()[0], module=name) for name in modules]
    tables = {**sample_reports.report().tables, "collectives": to_table("collectives", rows)}
    report = sample_reports.report(tables=tables)

    def shown(*names: str) -> list[str | None]:
        rows = apply(report, Filter(modules=names)).tables["collectives"]
        return [row.module for row in to_records("collectives", rows)]

    assert shown("layers.1") == ["layers.1", "layers.1.mlp"]
    assert shown("layers") == modules[2:6]
    assert shown("layers.*.mlp") == ["layers.1.mlp", "layers.2.mlp.w1"]
    assert shown("layers.1*") == ["layers.10"]
    assert shown("") == [""]
    assert shown("head", "layers.2") == ["layers.2.mlp.w1", "head"]
    assert shown("nothing") == []


def test_a_finding_without_the_part_asked_for_is_not_shown():
    report = sample_reports.report()
    first = report.findings[0]
    kinds = {finding.kind for finding in report.findings}
    assert {one.kind for one in apply(report, Filter(kinds=(first.kind,))).findings} == {first.kind} < kinds
    for only in (Filter(phases=("backward",)), Filter(modules=("layers",)), Filter(groups=("tp",))):
        for finding in apply(report, only).findings:
            where = finding.where
            assert where.phase == "backward" or not only.phases
            assert (where.module or "").startswith("layers") or not only.modules
            assert "tp" in (where.group, where.mesh_dim) or not only.groups
    on_three = replace(report, findings=tuple(one for one in report.findings if 3 in one.ranks))
    assert_same_findings(on_three, apply(report, Filter(ranks=(3,))))


def test_a_lead_up_stays_with_its_collective():
    report = sample_reports.report()
    frame = report.collectives
    place = frame.groupby("rank").cumcount()
    leadups = [
        Leadup(0, int(rank), int(at), 1000 * int(at) + int(rank), 0, 0, 0, 0, 0, 0, "forward")
        for rank, at in zip(frame["rank"], place, strict=True)
    ]
    # One more than there are collectives: of none that is known.
    leadups.append(replace(leadups[-1], index=10_000))
    report = replace(report, tables={**report.tables, "leadups": to_table("leadups", leadups)})
    kept = apply(report, Filter(phases=("backward",)))
    after = kept.collectives.assign(place=lambda rows: rows.groupby("rank").cumcount())
    said = {(row.rank, row.index): row.since_ns for row in to_records("leadups", kept.tables["leadups"])}
    origin = frame.assign(since=1000 * place + frame["rank"])[frame["phase"] == "backward"]
    expected = dict(zip(zip(after["rank"], after["place"], strict=True), origin["since"], strict=True))
    assert said == expected


def test_what_is_filtered_is_said_in_plain_words():
    only = Filter(ranks=(0, 1, 5), modules=("", *map(str, range(8))), kinds=("straggler",))
    said = only.words()
    names = "ranks 0-1,5; modules (root), 0, 1, 2, 3 and 4 more; on the bill kind straggler"
    assert said == f"Shown: {names}. Steps are whole."


def test_what_a_run_has_nothing_of_is_told_in_words():
    report = sample_reports.report()
    seen = ranges(sorted(report.run.ranks_seen))
    assert absent(report, Filter(ranks=(0, 7))) == [f"there is no rank 7 on record, only ranks {seen}"]
    kind = next(kind for kind in sorted(KINDS) if kind not in {one.kind for one in report.findings})
    assert absent(report, Filter(groups=("nobody",), modules=("gone.*",), kinds=(kind,))) == [
        "the run has no group nobody",
        "the run has no module gone.*",
        f"the run has no finding of kind {kind}",
    ]
    groups = tuple({group.mesh_dim for group in report.groups} - {None})
    modules = tuple(set(report.collectives["module"].dropna()))
    assert groups
    assert modules
    assert absent(report, Filter(ranks=(0, 1), groups=groups, modules=modules)) == []
