"""A signal handler that raises: the program gets its exception, and the capture goes on."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest

from shardtoll.profiler.live.session.signals import Deferred, raised_by_handler
from tests.live.launch import ROOT, free_port

pytestmark = pytest.mark.live

_JOB = """
import json, os, random, signal, sys
import torch, torch.distributed as dist
from torch import nn
from shardtoll.profiler import audit
level, port = sys.argv[1:]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo")
model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])
chance = random.Random(5)
class Late(Exception): pass
def handler(number, frame): raise Late
signal.signal(signal.SIGALRM, handler)
def train():
    for _ in range(3):
        model(torch.ones(4, 16)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
session = audit(model, level=level, survey_every=5).open()
done, caught = [], 0
def timed(number):
    global caught
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0005, 0.03))
        with session.step():
            train()
        done.append(number)
    except Late:
        caught += 1
    finally:
        while signal.getitimer(signal.ITIMER_REAL)[0]:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Late:
                caught += 1
for _ in range(60):
    timed(session._steps_begun)
for _ in range(5):
    done.append(session._steps_begun)
    with session.step():
        train()
assert signal.getsignal(signal.SIGALRM) is handler
session.close()
tables = session.ledger.tables
print(json.dumps({
    "done": done, "caught": caught, "steps": sorted(set(tables["steps"].column("step").to_pylist())),
    "notices": sorted(set(tables["notices"].column("kind").to_pylist())),
}))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("level", ["schedule", "watch"])
def test_no_handler_ends_the_capture_and_no_finished_step_is_lost(level: str) -> None:
    command = [sys.executable, "-c", _JOB, level, str(free_port())]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=True)
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert seen["caught"] > 0, "no signal came in time"
    assert "capture-stopped" not in seen["notices"]
    assert set(seen["done"]) <= set(seen["steps"])


def _raised(handler: object) -> bool:
    import signal

    before = signal.signal(signal.SIGUSR1, handler)  # type: ignore[arg-type]
    try:
        signal.raise_signal(signal.SIGUSR1)
    except ValueError as error:
        return raised_by_handler(error)
    finally:
        signal.signal(signal.SIGUSR1, before)
    raise AssertionError("it did not raise")


class _Handlers:
    def method(self, number: int, frame: object) -> None:
        raise ValueError(number)

    def __call__(self, *given: object) -> None:
        raise ValueError(given[0])


def test_exceptions_of_handlers_are_told_from_failures() -> None:
    def plain(number: int, frame: object) -> None:
        raise ValueError(number)

    def forgetful(number: int, frame: object) -> None:
        del frame
        raise ValueError(number)

    def more(extra: int, number: int, frame: object) -> None:
        raise ValueError(extra)

    handlers = (plain, forgetful, _Handlers().method, _Handlers(), functools.partial(more, 1))
    assert [_raised(handler) for handler in handlers] == [True] * 5
    with pytest.raises(ValueError, match="no handler") as caught:
        plain_function("no handler", None)
    assert not raised_by_handler(caught.value)


def plain_function(text: str, frame: object) -> None:
    """Raises as a handler does, but is none."""
    raise ValueError(text)


def test_signals_wait_until_the_work_is_done() -> None:
    import signal

    order: list[str] = []

    def handler(number: int, frame: object) -> None:
        order.append("handled")
        raise ValueError(number)

    before = signal.signal(signal.SIGUSR1, handler)

    def work() -> None:
        with Deferred():
            signal.raise_signal(signal.SIGUSR1)
            with Deferred():
                order.append("worked")

    try:
        with pytest.raises(ValueError, match=str(int(signal.SIGUSR1))) as caught:
            work()
        assert raised_by_handler(caught.value)
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert order == ["worked", "handled"]


def test_every_handler_runs_though_the_first_raises() -> None:
    import signal

    ran: list[int] = []

    def handler(number: int, frame: object) -> None:
        ran.append(number)
        raise ValueError(number)

    def work() -> None:
        with Deferred():
            for number in numbers:
                signal.raise_signal(number)

    numbers = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        with pytest.raises(ValueError, match=f"^{int(signal.SIGUSR1)}$") as caught:
            work()
        assert raised_by_handler(caught.value)
    finally:
        for number, old in before.items():
            signal.signal(number, old)
    assert ran == numbers
