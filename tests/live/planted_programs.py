"""Programs whose parts are planted: each times its own operators, sleeps and messages, step by step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.profiler import audit
from shardtoll.profiler.live.session.schedule import Level
from shardtoll.profiler.live.times.awake import Awake, between

STEPS: Final = 24
LAYERS: Final = 50
PARTS: Final = ("compute_ns", "exposed_comm_ns", "idle_ns")


class Planted:
    """What one rank did, by kind and step, as the program itself timed it."""

    def __init__(self) -> None:
        self.took: dict[str, list[int]] = defaultdict(list)
        self.work: list[tuple[str, int]] = []
        """What each step computed: equal entries are equal work."""
        self.matrix = torch.full((384, 384), 0.5)
        self.message = torch.ones(64)
        self.net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(LAYERS)))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, foreach=False)
        self.batch = torch.ones(4, 8)

    def timed(self, what: str, work: Callable[[], object]) -> None:
        begun_ns = time.perf_counter_ns()
        work()
        self.took[what].append(time.perf_counter_ns() - begun_ns)

    def large(self, count: int) -> None:
        for _ in range(count):
            torch.mm(self.matrix, self.matrix)

    def tiny(self) -> None:
        """Some thousand operators of about a microsecond."""
        self.net(self.batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, kind: str, number: int) -> None:
        """Compute, sleep, and meet the other rank, which comes 20 ms later than this one or earlier."""
        rank, world = dist.get_rank(), dist.get_world_size()
        count, sleep_s = 30, 0.02
        if kind == "uneven":
            count, sleep_s = (10, 30, 60, 25)[number * number % 7 % 4], (0.005, 0.03, 0.015)[number % 3]
        if kind == "tiny":
            self.timed("compute_ns", self.tiny)
        else:
            self.timed("compute_ns", lambda: self.large(count))
        self.timed("idle_ns", lambda: time.sleep(sleep_s + 0.02 * (rank == 1)))
        self.work.append((kind, count))
        if world > 1 and kind == "tiny":
            # To ask for it is Python, half a millisecond after a sleep: as much as there is to wait for.
            asked = dist.all_reduce(self.message, async_op=True)
            self.timed("exposed_comm_ns", asked.wait)
        elif world > 1:
            self.timed("exposed_comm_ns", lambda: dist.all_reduce(self.message))


def planted(kind: str, level: Level) -> dict[str, Any]:
    """Run it without an audit, then with one; each rank returns what was planted and what its rows say."""
    torch.set_num_threads(1)
    program = Planted()
    for number in range(4):
        program.step(kind, number)
    bare = []
    for number in range(STEPS):
        begun_ns = time.perf_counter_ns()
        program.step(kind, number)
        bare.append(time.perf_counter_ns() - begun_ns)
    program.took.clear()
    program.work.clear()
    steps = []
    thread = Awake()
    before = thread.now()
    with audit(level=level) as session:
        for number in range(STEPS):
            with session.step():
                begun_ns = time.perf_counter_ns()
                program.step(kind, number)
                steps.append(time.perf_counter_ns() - begun_ns)
    spent = between(before, thread.now())
    thread.close()
    report = session.report()
    rows = None
    if report is not None:
        columns = ["step", "rank", "level", "duration_ns", *PARTS]
        columns += ["exposed_copy_ns", "unattributed_ns", "capture_ns", "parts_error_ns"]
        rows = report.tables["steps"].select(columns).to_pylist()
    delayed_ns = 0 if spent is None else spent.delayed_ns
    return {
        "bare": bare,
        "steps": steps,
        "took": dict(program.took),
        "rows": rows,
        "delayed": delayed_ns / sum(steps),
        "work": program.work,
    }
