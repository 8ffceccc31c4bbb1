"""Ways in which a session ends, is misused or shares its process, each followed by a look at what is left."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

from shardtoll.ledger import UsageError
from tests import leftovers
from tests.live.perturbation_programs import audited, digest
from tests.live.programs import BATCH, D, blocks


def train(model: torch.nn.Module, fail: Callable[[], Any] | None = None) -> str:
    """One step with a reduction of each gradient, over before the next begins; `fail` runs in mid-step."""
    torch.manual_seed(3)
    model.zero_grad()
    loss = model(torch.randn(BATCH, D)).square().mean()
    loss.backward()
    if fail is not None:
        fail()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return digest(loss, *[parameter.grad for parameter in model.parameters()])


class Raising(torch.autograd.Function):
    """Raises in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Pass the input on."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Raise what a user's own function might."""
        raise ArithmeticError("planted in backward")


def _steps_of(session: Any) -> list[int] | None:
    if session.ledger is None:
        return None
    table = session.ledger.tables["steps"].to_pylist()
    return sorted({row["step"] for row in table if row["rank"] == 0})


def _ended_by(level: str, fail: Callable[[], Any], caught: type[BaseException]) -> dict[str, Any]:
    """Two good steps, then one in which `fail` runs, outside of which `caught` arrives."""
    model, arrived = blocks(), ""
    session = audited(model, level)
    try:
        with session:
            for _ in range(2):
                with session.step():
                    train(model)
            with session.step():
                train(model, fail)
    except caught as error:
        arrived = type(error).__name__
    return {"arrived": arrived, "steps": _steps_of(session)}


def _in_forward() -> None:
    torch.mm(torch.ones(2, 3), torch.ones(2, 3))


def _in_backward() -> None:
    x = torch.ones(3, requires_grad=True)
    Raising.apply(x * 2).sum().backward()


def _in_optimizer() -> None:
    class Broken(torch.optim.SGD):
        def step(self, *_: Any) -> None:
            raise ArithmeticError("planted in optimizer")

    Broken(blocks().parameters(), lr=0.1).step()


def _interrupted() -> None:
    signal.raise_signal(signal.SIGINT)


def interrupted_while_closing(level: str) -> dict[str, Any]:
    """Rank 0 is interrupted while it waits for rank 1's records."""
    model, arrived = blocks(), ""
    session = audited(model, level)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with session:
            with session.step():
                train(model)
            if dist.get_rank() == 0:
                signal.setitimer(signal.ITIMER_REAL, 0.3)
            else:
                time.sleep(1.0)
    except KeyboardInterrupt:
        arrived = "KeyboardInterrupt"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    folder = session._kept.folder
    seen = {"arrived": arrived, "folder is gone": not folder.exists()}
    if session.ledger is not None:
        notices = session.ledger.tables["notices"].column("kind").to_pylist()
        seen |= {"steps": _steps_of(session), "told": "gather-incomplete" in notices}
    return seen


def nested(level: str) -> dict[str, Any]:
    """A second session inside the first: refused, and the first goes on."""
    model, told = blocks(), ""
    with audited(model, level) as outer:
        with outer.step():
            train(model)
            try:
                with audited(model, level):
                    pass
            except UsageError as error:
                told = str(error)
        with outer.step():
            train(model)
    return {"told": told, "steps": _steps_of(outer)}


def repeated(level: str) -> dict[str, Any]:
    """Twenty sessions: what grows with them."""
    model = blocks()
    folders: list[Path] = []

    def one() -> None:
        with audited(model, level) as session, session.step():
            folders.append(session._kept.folder)
            train(model)

    def size() -> dict[str, int]:
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "folders": sum(folder.exists() for folder in folders),
        }

    for _ in range(3):
        one()
    dist.barrier()
    before = size()
    for _ in range(20):
        one()
    dist.barrier()
    after = size()
    return {name: after[name] - before[name] for name in before}


def suspended(level: str) -> dict[str, Any]:
    """A generator that holds a session and is let go before its end."""
    model = blocks()
    sessions: list[Any] = []

    def steps() -> Iterator[int]:
        with audited(model, level) as session:
            sessions.append(session)
            for number in range(5):
                with session.step():
                    train(model)
                yield number

    running = steps()
    next(running)
    next(running)
    running.close()
    return {"steps": _steps_of(sessions[0])}


