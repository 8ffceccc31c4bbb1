"""audit(trace=True) in one process: what is traced, what is not, and why."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shardtoll.ledger import UsageError, read_run
from shardtoll.profiler import audit
from shardtoll.profiler.live.session import joining
from shardtoll.profiler.live.times import recording, tracing

D = 8


def train(model: nn.Module) -> None:
    model(torch.ones(2, D)).sum().backward()


def trace_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((folder / "trace.rank00000.json.gz").read_bytes()))
    return found


def steps_in(folder: Path) -> list[str]:
    names = [event["name"] for event in trace_of(folder)["traceEvents"]]
    return [name for name in names if name.startswith("ProfilerStep")]


def notices(session: Any) -> list[tuple[str, str]]:
    rows = session.ledger.tables["notices"].to_pylist()
    return [(row["kind"], row["text"]) for row in rows if row["kind"].startswith("trace")]


def run(folder: Path, steps: int = 3, **given: Any) -> Any:
    model = nn.Linear(D, D)
    with audit(model, out=folder, trace=True, **given) as session:
        for _ in range(steps):
            with session.step():
                train(model)
    return session


def test_the_first_steps_are_traced_with_what_the_job_is(tmp_path: Path) -> None:
    session = run(tmp_path, 3, trace_steps=2)
    assert steps_in(tmp_path) == ["ProfilerStep#0", "ProfilerStep#1"]
    document = trace_of(tmp_path)
    assert document["distributedInfo"]["rank"] == 0
    assert document["distributedInfo"]["world_size"] == 1
    assert document["torch_version"] == torch.__version__
    assert "traceName" not in document
    operators = [event for event in document["traceEvents"] if event["name"] == "aten::addmm"]
    # Once as the caller's, and inside it once as the call that capture passes on; in two steps.
    assert len(operators) == 4
    assert operators[0]["args"]["Input Dims"][1] == [2, D]
    assert notices(session) == []
    assert len(session.ledger.tables["steps"]) == 3


def test_a_context_without_steps_is_one_traced_step(tmp_path: Path) -> None:
    model = nn.Linear(D, D)
    with audit(model, out=tmp_path, trace=True):
        train(model)
    assert steps_in(tmp_path) == ["ProfilerStep#0"]


def test_what_ran_before_the_first_step_is_not_in_the_trace(tmp_path: Path) -> None:
    model = nn.Linear(D, D)
    with audit(model, out=tmp_path, trace=True) as session:
        torch.ones(3).exp()
        with session.step():
            train(model)
    assert steps_in(tmp_path) == ["ProfilerStep#0"]
    assert not [event for event in trace_of(tmp_path)["traceEvents"] if event["name"] == "aten::exp"]


def test_a_step_that_fails_is_not_traced_but_the_next_is(tmp_path: Path) -> None:
    model = nn.Linear(D, D)
    with audit(model, out=tmp_path, trace=True, trace_steps=1) as session:
        with pytest.raises(KeyError), session.step():
            raise KeyError
        with session.step():
            train(model)
    assert steps_in(tmp_path) == ["ProfilerStep#1"]


@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle:UserWarning")
def test_the_users_own_profiler_goes_first(tmp_path: Path) -> None:
    model = nn.Linear(D, D)
    with audit(model, out=tmp_path, trace=True) as session:
        with torch.profiler.profile() as own, session.step():
            train(model)
    assert [event for event in own.events() if event.name == "aten::addmm"]
    assert not (tmp_path / "trace.rank00000.json.gz").exists()
    ((kind, text),) = notices(session)
    assert kind == "trace-missing"
    assert text == "rank 0: another profiler ran, these steps are not traced: 0"
    assert len(session.ledger.tables["steps"]) == 1


def test_a_profiler_that_begins_in_a_traced_step_takes_only_that_one(tmp_path: Path) -> None:
    model = nn.Linear(D, D)
    with audit(model, out=tmp_path, trace=True) as session:
        with session.step():
            train(model)
        with session.step(), torch.profiler.profile() as own:
            train(model)
    assert [event for event in own.events() if event.name == "aten::addmm"]
    assert steps_in(tmp_path) == ["ProfilerStep#0"]
    assert "these steps are not traced: 1" in notices(session)[0][1]


def test_an_old_trace_does_not_outlive_its_run(tmp_path: Path) -> None:
    run(tmp_path, 1)
    with audit(out=tmp_path):
        pass
    assert not (tmp_path / "trace.rank00000.json.gz").exists()


def test_a_trace_that_cannot_be_read_back_costs_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> bytes:
        return b"{}"

    monkeypatch.setattr(tracing, "_merged", broken)
    session = run(tmp_path, 1)
    ((kind, text),) = notices(session)
    assert kind == "trace-missing"
    assert "\n" not in text
    assert "cannot be used (TraceError" in text
    assert len(session.ledger.tables["steps"]) == 1
    assert read_run(tmp_path).tables["notices"].to_pylist()[-1]["text"] == text


def test_a_trace_that_cannot_be_written_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "trace_path", lambda folder, rank: folder / "missing" / "x.json.gz")
    session = run(tmp_path, 1)
    assert [kind for kind, _ in notices(session)] == ["trace-missing"]
    assert not [path for path in tmp_path.rglob("*") if ".part" in path.name]


def test_fewer_than_one_step_cannot_be_traced() -> None:
    with pytest.raises(UsageError, match="trace_steps is 0"):
        audit(trace=True, trace_steps=0)


def test_a_step_too_long_to_be_traced_is_recorded_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MOST_OPERATORS", 20)
    model = nn.Linear(D, D)
    with audit(model, out=tmp_path, trace=True) as session:
        for _ in range(10):
            train(model)
        assert session._capture.recorder.recording.spans.running
        assert not session._capture.recorder.recording.tracing
    ((kind, text),) = notices(session)
    assert kind == "trace-missing"
    assert "operators without session.step(), these steps are not traced: 0" in text
    assert not (tmp_path / "trace.rank00000.json.gz").exists()
    assert len(session.ledger.tables["steps"]) == 1
