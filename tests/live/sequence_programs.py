"""Programs whose steps are not all alike, or are disturbed, under the levels that watch."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.ledger import UsageError
from shardtoll.profiler import audit, check_gradients

KILLED_AFTER = 70
"""Quick steps, and a long one, until rank 1 kills itself."""


def _step(extra: bool) -> None:
    dist.all_reduce(torch.ones(8))
    if extra:
        dist.broadcast(torch.ones(4), 0)


def _told(session: Any, rank: int = 0) -> dict[str, Any]:
    tables = session.ledger.tables
    steps = [s for s in tables["steps"].to_pylist() if s["rank"] == rank]
    rows = [c for c in tables["collectives"].to_pylist() if c["rank"] == rank]
    counts = [c for c in tables["counts"].to_pylist() if c["issued"] != c["recorded"]]
    return {
        "steps": [s["step"] for s in steps],
        "levels": [s["level"] for s in steps],
        "ops": [[c["op"] for c in rows if c["step"] == s["step"]] for s in steps],
        "sources": [[c["source"] for c in rows if c["step"] == s["step"]] for s in steps],
        "between": [c["op"] for c in rows if c["step"] is None],
        "incomplete": counts,
        "times_missing": sum(c["duration_ns"] is None for c in rows if c["step"] is not None),
        "notices": [n["text"] for n in tables["notices"].to_pylist() if n["rank"] == rank],
    }


def _run(extra_in: Callable[[int], bool], steps: int, level: Any = "schedule") -> Any:
    with audit(level=level) as session:
        for number in range(steps):
            with session.step():
                _step(extra_in(number))
    return session


def _gradients_checked() -> Any:
    model, reference = nn.Linear(4, 4), nn.Linear(4, 4)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    whole = torch.arange(32.0).reshape(8, 4)
    mine = whole.chunk(2)[dist.get_rank()]
    with audit(model) as session:
        for number in range(5):
            with session.step():
                model.zero_grad()
                model(mine).square().mean().backward()
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= 2
                if number == 3:
                    check_gradients(model, reference, lambda module: module(whole).square().mean())
    return session


def _interrupted() -> Any:
    with audit() as session:
        for number in range(6):
            try:
                with session.step():
                    _step(False)
                    if number == 3:
                        raise KeyError("the user's own")
            except KeyError:
                pass
    return session


def _with_a_thread() -> Any:
    group = dist.new_group([0, 1])
    with audit() as session:
        for number in range(5):
            with session.step():
                _step(False)
                if number == 3:
                    thread = threading.Thread(target=lambda: dist.broadcast(torch.ones(4), 0, group=group))
                    thread.start()
                    thread.join()
    return session


def _profile() -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


def _users_profiler() -> Any:
    with audit() as session:
        for number in range(6):
            with session.step():
                # Always from one line: another would be another place, and surveyed again.
                with _profile() if number == 3 else contextlib.nullcontext() as theirs:
                    _step(False)
                if theirs is not None:
                    assert any("allreduce" in event.key for event in theirs.key_averages())
    return session


def _without_steps(level: Any) -> Any:
    with audit(level=level) as session:
        _step(True)
    return session


def _misused() -> list[list[str]]:
    session = audit()
    said: list[list[str]] = []

    def refused(call: Callable[[], object]) -> None:
        try:
            call()
        except UsageError as error:
            said.append([error.message, error.hint])

    refused(session.begin_step)
    refused(session.end_step)
    session.close()
    session.open()
    refused(session.open)
    refused(session.end_step)
    session.begin_step()
    refused(session.begin_step)
    session.close()
    session.close()
    refused(session.open)
    refused(session.begin_step)
    return said


def disturbed() -> dict[str, Any]:
    found: dict[str, Any] = {}
    programs: dict[str, Callable[[], Any]] = {
        "changes": lambda: _run(lambda step: step >= 5, 9),
        "alternates": lambda: _run(lambda step: step % 2 == 1, 12),
        "watch": lambda: _run(lambda step: step >= 3, 5, "watch"),
        "gradients": _gradients_checked,
        "interrupted": _interrupted,
        "thread": _with_a_thread,
        "profiler": _users_profiler,
        "no steps": lambda: _without_steps("schedule"),
        "no steps, watch": lambda: _without_steps("watch"),
    }
    for name, program in programs.items():
        session = program()
        dist.barrier()
        if session.ledger is not None:
            found[name] = _told(session)
    found["misused"] = _misused()
    return found


def killed(folder: str) -> dict[str, Any]:
    """Rank 1 dies without notice in the midst of watching."""
    with audit(out=folder, gather_limit_s=2) as session:
        for number in range(KILLED_AFTER + 5):
            with session.step():
                if number < KILLED_AFTER:
                    _step(False)
                elif number == KILLED_AFTER:
                    # A long step: its end is when rows are made at the latest.
                    time.sleep(0.4)
                elif dist.get_rank() == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                else:
                    time.sleep(0.01)
    return {} if session.ledger is None else _told(session, 1)
