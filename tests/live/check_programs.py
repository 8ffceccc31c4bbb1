"""Programs whose values are checked: what each tensor held is found a second way, by hand."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers
from torch.utils.checkpoint import checkpoint

from shardtoll.profiler import audit
from shardtoll.profiler.live.session import checking
from shardtoll.profiler.live.values import values
from shardtoll.profiler.live.values.sketch import Signs, numbers_of
from tests.live import perturbation_programs
from tests.live.programs import BATCH, MLP, D, blocks

CHECKS: Final = ("gradients", "replicas", "data")
LEVELS: Final = perturbation_programs.LEVELS
Rows = dict[str, list[dict[str, Any]]]


def trials(kinds: list[str]) -> dict[str, Any]:
    """Every program bare, and at each level with all checks; and the operators it ran."""
    return {
        kind: {
            "bare": perturbation_programs.trial(kind, None),
            **{level: perturbation_programs.trial(kind, level, checks=CHECKS) for level in LEVELS},
            "operators": {
                str(level): perturbation_programs.operators(kind, level, **options)
                for level, options in ((None, {}), ("survey", {"checks": CHECKS}))
                if kind != "compiled in the first step"
            },
        }
        for kind in kinds
    }


def _rows(session: Any) -> Rows | None:
    ledger = session.ledger
    if ledger is None:
        return None
    return {
        name: ledger.tables[name].to_pylist()
        for name in ("values", "parameters", "notices", "steps", "groups")
        if name in ledger.tables
    }


def _whole(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def _told(tensor: torch.Tensor) -> list[float]:
    """What the whole tensor's numbers are: sum of squares and sketch."""
    return numbers_of(tensor, [0] * tensor.dim(), Signs(torch.device("cpu"))).tolist()[:9]


def sharded(kind: str) -> dict[str, Any]:
    """Gradients, norm and parameters of one step; the whole ones, gathered in a step of their own."""
    torch.manual_seed(0)
    model, optimizer = _sharded(kind)
    x = torch.randn(BATCH, D, generator=torch.Generator().manual_seed(5))
    true: dict[str, Any] = {}

    def backward() -> None:
        optimizer.zero_grad()
        (1e3 * model(x).square().sum()).backward()

    backward()
    true["normed"] = {name: _told(_whole(p.grad)) for name, p in model.named_parameters()}
    with audit(model, level="watch", checks=("gradients", "replicas")) as session, session.step():
        backward()
        norm: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    true["norm"] = float(_whole(norm))
    true["gradient"] = {name: _told(_whole(p.grad)) for name, p in model.named_parameters()}
    true["parameter"] = {name: _told(_whole(p)) for name, p in model.named_parameters()}
    return {"true": true, "rows": _rows(session), "shape": dict(_shapes(model))}


def _shapes(model: nn.Module) -> Iterator[tuple[str, str]]:
    for name, parameter in model.named_parameters():
        yield name, str(list(parameter.shape))


def _sharded(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    world = dist.get_world_size()
    model: nn.Module = nn.Sequential(MLP(bias=True), nn.Linear(D, 7))
    plan: Any = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if kind == "tp":
        mesh = init_device_mesh("cpu", (world,))
        parallelize_module(model[0], mesh, plan)  # type: ignore[index]
        parallelize_module(model[1], mesh, ColwiseParallel(use_local_output=False))  # type: ignore[index]
    elif kind == "two_d":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model[0], mesh["tp"], plan)  # type: ignore[index]
        parallelize_module(model[1], mesh["tp"], ColwiseParallel(use_local_output=False))  # type: ignore[index]
        fully_shard(model, mesh=mesh["dp"])
    elif kind == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("r", "s")))
    else:
        fully_shard(model)
    return model, torch.optim.SGD(model.parameters(), lr=1e-6)


class Late(nn.Module):
    """Parameters that DDP knows, was told to ignore, had frozen, and does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.known = nn.Linear(D, D)
        self.ignored = nn.Linear(D, D, bias=False)
        self.thawed = nn.Linear(D, D, bias=False).requires_grad_(False)
        self.frozen = nn.Parameter(torch.ones(D), requires_grad=False)
        self.tied = self.known
        self.register_buffer("steps", torch.zeros(3))
        self.late: nn.Module | None = None

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.thawed(self.ignored(self.known(x))) * self.frozen * scale
        return out if self.late is None else self.late(out)


def wrapped(outside: bool) -> dict[str, Any]:
    """DDP with parameters it does not reduce; `outside`: the session is given the module inside DDP."""
    torch.manual_seed(0)
    model = Late()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["ignored.weight"])
    ddp = DistributedDataParallel(model)
    model.late = nn.Linear(D, D, bias=False)
    model.thawed.requires_grad_(True)
    first = torch.optim.SGD([*model.known.parameters(), *model.ignored.parameters()], lr=0.1)
    second = torch.optim.AdamW(model.late.parameters(), lr=0.1)
    with audit(model if outside else ddp, level="survey", checks=CHECKS) as session:
        for _ in range(2):
            with session.step():
                for _ in range(2):
                    x = torch.randn(BATCH, D)
                    checkpoint(ddp, x, scale=torch.ones(1), use_reentrant=False).sum().backward()
                first.step()
                # Between the two optimizers the late layer's gradient changes: the second one's is meant.
                model.late.weight.grad *= 2  # type: ignore[operator]
                second.step()
                kept = float(model.late.weight.grad.double().square().sum())  # type: ignore[union-attr]
                first.zero_grad()
                second.zero_grad()
                model.thawed.weight.grad = None
    group = ddp.process_group
    return {"rows": _rows(session), "late": kept, "group": str(group.group_name)}


def flat(use_orig_params: bool) -> dict[str, Any]:
    """FSDP1: this rank's part of each gradient, and the squares of the whole from a run on one device."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    torch.manual_seed(0)
    model = nn.Sequential(MLP(bias=True), nn.Linear(D, 7))
    x = torch.randn(BATCH, D, generator=torch.Generator().manual_seed(5))
    (1e3 * model(x).square().sum()).backward()
    true = {name: _told(_whole(p.grad).reshape(-1)) for name, p in model.named_parameters()}
    norm = sum(numbers[0] for numbers in true.values())
    model.zero_grad()
    fsdp = FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({MLP}),
        use_orig_params=use_orig_params,
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.SGD(fsdp.parameters(), lr=0.0)
    with audit(fsdp, level="schedule", checks=("gradients",)) as session, session.step():
        (1e3 * fsdp(x).square().sum()).backward()
        fsdp.clip_grad_norm_(1e9)
        optimizer.step()
    return {"rows": _rows(session), "true": true, "norm": norm}