def other_thread(level: str) -> dict[str, Any]:
    """The whole audited training on a thread of its own."""
    model, found = blocks(), []

    def work() -> None:
        with audited(model, level) as session:
            for _ in range(2):
                with session.step():
                    bits.append(train(model))
        found.append(_steps_of(session))

    bits: list[str] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return {"steps": found[0], "same": set(bits) == {train(model)}}


def beside_a_thread(level: str) -> dict[str, Any]:
    """A user's thread runs forward passes all the time."""
    model, other = blocks(), blocks()
    bare = train(model)
    x = torch.ones(BATCH, D)
    expected = digest(other(x))
    stop, wrong, passes = threading.Event(), [], []

    def forward() -> None:
        while not stop.is_set():
            passes.append(1)
            if digest(other(x)) != expected:
                wrong.append(1)

    thread = threading.Thread(target=forward)
    thread.start()
    with audited(model, level) as session:
        bits = set()
        for _ in range(3):
            with session.step():
                bits.add(train(model))
    stop.set()
    thread.join()
    return {
        "steps": _steps_of(session),
        "same": bits == {bare},
        "wrong": len(wrong),
        "passes": len(passes) > 0,
    }


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Eight rows; each says which process made it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index)) @ torch.eye(2)


def loading(level: str) -> dict[str, Any]:
    """Loader workers that are forked inside a session, in a step, and live on after it."""
    model = blocks()
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1, persistent_workers=True)
    with audited(model, level) as session:
        inside = []
        for _ in range(2):
            with session.step():
                inside.append(digest(*loader))
                train(model)
    after = digest(*loader)
    del loader
    return {"steps": _steps_of(session), "same": set(inside) == {after}}


class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode of the user's."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.matmuls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count matmuls."""
        self.matmuls += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def users_own(level: str) -> dict[str, Any]:
    """The user's own modes and profiler, around a session and inside its step."""
    model = blocks()
    with Count() as bare:
        train(model)
    with CommDebugMode() as plain:
        train(model)
    with Count() as around, audited(model, level) as first, first.step():
        train(model)
    with audited(model, level) as second, second.step():
        with Count() as inside:
            train(model)
    with CommDebugMode() as comm_around, audited(model, level) as third, third.step():
        train(model)
    with audited(model, level) as fourth, fourth.step(), CommDebugMode() as comm_inside:
        train(model)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with audited(model, level) as fifth, fifth.step():
        with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
            train(model)
    seen = {event.key: event.count for event in profiler.key_averages()}
    return {
        "matmuls": [bare.matmuls, around.matmuls, inside.matmuls],
        "collectives": [mode.get_total_counts() for mode in (plain, comm_around, comm_inside)],
        "profiled": seen.get("c10d::allreduce_", 0),
        "steps": [_steps_of(session) for session in (first, second, third, fourth, fifth)],
    }


def endings(level: str) -> dict[str, dict[str, Any]]:
    """Everything above, one after the other in one process, with a look at what each leaves."""
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "forward": lambda: _ended_by(level, _in_forward, RuntimeError),
        "backward": lambda: _ended_by(level, _in_backward, ArithmeticError),
        "optimizer": lambda: _ended_by(level, _in_optimizer, ArithmeticError),
        "interrupt": lambda: _ended_by(level, _interrupted, KeyboardInterrupt),
        "exit": lambda: _ended_by(level, sys.exit, SystemExit),
        "closing": lambda: interrupted_while_closing(level),
        "nested": lambda: nested(level),
        "repeated": lambda: repeated(level),
        "suspended": lambda: suspended(level),
        "other thread": lambda: other_thread(level),
        "beside a thread": lambda: beside_a_thread(level),
        "loading": lambda: loading(level),
        "user's own": lambda: users_own(level),
    }
    found = {}
    for name, case in cases.items():
        try:
            with leftovers.none_expected():
                found[name] = case()
        except AssertionError as error:
            found[name] = {"failed": str(error)}
        dist.barrier()
    return found


def gone_in_session(out: str, level: str) -> dict[str, Any] | None:
    """Rank 1 ends its process between two steps, with the session open."""
    model = blocks()
    began = time.monotonic()
    session = audited(model, level, out=out)
    with contextlib.suppress(RuntimeError), session:
        for number in range(3):
            with session.step():
                train(model)
            if number == 1 and dist.get_rank() == 1:
                os._exit(0)
    return {"left_s": time.monotonic() - began, "steps": _steps_of(session)}
