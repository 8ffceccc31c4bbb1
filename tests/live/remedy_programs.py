"""Programs with a needless collective, and what changes if the finding's own code is put in its place.

Each case makes its names, does what is needless, and goes on. The code of the remedy is executed with the
same names instead of what is needless; results and gradients have to be the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.nn.functional import all_gather as differentiable_all_gather
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from shardtoll.analyzers.findings.needless.coalesced import coalesced
from shardtoll.profiler import audit
from tests.live.needless_programs import KINDS
from tests.live.told_kinds import report_of

ROWS, DIM = 16, 32

Names = dict[str, Any]


def _own() -> torch.Tensor:
    """Values that differ between ranks; of whole numbers, so that sums are exact in any order."""
    numbers = torch.Generator().manual_seed(7 + dist.get_rank())
    return torch.randint(-64, 64, (ROWS, DIM), generator=numbers).float()


def _part(whole: torch.Tensor, dim: int = 0) -> torch.Tensor:
    return whole.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def _gathered(x: torch.Tensor) -> torch.Tensor:
    whole = x.new_empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.detach().contiguous())
    return whole


def _summed(x: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    dist.all_reduce(x, op=op)
    return x


def _exchanged(x: torch.Tensor) -> torch.Tensor:
    back = torch.empty_like(x)
    dist.all_to_all_single(back, x.detach())
    return back


@dataclass(frozen=True)
class Case:
    """One needless collective and where its remedy's code stands."""

    says: str
    """Words of the finding's title."""
    bad: Callable[[Names], torch.Tensor]
    """Returns what the program goes on with."""
    good: Callable[[Names, Callable[[], None]], torch.Tensor]
    """The same, with the code executed by the second argument."""


def _executed(name: str) -> Callable[[Names, Callable[[], None]], torch.Tensor]:
    """Return what executes the code and goes on with what it calls so."""

    def good(names: Names, run: Callable[[], None]) -> torch.Tensor:
        run()
        made: torch.Tensor = names[name]
        return made

    return good


def _bad_twice(op: Any) -> Callable[[Names], torch.Tensor]:
    def bad(names: Names) -> torch.Tensor:
        return _summed(_summed(names["x"].detach().clone(), op), op)

    return bad


def _good_twice(names: Names, run: Callable[[], None]) -> torch.Tensor:
    """With a sum the code replaces the second reduction, else it is the first."""
    names["x"] = names["x"].detach().clone()
    if "x = x *" in names["code"]:
        names["x"] = _summed(names["x"])
    run()
    made: torch.Tensor = names["x"]
    return made


