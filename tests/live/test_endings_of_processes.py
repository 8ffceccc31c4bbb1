"""A process that ends, forks or opens sessions on two threads neither dies nor waits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardtoll.ledger.disk.run_reader import read_run
from tests.live import warm
from tests.live.launch import ROOT, free_port

pytestmark = pytest.mark.live

_JOB = """
import gc, os, sys, threading
import torch, torch.distributed as dist
from torch import nn
from shardtoll.profiler import audit
how, out = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
def train():
    model(torch.ones(2, 8)).sum().backward()
def steps(session, count):
    for _ in range(count):
        with session.step():
            train()
"""

_LEFT_OPEN = """
session = audit(model, out).open()
steps(session, 2)
if how == "in-a-step":
    session.begin_step(); train()
if how == "without-a-group":
    dist.destroy_process_group()
"""

_FORKED = """
import multiprocessing
def in_child():
    assert session.report() is None
def forked():
    if how == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=in_child)
        child.start(); child.join(30)
        return child.exitcode
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if how == "exit":
        sys.exit(0)
    if how == "raise":
        raise ValueError("of the child")
    nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
    session.end_step(); session.begin_step(); session.end_step(); session.close()
    in_child()
    os._exit(0)
mine = os.getpid()
try:
    with audit(model, out) as session:
        with session.step():
            train()
            assert forked() == 0
        steps(session, 1)
except (SystemExit, ValueError):
    # To end the interpreter of such a child hangs in torch's own threads, with an audit or without.
    assert os.getpid() != mine
    os._exit(0)
dist.destroy_process_group()
"""

_ON_RANK_0 = """
if rank == 0:
    with audit(model, out) as session:
        steps(session, 3)
else:
    for _ in range(3):
        train()
del model
gc.collect()
dist.destroy_process_group()
"""
# torch's own: a process that ends right after DDP's last collective aborts in one run of five while its model
# lives (also without an audit). The model is in a cycle, so that only a collection ends it: 0 of 125 runs.

_THREADS = """
import threading, torch
from torch import nn
from shardtoll.profiler import audit
model, told, both = nn.Linear(4, 4), [], threading.Barrier(2)
def work():
    both.wait()
    try:
        session = audit(model).open()
    except Exception as error:
        told.append(str(error))
        both.wait()
        return
    both.wait()
    model(torch.ones(2, 4)).sum().backward()
    session.close()
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(told) == 1 and told[0].startswith("an audit session is open already"), told
with audit(model) as session:
    model(torch.ones(2, 4)).sum().backward()
assert session.report() is not None
"""


FRESH = ("in-a-step", "exit")
"""Run by interpreters that start from nothing; the others' are forked, and end as whole ones do."""


def _run(text: str, how: str, out: Path, limit_s: float = 60.0) -> list[str]:
    """Run the program on two ranks; return what each wrote. Each must leave with 0 within the limit."""
    python = sys.executable if how in FRESH else warm.python()
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [python, "-c", _JOB + text, how, str(out)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=limit_s)[0] for rank in ranks]
    finally:
        for rank in ranks:
            # Its own group: children that it forked go with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return said


@pytest.mark.parametrize("how", ["between-steps", "in-a-step", "without-a-group"])
def test_a_session_never_closed_harms_no_exit_and_leaves_its_finished_steps(how: str, tmp_path: Path) -> None:
    for text in _run(_LEFT_OPEN, how, tmp_path / "run"):
        assert "ended without closing its audit; call session.close()" in text
    ledger = read_run(tmp_path / "run")
    assert sorted(ledger.tables["steps"].column("step").to_pylist()) == [0, 0, 1, 1]
    assert {notice["kind"] for notice in ledger.tables["notices"].to_pylist()} >= {"rank-incomplete"}


@pytest.mark.parametrize("how", ["exit", "raise", "multiprocessing", "trains-on"])
def test_a_forked_child_neither_writes_nor_waits_and_its_parent_records_on(how: str, tmp_path: Path) -> None:
    _run(_FORKED, how, tmp_path / "run")
    ledger = read_run(tmp_path / "run")
    assert sorted(ledger.tables["steps"].column("step").to_pylist()) == [0, 0, 1, 1]
    notices = {notice["kind"] for notice in ledger.tables["notices"].to_pylist()}
    assert not notices & {"rank-incomplete", "step-dropped", "capture-stopped"}


def test_a_session_on_rank_0_alone_holds_nobody_up(tmp_path: Path) -> None:
    said = _run(_ON_RANK_0, "", tmp_path / "run", limit_s=40.0)
    assert "no rank but 0 has opened a session" in said[0]
    assert set(read_run(tmp_path / "run").tables["steps"].column("rank").to_pylist()) == {0}


def test_of_two_threads_that_open_a_session_at_once_one_is_told(tmp_path: Path) -> None:
    subprocess.run([warm.python(), "-c", _THREADS], check=True, timeout=60, cwd=ROOT)
