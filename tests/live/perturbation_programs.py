"""The same training bare and audited at each level, in one process: what each run did, bit by bit.

A trial makes its program anew from the same seeds, warms it up outside of any session, and then does the
same steps inside a session or without one. What it tells must be the same either way.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from types import FrameType
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardtoll.profiler import audit
from shardtoll.profiler.live.cause.groups import live_groups
from tests.live.programs import BATCH, MLP, D, Implicit, make

LEVELS = ("survey", "watch", "schedule")
"""Every level of `audit`."""
STEPS: Final = 4
"""Enough for a schedule to survey two and to watch two."""
_THREAD: Final = "training thread"
Step = Callable[[], torch.Tensor]


def audited(model: nn.Module | None, level: str, **options: Any) -> Any:
    """Return a session at that level; where audit knows none, everything is surveyed."""
    if "level" in inspect.signature(audit).parameters:
        options["level"] = level
    return audit(model, **options)


def _made(kind: str) -> tuple[nn.Module, Step]:
    model, batch = make(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.dropout(batch(), 0.5, train=True)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def _implicit() -> tuple[nn.Module, Step]:
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = Implicit(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        x = distribute_tensor(torch.randn(BATCH, D), mesh, [Shard(0)])
        loss: Any = model(x).square().sum().full_tensor()
        loss.backward()
        optimizer.step()
        return torch.as_tensor(loss)

    return model, step


class CountingCompiler:
    """The compiler that torch uses by default; counts how often what it made runs."""

    def __init__(self) -> None:
        self.compiled = 0
        self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """Compile a graph; return what runs it."""
        from torch._inductor.compile_fx import compile_fx

        self.compiled += 1
        made = compile_fx(graph, inputs)

        def run(*args: Any) -> Any:
            self.runs += 1
            return made(*args)

        return run


def _compiled(compiler: CountingCompiler) -> tuple[nn.Module, Step]:
    model, batch = make("tp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    blocks = [torch.compile(block, backend=compiler) for block in model.children()]

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        # Not the leaf itself: whether its gradient is taken over or copied hangs on when gloo lets go of it.
        x = torch.dropout(batch(), 0.5, train=True)
        for block in blocks:
            x = block(x)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def _pipeline() -> tuple[nn.Module, Step]:
    """Two stages, two microbatches, activations and gradients sent from rank to rank by hand."""
    rank = dist.get_rank()
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for _ in range(2):
            if rank == 0:
                out = model(torch.randn(BATCH, D))
                gradient = torch.empty_like(out)
                ops = [dist.P2POp(dist.isend, out.detach(), 1), dist.P2POp(dist.irecv, gradient, 1)]
                for work in dist.batch_isend_irecv(ops):
                    work.wait()
                out.backward(gradient)
            else:
                x = torch.empty(BATCH, D)
                dist.recv(x, 0)
                x.requires_grad_()
                loss = model(x).square().mean()
                loss.backward()
                assert x.grad is not None
                dist.send(x.grad, 0)
                total = total + loss
        optimizer.step()
        return total

    return model, step


@cache
def _two_d_mesh() -> Any:
    """Made once: DTensor's caches take the groups of an equal mesh of before."""
    return init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))


