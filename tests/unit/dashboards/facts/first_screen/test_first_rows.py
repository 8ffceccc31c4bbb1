"""Which findings stand on the first screen: folded rows, and the largest toll in any case."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.dashboards.attempts.side_by_side import Attempt, bill_lines
from shardtoll.dashboards.exports import markdown
from shardtoll.dashboards.facts.first_screen import first_facts, together
from shardtoll.dashboards.facts.first_screen.first_rows import FINDINGS, rows, worth_showing
from shardtoll.dashboards.page.html.first import first_screen
from shardtoll.ledger import Figure, Finding, Remedy, Report, Where
from shardtoll.ledger.records.finding import Severity
from shardtoll.ledger.records.remedy_key import with_keys
from tests import sample_reports
from tests.unit.dashboards.facts.test_levels import DIVIDED, SURVEYED
from tests.unit.dashboards.facts.test_levels import of as of_steps
from tests.unit.dashboards.terminal.test_first_screen import shown

MS = 1_000_000


def wrong(name: str, **changes: object) -> Finding:
    remedy = Remedy(f"Reduce the gradient of `{name}` over ranks 0-1.")
    made = Finding(
        *("wrong-gradient", "error", f"gradient of {name} is wrong", None, None, None, None, 1, (0, 1)),
        Where.of_parameter(name, phase="backward"),
        remedy=remedy,
        cause="missing-reduction",
    )
    return keyed(replace(made, **changes))  # type: ignore[arg-type]


def keyed(finding: Finding) -> Finding:
    """Return the finding with the key that the analyses give its remedy."""
    remedy = finding.remedy
    (made,) = with_keys([replace(finding, remedy=remedy and replace(remedy, key=None))])
    return made


def priced(kind: str, severity: Severity, toll_ms: int, saving_ms: int | None = None) -> Finding:
    saving = None if saving_ms is None else saving_ms * MS
    return Finding(kind, severity, "t", toll_ms * MS, None, saving, None, 1, (0,), Where())


def of(*findings: Finding) -> Report:
    return replace(sample_reports.report(), findings=findings)


BIASES = [wrong(f"layers.{layer}.bias") for layer in range(3)]


def test_findings_that_differ_in_the_parameter_only_share_a_row():
    (row,) = rows(BIASES)
    assert (row.number, row.numbers) == (1, (1, 2, 3))
    assert row.place == "3 biases (findings 1-3): layers.{0-2}.bias"
    (pair,) = rows([wrong("up.weight"), wrong("up.bias")])
    assert pair.place == "2 parameters (findings 1-2): up.{weight,bias}"
    (alone,) = rows(BIASES[:1])
    assert alone.place is None


def test_another_cause_place_kind_or_a_price_keeps_a_row_of_its_own():
    first = BIASES[0]
    for other in (
        wrong("b", cause="wrong-scale"),
        wrong("b", ranks=(1,)),
        wrong("b", where=Where.of_parameter("b", phase="backward", mesh_dim="tp")),
        wrong("b", kind="replica-drift"),
        wrong("b", remedy=Remedy("Divide the gradient of `b` by two.")),
        wrong("b", toll_ns=MS),
    ):
        assert [row.numbers for row in rows([first, other])] == [(1,), (2,)]


def test_folded_rows_leave_room_for_others_on_screen_and_page():
    drift = [keyed(replace(each, kind="replica-drift")) for each in BIASES]
    report = of(*BIASES, *drift, priced("straggler", "warning", 5, 5))
    # A gradient that is wrong makes its replicas drift: that is no row of its own.
    assert [row.number for row in worth_showing(report)] == [1, 7]
    (first, _) = worth_showing(report)
    assert (first.numbers, first.follow) == (tuple(range(1, 7)), (("replica-drift", (4, 5, 6)),))
    assert first_facts.more_like(first) == "findings 4-6 (replica-drift) are its consequence"
    assert report.verdict.startswith("6 errors of one cause (layers.{0-2}.bias) to fix first: ")
    other = replace(report, findings=(*BIASES, keyed(replace(wrong("other"), kind="replica-drift"))))
    assert [row.number for row in worth_showing(other)] == [1, 4]
    assert other.verdict.startswith("4 errors to fix first: ")
    assert len(report.findings) == 7
    for width in (80, 100):
        assert "3 biases (findings 1-3): layers.{0-2}.bias" in shown(report, width)
    assert "findings 4-6 (replica-drift) are its consequence" in first_screen(report)
    table = [line for line in markdown.markdown(report).splitlines() if line.startswith("| ")][2:]
    numbers = [line.split(" |")[0].removeprefix("| ") for line in table[:2]]
    assert numbers == ["1-6", "7"], "as on the screen; what follows stands in the row of its cause"
    assert "3 biases (findings 1-3): layers.{0-2}.bias" in table[0].replace("\\", "")
    assert "findings 4-6 (replica-drift) are its consequence" in table[0]


def test_the_table_has_each_finding_of_a_row_with_tolls_and_with_what_follows():
    costly = [wrong(f"layers.{layer}.bias", toll_ns=MS) for layer in range(2)]
    drift = [keyed(replace(each, kind="replica-drift", toll_ns=None)) for each in costly]
    report = of(*costly, *drift)
    (row,) = rows(report.findings)
    assert (row.more, row.follow) == ((costly[1],), (("replica-drift", (3, 4)),))
    table = [line for line in markdown.markdown(report).splitlines() if line.startswith("| ")][2:6]
    assert [line.split(" |")[0] for line in table] == ["| 1", "| 2", "| 3", "| 4"]
    assert ["replica" in line for line in table] == [False, False, True, True]


def test_the_largest_toll_is_shown_and_said_though_warnings_stand_first():
    small = [priced("host-sync", "warning", 1, 1) for _ in range(FINDINGS)]
    report = of(*small, priced("recompute", "info", 4), priced("exposed-communication", "info", 40))
    # Infos stand by toll: the largest comes sixth.
    assert [row.number for row in worth_showing(report)] == [1, 2, 3, 4, 6]
    said = "Finding 6 has the largest toll, 40.0 ms, but the job may need that time."
    for width in (80, 100):
        text = shown(report, width)
        assert said in text
        assert "\n 6 info exposed-communication" in text
    assert said in first_screen(report)


def test_the_largest_toll_is_not_said_where_it_stands_first_anyway():
    report = of(priced("host-sync", "warning", 9, 9), priced("exposed-communication", "info", 4))
    assert together.of_largest_toll(report, [1, 2]) == []
    assert together.of_largest_toll(of(*BIASES, priced("recompute", "info", 4)), [1, 2, 3, 4]) == []


def test_a_larger_toll_below_a_larger_saving_is_said_to_be_one():
    late = replace(priced("straggler", "info", 12, 0), replayed="on time")
    report = of(priced("host-sync", "warning", 9, 9), late)
    assert together.of_largest_toll(report, [1, 2]) == [
        "Finding 2 has the largest toll, 12.0 ms, but its fix alone saves nothing."
    ]


def test_a_remedy_that_only_measures_saves_nothing_next_to_the_largest_toll():
    remedy = Remedy("Record again with trace=True.", measures=True)
    late = replace(priced("straggler", "info", 12, 3), remedy=remedy)
    assert together.of_largest_toll(of(priced("host-sync", "warning", 9, 9), late), [1, 2]) == [
        "Finding 2 has the largest toll, 12.0 ms, but how to fix it takes a measurement first."
    ]


def test_findings_that_differ_in_numbers_and_places_only_share_a_row():
    def exposed(toll_ms: int, saving_ms: int, source: str, text: str) -> Finding:
        found = priced("exposed-communication", "info", toll_ms, saving_ms)
        return keyed(replace(found, where=Where(source=source), remedy=Remedy(text)))

    first = exposed(9, 3, "a.py:1 (f)", "Use smaller buckets: one of 5.03 MB at a.py:1 (f) waits.")
    other = exposed(5, 2, "b.py:2 (g)", "Use smaller buckets: one of 8.2 MB at b.py:2 (g) waits.")
    report = of(first, other, exposed(4, 1, "c.py:3 (h)", "Start earlier."))
    assert [row.numbers for row in rows(report.findings)] == [(1, 2), (3,)]
    grouped, alone = rows(report.findings)
    said = "1 more like it (finding 2)"
    assert first_facts.more_like(grouped) == said
    assert first_facts.more_like(alone) is None
    for width in (80, 100):
        assert said in " ".join(shown(report, width).split())
    assert said in first_screen(report)


def test_a_warning_and_an_info_of_one_remedy_have_a_row_each_and_types_are_no_numbers():
    same = [
        keyed(replace(priced("host-sync", severity, 9), remedy=Remedy("Read it seldom.")))
        for severity in ("warning", "info")
    ]
    assert [row.numbers for row in rows(same)] == [(1,), (2,)]
    types = [
        keyed(replace(priced("wide-dtype", "info", 9), remedy=Remedy(f"Send {name} as bfloat16.")))
        for name in ("float32", "float64")
    ]
    assert [row.numbers for row in rows(types)] == [(1,), (2,)]


def test_each_late_rank_keeps_a_row_of_its_own():
    late = [
        keyed(replace(priced("straggler", "info", 4), remedy=Remedy("Trace it."), ranks=(rank,)))
        for rank in (0, 1)
    ]
    assert [row.numbers for row in rows(late)] == [(1,), (2,)]


def test_a_large_toll_that_no_fix_saves_says_so():
    report = of(priced("host-sync", "warning", 5, 5), priced("exposed-communication", "info", 9, 1))
    assert together.of_largest_toll(report, [1, 2]) == [
        "Finding 2 has the largest toll, 9.00 ms, but its fix saves at most 1.00 ms."
    ]


def test_noise_has_no_row_unless_it_is_all_there_is():
    """Compute and idle time of the steps shown may be off by 2 ms; a step takes 24 ms."""
    small, large = priced("duplicated-compute", "info", 1, 1), priced("exposed-communication", "info", 4, 4)
    steps = [replace(DIVIDED, step=number) for number in range(1, 100)]

    def screen(*findings: Finding) -> Report:
        return replace(of_steps(SURVEYED, *steps), findings=findings)

    assert [row.number for row in worth_showing(screen(large, small))] == [1]
    assert "duplicated-compute" not in shown(screen(large, small), 100)
    assert "Also finding 2: " in shown(screen(large, small), 100)
    assert bill_lines(Attempt("a", "l", screen(large, small)))[1:] == ["and 1 more on its own page"]
    # Communication is timed by itself, as is what lies before a step.
    moved = replace(small, kind="exposed-communication")
    before = replace(small, kind="data-stall", figures=(Figure("before_step_ns", MS, "ns"),))
    for timed in (moved, before):
        assert [row.number for row in worth_showing(screen(large, timed))] == [1, 2]
    assert [row.number for row in worth_showing(screen(large, replace(small, severity="warning")))] == [1, 2]
    assert [row.number for row in worth_showing(screen(small))] == [1]


def test_equal_batches_have_a_row_however_little_time_they_take():
    equal = replace(
        priced("duplicated-compute", "info", 1, 1), figures=(Figure("ranks_of_equal_data", 2, "count"),)
    )
    steps = [replace(DIVIDED, step=number) for number in range(1, 100)]
    large = priced("exposed-communication", "info", 4, 4)
    report = replace(of_steps(SURVEYED, *steps), findings=(large, equal))
    assert [row.number for row in worth_showing(report)] == [1, 2]