def _bad_scatter(names: Names) -> torch.Tensor:
    x = _summed(names["x"].detach().clone())
    part = torch.empty(ROWS // dist.get_world_size(), DIM)
    dist.reduce_scatter_tensor(part, x)
    return part


def _good_scatter(names: Names, run: Callable[[], None]) -> torch.Tensor:
    names["x"] = names["x"].detach()
    names["part"] = torch.empty(ROWS // dist.get_world_size(), DIM)
    run()
    made: torch.Tensor = names["part"]
    return made


def _bad_cut(names: Names) -> torch.Tensor:
    whole = _summed(names["x"].detach().clone())
    return _gathered(_part(whole)) + whole


def _good_cut(names: Names, run: Callable[[], None]) -> torch.Tensor:
    names["whole"] = _summed(names["x"].detach().clone())
    run()
    made: torch.Tensor = names["y"] + names["whole"]
    return made


def _both(names: Names) -> torch.Tensor:
    x = names["x"].detach().clone()
    part = torch.empty(ROWS // dist.get_world_size(), DIM)
    dist.reduce_scatter_tensor(part, x)
    return _gathered(part)


def _good_both(names: Names, run: Callable[[], None]) -> torch.Tensor:
    names["x"] = names["x"].detach().clone()
    run()
    made: torch.Tensor = names["x"]
    return made


def _bad_again(names: Names) -> torch.Tensor:
    x = names["x"].detach()
    return _gathered(x) * 2 + _gathered(x).square()


def _good_again(names: Names, run: Callable[[], None]) -> torch.Tensor:
    kept = names["x"].detach()
    names["x"] = kept
    names["whole"] = kept.new_empty(ROWS * dist.get_world_size(), DIM)
    names["use"], names["use_again"] = (lambda _: names["whole"] * 2), (lambda _: names["whole"].square())
    run()
    made: torch.Tensor = names["first"] + names["second"]
    return made


def cases(mesh: DeviceMesh) -> dict[str, Case]:
    """Return the cases by name; `mesh` is that of all ranks."""

    def local(x: torch.Tensor, placement: Any) -> DTensor:
        return DTensor.from_local(x, mesh, [placement])

    def sharded_part(names: Names) -> torch.Tensor:
        return _part(local(names["x"], Shard(0)).full_tensor())

    def good_sharded(names: Names, run: Callable[[], None]) -> torch.Tensor:
        names["x"] = local(names["x"], Shard(0))
        return _executed("part")(names, run)

    def pending_part(names: Names) -> torch.Tensor:
        whole = local(names["x"], Partial()).redistribute(placements=[Replicate()])
        return whole.redistribute(placements=[Shard(0)]).to_local()

    def good_pending(names: Names, run: Callable[[], None]) -> torch.Tensor:
        names["x"] = local(names["x"], Partial())
        return _executed("part")(names, run)

    def cut(names: Names) -> torch.Tensor:
        x = local(_summed(names["x"].detach().clone()).requires_grad_(), Replicate())
        back = x.redistribute(placements=[Shard(0)]).redistribute(placements=[Replicate()])
        return back.to_local().square()

    def good_cut_placed(names: Names, run: Callable[[], None]) -> torch.Tensor:
        names["x"] = local(_summed(names["x"].detach().clone()).requires_grad_(), Replicate())
        names["f"] = lambda x: x.to_local().square()
        return _executed("y")(names, run)

    return {
        "gather, cut": Case(
            "gathered, then cut again", lambda n: _part(_gathered(n["x"])), _executed("part")
        ),
        "gather as a list, cut": Case(
            "gathered, then cut again",
            lambda n: _part(torch.cat(_listed(n["x"].detach()))),
            _executed("part"),
        ),
        "gather with a gradient, cut": Case(
            "gathered, then cut again",
            lambda n: _part(torch.cat(differentiable_all_gather(n["x"]))),  # type: ignore[no-untyped-call]
            _executed("part"),
        ),
        "full tensor, cut": Case("gathered, then cut again", sharded_part, good_sharded),
        "all_reduce, cut": Case(
            "a reduce_scatter would do", lambda n: _part(_summed(n["x"].detach().clone())), _executed("part")
        ),
        "all_reduce, columns": Case(
            "a reduce_scatter would do",
            lambda n: _part(_summed(n["x"].detach().clone()), 1),
            _executed("part"),
        ),
        "maximum, cut": Case(
            "a reduce_scatter would do",
            lambda n: _part(_summed(n["x"].detach().clone(), dist.ReduceOp.MAX)),
            _executed("part"),
        ),
        "pending sum, cut": Case("a reduce_scatter would do", pending_part, good_pending),
        "sum twice": Case("had made equal", _bad_twice(dist.ReduceOp.SUM), _good_twice),
        "maximum twice": Case("had made equal", _bad_twice(dist.ReduceOp.MAX), _good_twice),
        "all_reduce, reduce_scatter": Case("reduces again", _bad_scatter, _good_scatter),
        "cut of a sum, gathered": Case("had given already", _bad_cut, _good_cut),
        "cut by DTensor, gathered": Case("gave back what every rank had", cut, good_cut_placed),
        "there and back": Case(
            "gave back what the all_to_all", lambda n: _exchanged(_exchanged(n["x"])), _executed("y")
        ),
        "scattered and gathered": Case("together they are an all_reduce", _both, _good_both),
        "gathered twice": Case("had sent before", _bad_again, _good_again),
    }


def _listed(x: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts


def _names() -> Names:
    known: Names = {"dist": dist, "torch": torch, "group": None, "x": _own().requires_grad_()}
    known |= {"ranks": dist.get_world_size(), "rank": dist.get_rank()}
    return known | {"Shard": Shard, "Partial": Partial, "Replicate": Replicate, "DTensor": DTensor}


def _trained(leaf: torch.Tensor, out: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the result, the gradient of what it began with, and that of a weight behind it."""
    weight = torch.linspace(-2, 2, DIM).round().expand(out.shape[-1], DIM).clone().requires_grad_()
    out.matmul(weight).sum().backward()
    gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return {"result": out.detach().clone(), "gradient": gradient, "weight": weight.grad}  # type: ignore[dict-item]


def applied() -> dict[str, Any]:
    """Return for each case the titles, the code, and what of its results the code changes on this rank."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    answer: dict[str, Any] = {}
    for name, case in cases(mesh).items():
        names = _names()
        leaf = names["x"]
        with audit(level="survey") as session:
            before = _trained(leaf, case.bad(names))
        report = report_of(session, *KINDS)
        told = [] if report is None else [one for one in report.findings if case.says in one.title]
        kept = [(one.title, one.remedy.code) for one in told if one.remedy is not None]
        dist.broadcast_object_list(shared := [kept])
        titles = [title for title, _ in shared[0]]
        answer[name] = {"titles": titles, "code": shared[0][0][1] if shared[0] else None, "changed": None}
        if len(shared[0]) != 1:
            continue
        names = _names()
        names["code"] = code = shared[0][0][1]
        leaf = names["x"]
        after = _trained(leaf, case.good(names, lambda n=names, c=code: exec(c, n)))  # type: ignore[misc]
        answer[name]["changed"] = [key for key in before if not torch.equal(before[key], after[key])]
    return answer


def one_by_one_and_coalesced() -> dict[str, bool]:
    """Return for each op whether one call with the remedy's code gives what many calls gave, by the op."""
    ranks, root = dist.get_world_size(), 0
    calls: dict[tuple[str, str], Callable[[torch.Tensor], torch.Tensor]] = {
        ("all_reduce", "SUM"): _summed,
        ("all_reduce", "MAX"): lambda t: _summed(t, dist.ReduceOp.MAX),
        ("broadcast", ""): lambda t: (dist.broadcast(t, src=root), t)[1],
        ("all_gather", ""): lambda t: _gathered(t.flatten()).view(ranks, -1),
        ("reduce_scatter", "SUM"): lambda t: _scattered(t.flatten()),
        ("all_to_all", ""): lambda t: _exchanged(t.view(ranks, -1)),
    }
    same = {}
    for (op, reduce_op), alone in calls.items():
        tensors = [_own() + place for place in range(3)]
        wanted = [alone(tensor.clone()) for tensor in tensors]
        names: Names = {"torch": torch, "dist": dist, "ranks": ranks, "root": root, "tensors": tensors}
        exec(coalesced(op, None, None, reduce_op or None), names)
        parts = names.get("parts", tensors) if op not in ("all_reduce", "broadcast") else tensors
        same[f"{op} {reduce_op}"] = all(map(torch.equal, wanted, parts))
    return same


def _scattered(flat: torch.Tensor) -> torch.Tensor:
    part = flat.new_empty(flat.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(part, flat)
    return part
