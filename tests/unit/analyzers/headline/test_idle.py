"""A headline on idle time names the code that the host was in, and a recording of graphs as what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from shardtoll.analyzers import analyses, run
from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.findings.trust.unbilled_time import unbilled_time
from shardtoll.analyzers.headline import idle, sentence
from shardtoll.dashboards.exports.markdown import markdown
from shardtoll.dashboards.facts.first_screen import under_bars
from shardtoll.dashboards.page import notebook, page
from shardtoll.dashboards.terminal.first_screen import FirstScreen
from shardtoll.dashboards.terminal.terminal import renderable as tables_of
from shardtoll.ledger import Finding, Report, Stall, Where
from shardtoll.ledger.records.stall import GRAPH_CAPTURE
from tests.unit.analyzers.ledgers import MS, ledger, run_of, step

FACT = "rank 0's GPU is idle for 80.0 ms (80 %) of its 100 ms step"


def headline(*stalls: Stall) -> str | None:
    parts = {"compute_ns": 20 * MS, "exposed_comm_ns": 0, "idle_ns": 80 * MS, "unattributed_ns": 0}
    about = run_of(1, source="trace", device="NVIDIA H100", backend="nccl")
    return run(ledger(run=about, steps=[step(duration_ns=100 * MS, **parts)], stalls=list(stalls))).headline


def host(lost_ms: int, source: str | None = None, name: str = "") -> Stall:
    return Stall(0, 0, "host", name, "other", 1, lost_ms * MS, lost_ms * MS, source=source)


def test_code_that_the_host_is_in_for_most_of_the_idle_time_is_what_to_speed_up():
    said = headline(host(60, "lib/io/data.py:4 (read)"), host(20))
    assert said == f"Idle time costs most: {FACT}; speed up data.py:4 (read), or call it ahead of the step."
    # Named by its share of idle time; less than half of it is not what costs most.
    assert headline(host(30, "lib/io/data.py:4 (read)"), host(50)) == f"Idle time costs most: {FACT}."


def test_a_recording_in_which_graphs_are_recorded_says_that_nothing_of_them_runs():
    said = headline(host(70, name=GRAPH_CAPTURE), host(10))
    assert said == (
        f"The host records CUDA graphs, and nothing of them runs yet: {FACT}; record steps that replay them."
    )


def of_parts(idle_ms: int, comm_ms: int, world_size: int = 1, source: str = "trace") -> str:
    """The headline of rank 0, whose step of 100 ms holds so much idle time and exposed communication."""
    about = run_of(world_size, source=source, device="NVIDIA H100", backend="nccl", ranks_seen=(0,))
    compute_ns = (100 - idle_ms - comm_ms) * MS
    parts = {"compute_ns": compute_ns, "exposed_comm_ns": comm_ms * MS, "idle_ns": idle_ms * MS}
    made = run(ledger(run=about, steps=[step(duration_ns=100 * MS, unattributed_ns=0, **parts)]))
    return made.headline or ""


def test_half_of_a_step_leads_if_it_is_twice_what_communication_costs():
    assert of_parts(50, 25).startswith("Idle time costs most: ")
    assert not of_parts(50, 26).startswith("Idle time")
    # A smaller part must be three times as much.
    assert not of_parts(48, 20).startswith("Idle time")
    assert of_parts(48, 16).startswith("Idle time costs most: ")
    # What ranks do that are not on record may be why it communicates so long.
    assert not of_parts(50, 25, world_size=2).startswith("Idle time")


def test_a_first_screen_says_once_how_to_find_the_code_of_idle_time():
    about = run_of(1, source="trace", device="NVIDIA H100", backend="nccl")
    parts = {"compute_ns": 30 * MS, "exposed_comm_ns": 10 * MS, "idle_ns": 60 * MS, "unattributed_ns": 0}
    made = run(ledger(run=about, steps=[step(duration_ns=100 * MS, **parts)]))
    (line,) = under_bars.sentences(made)
    assert line.endswith("trace with_stack=True to see its code.")
    assert "with_stack" not in made.verdict
    out = StringIO()
    Console(file=out, width=100).print(FirstScreen(made))
    assert out.getvalue().count("with_stack") == 1
    # Without that line the verdict says it.
    context = context_of(ledger(run=about, steps=[step(duration_ns=100 * MS, **parts)]), None)
    said = [idle.clause(context, (), shown=shown) for shown in (False, True)]
    assert ["with_stack=True" in (each or ("",))[0] for each in said] == [True, False]


VIEWS: dict[str, Callable[[Report], str]] = {
    "markdown": lambda report: markdown(report).replace("\\", ""),
    "notebook": notebook.render,
    "tables": lambda report: shown_by(tables_of(report)),
    "first screen": lambda report: shown_by(FirstScreen(report)),
    "page": lambda report: page.head(report, report.verdict),
}


def shown_by(view: Any) -> str:
    out = StringIO()
    Console(file=out, width=250).print(view)
    return out.getvalue()


def uneven_on_cpu() -> Report:
    """Watched steps whose division is off by as much as they are idle, as surveyed ones differ so much."""
    surveyed = [
        step(n, duration_ns=(60 + compute) * MS, compute_ns=compute * MS, idle_ns=60 * MS, exposed_comm_ns=0)
        for n, compute in enumerate((60, 5, 115, 5, 115))
    ]
    plain = {"compute_ns": 0, "idle_ns": 0, "exposed_comm_ns": 0, "unattributed_ns": 100 * MS}
    watched = [step(n, level="watch", duration_ns=100 * MS, **plain) for n in (5, 6, 7)]
    surveyed = [replace(each, unattributed_ns=0) for each in surveyed]
    return run(ledger(run=run_of(1, device="cpu", backend="gloo"), steps=[*surveyed, *watched]))


def on_gpu(*findings: Finding) -> Report:
    parts = {"compute_ns": 30 * MS, "exposed_comm_ns": 10 * MS, "idle_ns": 60 * MS, "unattributed_ns": 0}
    about = run_of(1, source="trace", device="NVIDIA H100", backend="nccl")
    return replace(run(ledger(run=about, steps=[step(duration_ns=100 * MS, **parts)])), findings=findings)


ERROR = Finding("replica-drift", "error", "Replicas differ", None, None, None, None, 1, (0,), Where())
SMALL = Finding("transfer-stall", "info", "t", MS, None, None, None, 1, (0,), Where())
LARGE = replace(SMALL, toll_ns=90 * MS)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("findings", [(), (ERROR,), (SMALL,), (LARGE,), (replace(SMALL, toll_ns=None),)])
def test_each_view_says_once_how_to_find_the_code(view: str, findings: tuple[Finding, ...]):
    report = on_gpu(*findings)
    assert report.unbilled is not None
    assert VIEWS[view](report).count("with_stack") == 1


@pytest.mark.parametrize("view", VIEWS)
def test_idle_time_within_the_error_of_its_division_has_no_line_and_the_verdict_the_hint(view: str):
    report = uneven_on_cpu()
    assert "idle" in (report.headline or "") or "no operator" in (report.headline or "")
    assert report.unbilled is None
    assert VIEWS[view](report).count("py-spy") == 1


def test_time_in_no_finding_is_looked_for_once_a_report(monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []

    def counted(*given: Any) -> Any:
        calls.append(given)
        return unbilled_time(*given)

    monkeypatch.setattr(analyses, "unbilled_time", counted)
    on_gpu()
    assert len(calls) == 1
    assert not hasattr(sentence, "unbilled_time")


def test_idle_time_of_a_run_says_how_to_find_its_code_and_that_of_a_dry_run_does_not():
    # A surveyed live run says that surveying slows its host; of a watched one a process can be looked at.
    context: Any = SimpleNamespace(ledger=SimpleNamespace(run=run_of(1)))
    assert idle._find(context) == "find its code with py-spy dump"
    dry = of_parts(60, 10, source="dry")
    assert dry.startswith("Idle time costs most: ")
    assert "with_stack" not in dry
    assert "py-spy" not in dry