def untouched() -> list[Any]:
    """What a session without checks, and one with each, has put in place."""
    model = blocks()

    def seen() -> dict[str, Any]:
        return {
            "optimizer": len(optimizers._global_optimizer_pre_hooks),  # type: ignore[attr-defined]
            "model": len(model._forward_pre_hooks),
            "norm": _is_torchs(torch.nn.utils.get_total_norm),
            "inner": all(_is_torchs(getattr(torch.nn.utils.clip_grad, name, sum)) for name in _NORMS),
        }

    found = [seen()]
    for checks in ((), ("gradients",), ("replicas",), ("data",)):
        with audit(model, level="watch", checks=checks):
            found.append(seen())
    return [*found, seen()]


_NORMS: Final = ("_get_total_norm", "get_total_norm")


def _is_torchs(function: Any) -> bool:
    return function is sum or "/profiler/live/" not in function.__code__.co_filename


def _training(model: nn.Module) -> Callable[[], float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())

    def step() -> float:
        optimizer.zero_grad()
        loss = model(torch.randn(BATCH, D, generator=generator)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return float(loss.detach())

    return step


def broken(where: str) -> dict[str, Any]:
    """A check that fails in the midst of a step: losses with it and without, and what the session says."""

    def losses(session: Any) -> list[float]:
        torch.manual_seed(0)
        step = _training(DistributedDataParallel(blocks()) if session is None else session._model)
        found = []
        for _ in range(3):
            with contextlib.nullcontext() if session is None else session.step():
                found.append(step())
        return found

    bare = losses(None)
    torch.manual_seed(0)
    model = DistributedDataParallel(blocks())
    original = values.Values.take
    logging.getLogger("shardtoll").disabled = True

    def failing(self: Any, step: int, kind: str, *rest: Any, **options: Any) -> None:
        if kind == where and step == 1:
            raise ZeroDivisionError("planted")
        original(self, step, kind, *rest, **options)

    values.Values.take = failing  # type: ignore[method-assign]
    try:
        with audit(model, level="survey", checks=CHECKS) as session:
            checked = losses(session)
    finally:
        values.Values.take = original  # type: ignore[method-assign]
        logging.getLogger("shardtoll").disabled = False
    return {"bare": bare, "checked": checked, "rows": _rows(session)}


def raised() -> dict[str, Any]:
    """Steps that the user's own error ends half-way, between clip and optimizer; the next one is whole."""
    model = DistributedDataParallel(blocks())
    step = _training(model)

    def hook(*_: Any) -> None:
        raise ArithmeticError("the user's own")

    arrived = ""
    with audit(model, level="survey", checks=CHECKS) as session:
        with session.step():
            step()
        handle = optimizers.register_optimizer_step_pre_hook(hook)
        try:
            with session.step():
                step()
        except ArithmeticError as error:
            arrived = str(error)
        handle.remove()
        with session.step():
            step()
    return {"arrived": arrived, "rows": _rows(session), "hooks": len(model._forward_pre_hooks)}


def slow(level: str) -> dict[str, Any]:
    """Checks that take long: the step's capture time, and what it is made of."""
    model = DistributedDataParallel(blocks())
    step = _training(model)
    step()
    original = checking.unseen

    @contextlib.contextmanager
    def sleeping() -> Iterator[None]:
        time.sleep(0.05)
        with original():
            yield

    checking.unseen = sleeping
    try:
        with audit(model, level=level, checks=CHECKS, check_every=2) as session:  # type: ignore[arg-type]
            for _ in range(4):
                with session.step():
                    step()
    finally:
        checking.unseen = original
    return {"rows": _rows(session)}


def before_steps() -> dict[str, Any]:
    """What runs between steps is not looked at; without session.step() all is one step."""
    model = blocks()
    step = _training(model)
    with audit(model, level="watch", checks=CHECKS, check_every=2) as session:
        step()
        for _ in range(4):
            with session.step():
                step()
            step()
    with audit(model, level="survey", checks=CHECKS) as whole:
        step()
    return {"steps": _rows(session), "whole": _rows(whole)}
