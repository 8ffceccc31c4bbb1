"""A headline on idle time names the code that the host was in, and a recording of graphs as what it is."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from shardtoll.analyzers import run
from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.headline import idle
from shardtoll.dashboards.facts.first_screen import under_bars
from shardtoll.dashboards.terminal.first_screen import FirstScreen
from shardtoll.ledger import Stall
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


def test_idle_time_of_a_run_says_how_to_find_its_code_and_that_of_a_dry_run_does_not():
    # A surveyed live run says that surveying slows its host; of a watched one a process can be looked at.
    context: Any = SimpleNamespace(ledger=SimpleNamespace(run=run_of(1)))
    assert idle._find(context) == "find its code with py-spy dump"
    dry = of_parts(60, 10, source="dry")
    assert dry.startswith("Idle time costs most: ")
    assert "with_stack" not in dry
    assert "py-spy" not in dry
