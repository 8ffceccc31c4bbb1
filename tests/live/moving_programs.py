"""Programs that do something else in every step: what a watched step says must be what a survey would say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import audit

STEPS = 12
SAID = ("op", "message_bytes", "wire_bytes", "phase", "module", "parameter", "source", "caused_by_op", "seq")
Program = tuple[nn.Module | None, Callable[[int], None]]


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8, bias=False)
        self.b = nn.Linear(16, 8, bias=False)


def two_models() -> Program:
    """Two models under DDP take turns, one bucket each: counts alone do not tell them apart."""
    pair = nn.ModuleDict({"d": nn.Linear(8, 8, bias=False), "g": nn.Linear(32, 32, bias=False)})
    wrapped = {name: DistributedDataParallel(module) for name, module in pair.items()}

    def step(number: int) -> None:
        name, width = ("d", 8) if number % 3 else ("g", 32)
        wrapped[name](torch.ones(4, width)).sum().backward()

    return pair, step


def wrapped_anew() -> Program:
    """Another model is wrapped in DDP in mid-run."""
    net = _Net()
    held = {"now": DistributedDataParallel(net.a)}

    def step(number: int) -> None:
        if number == 5:
            held["now"] = DistributedDataParallel(net.b)
        held["now"](torch.ones(4, 8 if number < 5 else 16)).sum().backward()

    return net, step


def reduced_in_a_loop() -> Program:
    """Gradients are reduced by hand, in another order each time, and not all of them."""
    net = _Net()

    def step(number: int) -> None:
        (net.a(torch.ones(2, 8)).sum() + net.b(torch.ones(2, 16)).sum()).backward()
        parameters = list(net.parameters())
        chosen = parameters if number % 2 else parameters[::-1]
        for parameter in chosen[: 1 + number % 3]:
            dist.all_reduce(parameter.grad)
        net.zero_grad()

    return net, step


def hooked() -> Program:
    """A hook on each parameter reduces its gradient; which parameters take part changes."""
    net = _Net()
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))

    def step(number: int) -> None:
        loss = net.a(torch.ones(2, 8)).sum() if number % 3 else net.b(torch.ones(2, 16)).sum()
        loss.backward()
        net.zero_grad()

    return net, step


class _Reducing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x


def from_two_lines() -> Program:
    """One module is called from two lines."""
    reducing = _Reducing()

    def step(number: int) -> None:
        if number % 3:
            reducing(torch.ones(8))
        else:
            reducing(torch.ones(8))

    return reducing, step


def uneven() -> Program:
    """What goes to whom changes, and how much of it stays here, but not the sum."""

    def step(number: int) -> None:
        mine = 1 + number % 7
        own = dist.get_rank()
        sent = [mine, 8 - mine] if own == 0 else [8 - mine, mine]
        received = [mine, 8 - mine]
        out = torch.empty(sum(received), 4)
        if own == 1:
            received = [8 - mine, mine]
        dist.all_to_all_single(out, torch.ones(8, 4), received, sent)

    return None, step


def awaited_later() -> Program:
    """What one step issues the next one waits for."""
    held: list[Any] = []

    def step(number: int) -> None:
        dist.all_reduce(torch.ones(8))
        for work in held:
            work.wait()
        held[:] = [dist.all_reduce(torch.ones(1 << 20), async_op=True)]

    return None, step


def a_group_made_anew() -> Program:
    """Each step makes a group of its own, and destroys it."""

    def step(number: int) -> None:
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(4), group=group)
        dist.destroy_process_group(group)

    return None, step


PROGRAMS = {
    made.__name__: made
    for made in (
        two_models,
        wrapped_anew,
        reduced_in_a_loop,
        hooked,
        from_two_lines,
        uneven,
        awaited_later,
        a_group_made_anew,
    )
}


def both_levels() -> dict[str, Any]:
    """Per program and level, per step: what its rows say, whether it was surveyed, counts that are off."""
    found: dict[str, Any] = {}
    for name, make in PROGRAMS.items():
        for level in ("survey", "schedule"):
            torch.manual_seed(0)
            model, step = make()
            with audit(model, level=level) as session:
                for number in range(STEPS):
                    with session.step():
                        step(number)
            dist.barrier()
            if session.ledger is not None:
                found.setdefault(name, {})[level] = _told(session.ledger.tables)
    return found


def _told(tables: Any) -> dict[str, Any]:
    steps = [s for s in tables["steps"].to_pylist() if s["rank"] == 0]
    rows = [c for c in tables["collectives"].to_pylist() if c["rank"] == 0]
    first = min((c["seq"] for c in rows if c["seq"] is not None), default=0)
    for row in rows:
        row["seq"] = None if row["seq"] is None else row["seq"] - first
    counts = [c for c in tables["counts"].to_pylist() if c["rank"] == 0]
    return {
        "levels": [s["level"] for s in steps],
        "said": [[[c[key] for key in SAID] for c in rows if c["step"] == s["step"]] for s in steps],
        "off": sorted(
            {c["step"] for c in counts if c["issued"] is not None and c["issued"] != c["recorded"]}
        ),
        "longer": [
            [c["exposed_ns"], c["duration_ns"]]
            for c in rows
            if c["duration_ns"] is not None and c["exposed_ns"] > c["duration_ns"] + 20_000_000
        ],
    }