def _two_d() -> tuple[nn.Module, Step]:
    """FSDP2 over tensor parallel, gradients clipped."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = _two_d_mesh()
    model = nn.Sequential(MLP(bias=True), MLP(bias=True))
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.dropout(torch.randn(BATCH, D), 0.5, train=True)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss

    return model, step


KINDS: Final = ("ddp", "fsdp2", "tp", "implicit", "compiled", "compiled in the first step", "pipeline")


def _program(kind: str, compiler: CountingCompiler) -> tuple[nn.Module, Step]:
    if kind == "implicit":
        return _implicit()
    if kind.startswith("compiled"):
        return _compiled(compiler)
    made = {"pipeline": _pipeline, "two_d": _two_d}.get(kind)
    return _made(kind) if made is None else made()


def digest(*tensors: Any) -> str:
    """One text for the bits of tensors, those of a DTensor's own shard."""
    found = hashlib.sha256()
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        found.update(b"none" if local is None else local.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def sequence_numbers() -> dict[str, int]:
    """How many collectives each group has issued, by its ranks and name."""
    return {str(group.group_name): group._get_sequence_number_for_group() for group in live_groups()}


def _growth(before: dict[str, int]) -> list[int]:
    """By how much each group that stood before grew."""
    now = sequence_numbers()
    return [now[name] - before[name] for name in before]


def _seed() -> None:
    torch.manual_seed(7 + dist.get_rank())
    random.seed(7)
    np.random.seed(7)


def _random_states() -> list[str]:
    return [
        digest(torch.get_rng_state()),
        hashlib.sha256(repr(random.getstate()).encode()).hexdigest(),
        hashlib.sha256(repr(np.random.get_state()).encode()).hexdigest(),
    ]


def trial(kind: str, level: str | None, **options: Any) -> dict[str, Any]:
    """Do the steps, at `level` inside a session; return all there is to compare, and how it was compiled.

    `options` are more of `audit`'s.
    """
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    _seed()
    compiler = CountingCompiler()
    model, step = _program(kind, compiler)
    if kind != "compiled in the first step":
        step()
    _seed()
    counters.clear()
    compiled_before, runs_before = compiler.compiled, compiler.runs
    session: Any = None
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    opened: AbstractContextManager[Any] = contextlib.nullcontext()
    if level is not None:
        opened = session = audited(model, level, **options)
        around = session.step
    losses, growth, randoms, runs = [], [], [], []
    before = sequence_numbers()
    with opened:
        for _ in range(STEPS):
            with around():
                losses.append(digest(step()))
                growth.append(_growth(before))
            randoms.append(_random_states())
            runs.append(compiler.runs - runs_before)
    growth.append(_growth(before))
    after = digest(step())
    runs.append(compiler.runs - runs_before)
    found = {
        "losses": [*losses, after],
        "gradients": digest(*[parameter.grad for parameter in model.parameters()]),
        "parameters": digest(*model.parameters()),
        "random": randoms,
        "growth": growth,
        "runs of compiled code": runs,
        "compiled anew": compiler.compiled - compiled_before,
        "graphs": dict(counters["stats"]),
        "graph breaks": dict(counters["graph_break"]),
        "recompiled": dict(counters["recompiles"]),
    }
    if session is not None and session.ledger is not None:
        found["notices"] = [row["text"] for row in session.ledger.tables["notices"].to_pylist()]
        found["counts"] = [
            (row["issued"], row["recorded"]) for row in session.ledger.tables["counts"].to_pylist()
        ]
        found["values"] = Counter(row["kind"] for row in session.ledger.tables["values"].to_pylist())
    return found


_ADDED: Final = {
    "aten.clone.default",
    "aten.detach.default",
    "aten.permute.default",
    "aten.resolve_conj.default",
    "aten.resolve_neg.default",
    "aten.slice.Tensor",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.view.default",
    "aten.view.dtype",
}
"""What a survey may run beside the step's own operators on the CPU: fingerprints of values, and views."""


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Outermost, so that it sees what an audit's own mode passes on and what the audit itself runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.own: list[str] = []
        self.added: list[str] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code goes on undisturbed."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and note whose it was."""
        if any(issubclass(kind, (DTensor, AsyncCollectiveTensor)) for kind in types):
            return NotImplemented
        if not any(issubclass(kind, FakeTensor) for kind in types):
            is_added = str(func) in _ADDED and _is_captures(sys._getframe(1))
            (self.added if is_added else self.own).append(str(func))
        return func(*args, **(kwargs or {}))


def _is_captures(frame: FrameType | None) -> bool:
    """Whether the nearest frame outside torch is the capture's, and not one that passes something on."""
    while frame is not None and "/torch/" in frame.f_code.co_filename:
        frame = frame.f_back
    path = "" if frame is None else frame.f_code.co_filename
    passing = path.endswith(("/mode.py", "/drains.py")) or "/tests/" in path
    return "/profiler/live/" in path and not passing


def operators(kind: str, level: str | None, **options: Any) -> dict[str, list[str]]:
    """Return the operators of a run in order: the program's own, and what an audit added."""
    torch.compiler.reset()
    _seed()
    model, step = _program(kind, CountingCompiler())
    step()
    opened: Any = contextlib.nullcontext() if level is None else audited(model, level, **options)
    around = contextlib.nullcontext if level is None else opened.step
    seen = Operators()
    with seen, opened:
        for _ in range(STEPS):
            with around():
                step()
    return {"own": seen.own, "added": sorted(set(seen.added))}


def _profiled(kind: str, level: str | None) -> list[str]:
    _seed()
    model, step = _program(kind, CountingCompiler())
    step()
    opened: Any = contextlib.nullcontext() if level is None else audited(model, level)
    around = contextlib.nullcontext if level is None else opened.step
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True)
    with opened, around():
        profiler.start()
        with torch.profiler.record_function(_THREAD):
            step()
        profiler.stop()
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    (thread,) = {event.start_thread_id() for event in events if event.name() == _THREAD}
    return [event.name() for event in events if event.start_thread_id() == thread]


def everything() -> dict[str, Any]:
    """Every program bare and at each level: what came out, and which operators ran.

    And what torch's own profiler sees of a step on the training thread, bare twice and watched: a survey's
    mode shows there, with each operator below itself.
    """
    levels = [None, *LEVELS]
    watched = [level for level in LEVELS if level == "watch"]
    return {
        "trials": {kind: {str(level): trial(kind, level) for level in levels} for kind in KINDS},
        "operators": {
            kind: {str(level): operators(kind, level) for level in levels}
            for kind in KINDS
            if kind != "compiled in the first step"
        },
        "profiled": {
            kind: [_profiled(kind, level) for level in (None, None, *watched)]
            for kind in ("ddp", "tp", "pipeline")
        },
    }
