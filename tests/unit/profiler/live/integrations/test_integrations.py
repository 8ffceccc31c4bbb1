"""Adapters without their libraries: what a user is told, and what all of them share."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shardtoll.ledger import UsageError
from shardtoll.profiler import audit
from shardtoll.profiler.live.integrations.running import AuditOptions, RunningAudit
from shardtoll.profiler.live.session.session import active_session

HERE = "shardtoll.profiler.live.integrations"


@pytest.mark.parametrize(
    ("adapter", "libraries", "told"),
    [
        ("lightning", ["lightning", "pytorch_lightning"], ("Lightning", "pip install lightning")),
        ("accelerate", ["accelerate"], ("Accelerate", "pip install accelerate")),
        ("trainer", ["transformers"], ("transformers", "pip install transformers accelerate")),
    ],
)
def test_a_missing_library_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, adapter: str, libraries: list[str], told: tuple[str, str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in libraries]:
        monkeypatch.delitem(sys.modules, name)
    for library in libraries:
        monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"{HERE}.{adapter}", raising=False)
    with pytest.raises(UsageError) as caught:
        importlib.import_module(f"{HERE}.{adapter}")
    assert caught.value.message.startswith(f"{told[0]} cannot be imported (")
    assert libraries[0] in caught.value.message
    assert caught.value.hint == told[1]
    assert "\n" not in str(caught.value)


def test_options_are_those_of_audit() -> None:
    parameters = inspect.signature(audit).parameters
    assert AuditOptions.__annotations__.keys() == parameters.keys() - {"model", "out"}


def test_one_run_gives_a_report_of_its_finished_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, running = nn.Linear(2, 2), RunningAudit(tmp_path / "run", True, {"level": "survey"})
    running.open(model)
    for finished in (True, True, False):
        running.begin_step()
        running.begin_step()  # a further batch of the same step
        model(torch.ones(1, 2))
        running.end_step(finished=finished)
    assert running.report is None
    running.close()
    assert running.report is not None
    assert sorted(running.report.steps["step"]) == [0, 1]
    assert "1 of 1 rank seen" in capsys.readouterr().out
    assert active_session() is None


def test_without_a_session_nothing_happens() -> None:
    running = RunningAudit(None, True, {})
    running.begin_step()
    running.end_step()
    running.close()
    assert not running.in_step
    assert running.report is None


def test_a_run_that_was_left_open_makes_room_for_the_next() -> None:
    model, running = nn.Linear(2, 2), RunningAudit(None, False, {"level": "survey"})
    for _ in range(2):
        running.open(model)
        running.begin_step()
    assert running.in_step
    running.close(RuntimeError("no more"))
    assert not running.in_step
    assert running.report is not None
    assert list(running.report.steps["step"]) == []
    assert active_session() is None


def test_an_open_session_of_the_users_own_is_left_alone() -> None:
    running = RunningAudit(None, False, {})
    with audit() as session:
        with pytest.raises(UsageError, match="open already"):
            running.open(None)
        running.close()
        assert active_session() is session


def test_wrong_options_are_told_when_training_begins() -> None:
    options: dict[str, Any] = {"trace": True, "trace_steps": 0}
    with pytest.raises(UsageError, match="trace_steps is 0"):
        RunningAudit(None, False, options).open(None)
