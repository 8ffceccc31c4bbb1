"""Models of which each rank holds another part, with right gradients or wrong in one known way.

FSDP1's flat pieces, experts, stages of a pipeline, weights tied within a rank and across stages.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from shardtoll.ledger import UsageError
from shardtoll.ledger.foreign.plain import to_plain
from shardtoll.profiler.live.gradients.gradients import check_gradients
from tests.live.gradient_programs import (
    PLAN,
    SAMPLES,
    D,
    Loss,
    Net,
    Tied,
    TwoLayers,
    batch,
    global_loss,
    local_backward,
    mean_squared,
    own,
    pair,
    world_mesh,
)

Case = tuple[Any, nn.Module, Loss, dict[str, Any]]
"""Model, reference, loss and what else check_gradients is given."""


# -- FSDP1 ---------------------------------------------------------------------------------------------


def _wrap(model: nn.Module, **options: Any) -> FullyShardedDataParallel:
    with warnings.catch_warnings():  # torch advises against FSDP1 and against some of its strategies
        warnings.simplefilter("ignore")
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)


def fsdp1(how: str, *, orig: bool = False, **options: Any) -> Case:
    d, h = (7, 9) if how == "uneven" else (12, 16)
    model, reference = pair(lambda: Net(d, h))
    if how == "frozen":
        model.norm.requires_grad_(False)
    policy = ModuleWrapPolicy({nn.Linear})
    wrapped = _wrap(model, auto_wrap_policy=policy, use_orig_params=orig, **options)
    x, y = batch(d)
    scale = dist.get_world_size() if how == "sum" else 1
    if how == "no_sync":
        with wrapped.no_sync():
            mse_loss(wrapped(own(x)), own(y)).backward()
    else:
        (scale * mean_squared(wrapped(own(x)), own(y))).backward()
    if how == "piece off":
        _double_the_first_row(wrapped, orig)
    return wrapped, reference, global_loss(d), {}


def _double_the_first_row(wrapped: nn.Module, orig: bool) -> None:
    """Break up.weight on the rank that holds its beginning, as a hook on one rank would."""
    if dist.get_rank() != 0:
        return
    if orig:
        dict(wrapped.named_parameters())["_fsdp_wrapped_module.up._fsdp_wrapped_module.weight"].grad[:12] *= 3
    else:
        flat = wrapped._fsdp_wrapped_module.up._handle.flat_param
        flat.grad[:12] *= 3


def fsdp1_hybrid(orig: bool) -> Case:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    return fsdp1("right", orig=orig, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)


def fsdp1_tied(broken: bool) -> Case:
    model, reference = pair(Tied)
    if broken:
        model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    wrapped = _wrap(model, use_orig_params=True)
    x, y = batch()
    mse_loss(wrapped(own(x)), own(y)).backward()
    return wrapped, reference, global_loss(), {}


def fsdp2_offloaded(broken: bool) -> Case:
    model, reference = pair()
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    offload = CPUOffloadPolicy(pin_memory=False)
    fully_shard(model.up, mesh=world_mesh(), mp_policy=policy, offload_policy=offload)
    fully_shard(model, mesh=world_mesh(), mp_policy=policy, offload_policy=offload)
    if broken:
        model.up.set_requires_gradient_sync(False)
    local_backward(model)
    return model, reference, global_loss(), {}


def zero_optimizer(broken: bool) -> Case:
    with warnings.catch_warnings():  # torch scripts other optimizers as it imports this one
        warnings.simplefilter("ignore")
        from torch.distributed.optim import ZeroRedundancyOptimizer

    model, reference = pair()
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, lr=1e-2)
    local_backward(wrapped)
    optimizer.step()
    optimizer.zero_grad()
    local_backward(wrapped, 2.0 if broken else 1.0)
    return wrapped, reference, global_loss(), {}


# -- experts -------------------------------------------------------------------------------------------


class _Summed(torch.autograd.Function):
    """The sum of what the ranks computed of one output, whose gradient all of them have already."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: Any) -> torch.Tensor:
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0], None


class Experts(nn.Module):
    """A router and experts, of which a rank may hold some, from number `first` on."""

    def __init__(self, count: int, first: int = 0, here: int | None = None, group: Any = None) -> None:
        super().__init__()
        self.router = nn.Linear(D, count)
        self.experts = nn.ModuleList([nn.Linear(D, D) for _ in range(count)][first:][:here])
        self.first, self.group, self.sharded = first, group, here is not None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates = torch.softmax(self.router(x), -1)
        parts = [gates[:, [self.first + n]] * torch.tanh(e(x)) for n, e in enumerate(self.experts)]
        total = torch.stack(parts).sum(0)
        return _Summed.apply(total, self.group) if self.sharded else total


def experts(how: str, data_parallel: int = 1) -> Case:
    """Experts 2k and 2k + 1 are on rank k of each group of ranks, called experts.0 and experts.1 there."""
    size = dist.get_world_size() // data_parallel
    replica, place = divmod(dist.get_rank(), size)
    groups = [dist.new_group(list(range(n * size, (n + 1) * size))) for n in range(data_parallel)]
    copies = [dist.new_group(list(range(n, dist.get_world_size(), size))) for n in range(size)]
    torch.manual_seed(0)
    model = Experts(2 * size, 2 * place, 2, groups[replica])
    torch.manual_seed(1)
    reference = Experts(2 * size)
    x, y = batch()
    each = SAMPLES // data_parallel
    mine = slice(replica * each, (replica + 1) * each)
    mse_loss(model(x[mine]), y[mine]).backward()
    for name, parameter in model.named_parameters():
        if name.startswith("router"):
            if how == "router":
                continue
            dist.all_reduce(parameter.grad, group=groups[replica])
        elif how == "copies" and place == 0:
            continue
        dist.all_reduce(parameter.grad, group=copies[place])
        parameter.grad /= data_parallel
    if how == "expert" and place == 1:
        model.experts[0].weight.grad *= 2

    def name_of(name: str) -> str:
        parts = name.split(".")
        return (
            ".".join([parts[0], str(int(parts[1]) + 2 * place), *parts[2:]])
            if parts[0] == "experts"
            else name
        )

    return model, reference, global_loss(), {"names": name_of}


class Stacked(nn.Module):
    """Experts as one tensor, [experts, D, D], of which a rank may hold some rows."""

    def __init__(self, count: int, rows: slice | None = None) -> None:
        super().__init__()
        self.router = nn.Linear(D, count)
        weight = torch.randn(count, D, D) / D**0.5
        self.rows, self.weight = rows, nn.Parameter(weight if rows is None else weight[rows].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates = torch.softmax(self.router(x), -1)
        total = torch.einsum("se,eio,si->so", gates[:, self.rows or slice(None)], self.weight, x)
        return total if self.rows is None else _Summed.apply(total, None)


def stacked(how: str) -> Case:
    size, rank = dist.get_world_size(), dist.get_rank()
    rows = slice(2 * rank, 2 * rank + 2)
    torch.manual_seed(0)
    model = Stacked(2 * size, rows)
    torch.manual_seed(1)
    reference = Stacked(2 * size)
    x, y = batch()
    mse_loss(model(x), y).backward()
    for parameter in model.router.parameters():
        dist.all_reduce(parameter.grad)
    if how == "rows" and rank == 1:
        model.weight.grad[0] = 0
    taken = slice(0, 2) if how == "all take the first" else rows
    return model, reference, global_loss(), {"names": {"weight": ("weight", taken)}}


# -- pipelines -----------------------------------------------------------------------------------------

LAYERS, MICRO = 4, 4


class Layers(nn.Module):
    """Some of the layers of a network, under the names they have in the whole; the ends may be tied."""

    def __init__(self, first: int = 0, last: int = LAYERS, tie: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(D, D, bias=False)
        self.layers = nn.ModuleDict({str(number): nn.Linear(D, D) for number in range(LAYERS)})
        self.head = nn.Linear(D, D, bias=False)
        if tie:
            self.head.weight = self.embed.weight
        for number in range(LAYERS):
            if not first <= number < last:
                del self.layers[str(number)]
        if first > 0:
            self.embed = None
        if last < LAYERS:
            self.head = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.embed is None else self.embed(x)
        for layer in self.layers.values():
            x = x + torch.tanh(layer(x))
        return x if self.head is None else self.head(x)


def pipeline(how: str, *, tie: bool = False, interleaved: bool = False, data_parallel: int = 1) -> Case:
    """Stages in order over the ranks; with data parallel, over each of its replicas."""
    stages = dist.get_world_size() // data_parallel
    replica, place = divmod(dist.get_rank(), stages)
    groups = [dist.new_group(list(range(n * stages, (n + 1) * stages))) for n in range(data_parallel)]
    copies = [dist.new_group(list(range(n, dist.get_world_size(), stages))) for n in range(stages)]
    parts = 2 * stages if interleaved else stages
    each = LAYERS // parts
    numbers = [place, place + stages] if interleaved else [place]
    modules = []
    for number in numbers:
        torch.manual_seed(0)
        modules.append(Layers(number * each, (number + 1) * each, tie))
    torch.manual_seed(1)
    reference = Layers(tie=tie)
    x, y = batch()
    share = SAMPLES // data_parallel
    mine = slice(replica * share, (replica + 1) * share)
    built = [
        PipelineStage(module, number, parts, torch.device("cpu"), group=groups[replica])
        for number, module in zip(numbers, modules, strict=True)
    ]
    options: dict[str, Any] = {"loss_fn": mse_loss, "scale_grads": how != "unscaled"}
    schedule: Any
    if interleaved:
        schedule = ScheduleInterleaved1F1B(built, MICRO, **options)
    else:
        schedule = Schedule1F1B(built[0], MICRO, **options)
    given = (x[mine],) if place == 0 else ()
    target = {"target": y[mine]} if numbers[-1] == parts - 1 else {}
    schedule.step(*given, **target)
    for module in modules:
        for parameter in module.parameters():
            if how != "last not reduced" or place != stages - 1:
                dist.all_reduce(parameter.grad, group=copies[place])
                parameter.grad /= data_parallel
    if tie and how != "ends not added":
        _add_ends([groups[replica]], modules, place, stages)
    return (modules if interleaved else modules[0]), reference, global_loss(), {}


def _add_ends(groups: list[Any], modules: list[nn.Module], place: int, stages: int) -> None:
    """Add the gradients of the first stage's embedding and the last one's head, on every rank."""
    ends = [end for module in modules for end in (module.embed, module.head) if end is not None]
    total = sum((end.weight.grad for end in ends), torch.zeros(D, D))
    for group in groups:
        dist.all_reduce(total, group=group)
    for end in ends:
        end.weight.grad = total.clone()


# -- ties and frozen weights ---------------------------------------------------------------------------


class Untied(Tied):
    """The same network with two weights where the other has one."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = nn.Parameter(self.embed.weight.detach().clone())


def tied_in_the_model(broken: bool) -> Case:
    torch.manual_seed(0)
    model, reference = Tied(), Untied()
    x, y = batch()
    mse_loss(model(x), y).backward()
    if broken:
        model.embed.weight.grad /= 2
    return model, reference, global_loss(), {}


def half_frozen(broken: bool) -> Case:
    """LoRA's way: most weights are frozen, and one trained one is not used."""
    model, reference = pair()
    model.spare, reference.spare = nn.Linear(D, D), nn.Linear(D, D)
    model.up.requires_grad_(False)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    x, y = batch()
    mse_loss(wrapped(own(x)), own(y)).backward()
    if broken:
        model.down.bias.grad = None
    return wrapped, reference, global_loss(), {}


def deep_bf16(broken: bool) -> Case:
    """A deep bf16 network, reduced in bf16, against float32 weights of one device."""
    torch.manual_seed(0)
    model = Layers().to(torch.bfloat16)
    reference = Layers()
    x, y = batch()
    mse_loss(model(own(x).bfloat16()), own(y).bfloat16()).backward()
    for name, parameter in model.named_parameters():
        if not (broken and name == "layers.2.weight"):
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    return model, reference, global_loss(), {}


def fsdp1_bf16(orig: bool) -> Case:
    lowered = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    return fsdp1("right", orig=orig, mixed_precision=lowered)


CASES: dict[str, Callable[[], Case]] = {
    "fsdp1 right": lambda: fsdp1("right"),
    "fsdp1 orig right": lambda: fsdp1("right", orig=True),
    "fsdp1 uneven right": lambda: fsdp1("uneven"),
    "fsdp1 orig uneven right": lambda: fsdp1("uneven", orig=True),
    "fsdp1 frozen right": lambda: fsdp1("frozen", orig=True),
    "fsdp1 grad op right": lambda: fsdp1("right", sharding_strategy=ShardingStrategy.SHARD_GRAD_OP),
    "fsdp1 no shard right": lambda: fsdp1("right", sharding_strategy=ShardingStrategy.NO_SHARD),
    "fsdp1 orig no shard right": lambda: fsdp1(
        "right", orig=True, sharding_strategy=ShardingStrategy.NO_SHARD
    ),
    "fsdp1 bf16 right": lambda: fsdp1_bf16(False),
    "fsdp1 orig bf16 right": lambda: fsdp1_bf16(True),
    "fsdp1 no_sync": lambda: fsdp1("no_sync"),
    "fsdp1 orig no_sync": lambda: fsdp1("no_sync", orig=True),
    "fsdp1 sum": lambda: fsdp1("sum", orig=True),
    "fsdp1 piece off": lambda: fsdp1("piece off"),
    "fsdp1 orig piece off": lambda: fsdp1("piece off", orig=True),
    "fsdp1 tied right": lambda: fsdp1_tied(False),
    "fsdp1 tied broken": lambda: fsdp1_tied(True),
    "fsdp2 offloaded right": lambda: fsdp2_offloaded(False),
    "fsdp2 offloaded unsynced": lambda: fsdp2_offloaded(True),
    "zero right": lambda: zero_optimizer(False),
    "zero doubled": lambda: zero_optimizer(True),
    "experts right": lambda: experts("right"),
    "experts router": lambda: experts("router"),
    "experts one": lambda: experts("expert"),
    "stacked right": lambda: stacked("right"),
    "stacked rows": lambda: stacked("rows"),
    "pipeline right": lambda: pipeline("right"),
    "pipeline unscaled": lambda: pipeline("unscaled"),
    "pipeline tied right": lambda: pipeline("right", tie=True),
    "pipeline tied broken": lambda: pipeline("ends not added", tie=True),
    "tied in the model right": lambda: tied_in_the_model(False),
    "tied in the model broken": lambda: tied_in_the_model(True),
    "half frozen right": lambda: half_frozen(False),
    "half frozen broken": lambda: half_frozen(True),
    "deep bf16 right": lambda: deep_bf16(False),
    "deep bf16 broken": lambda: deep_bf16(True),
}
TWO_RANKS: dict[str, Callable[[], Case]] = {
    "interleaved right": lambda: pipeline("right", interleaved=True),
    "interleaved tied right": lambda: pipeline("right", interleaved=True, tie=True),
    "interleaved unscaled": lambda: pipeline("unscaled", interleaved=True),
}
FOUR_RANKS: dict[str, Callable[[], Case]] = {
    "fsdp1 hybrid right": lambda: fsdp1_hybrid(False),
    "fsdp1 orig hybrid right": lambda: fsdp1_hybrid(True),
    "experts copies right": lambda: experts("right", data_parallel=2),
    "experts copies broken": lambda: experts("copies", data_parallel=2),
    "pipeline copies right": lambda: pipeline("right", data_parallel=2),
    "pipeline copies broken": lambda: pipeline("last not reduced", data_parallel=2),
    "pipeline copies tied right": lambda: pipeline("right", data_parallel=2, tie=True),
}


def _gradients(model: Any) -> list[Any]:
    roots = model if isinstance(model, list) else [model]
    found = []
    for root in roots:
        for _, parameter in root.named_parameters():
            local = getattr(parameter.grad, "_local_tensor", parameter.grad)
            found.append(None if local is None else local.detach().float().reshape(-1).tolist())
    return found


def outcomes(names: list[str]) -> dict[str, Any]:
    """By case: what the check found, or its error; and whether it changed any gradient."""
    found: dict[str, Any] = {}
    cases = {**CASES, **TWO_RANKS, **FOUR_RANKS}
    for name in names:
        model, reference, loss, more = cases[name]()
        before = copy.deepcopy(_gradients(model))
        seen = check_gradients(model, reference, loss, **more)
        found[name] = {
            "findings": [to_plain(finding) for finding in seen],
            "unchanged": _gradients(model) == before,
        }
    return found


# -- mistakes ------------------------------------------------------------------------------------------


def mistake(name: str) -> Case:
    if name == "fsdp1 over tensor parallel":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model, reference = pair(TwoLayers)
        parallelize_module(model, mesh["tp"], PLAN)
        wrapped = _wrap(model, use_orig_params=True, device_mesh=mesh["dp"])
        x, y = batch()
        mse_loss(wrapped(x), y).backward()
        return wrapped, reference, global_loss(), {}
    if name == "slices overlap":
        return stacked("all take the first")
    if name == "one place for two":
        model, reference, loss, _ = experts("right")
        return model, reference, loss, {"names": lambda own: own.replace("experts.1", "experts.0")}
    if name == "no such place":
        model, reference, loss, _ = experts("right")
        return model, reference, loss, {"names": {"router.weight": "gate.weight"}}
    if name == "a stage nobody holds":
        model, reference, loss, _ = pipeline("right")
        if dist.get_rank() == 1:
            model.layers["2"] = nn.Identity()
        return model, reference, loss, {}
    if name == "names is a list":
        model, reference, loss, _ = stacked("right")
        return model, reference, loss, {"names": ["weight"]}
    if name == "a place is a number":
        model, reference, loss, _ = stacked("right")
        return model, reference, loss, {"names": {"weight": 3}}
    if name == "two stages of one name":
        torch.manual_seed(0)
        model, reference = pair()
        local_backward(model)
        return [model, copy.deepcopy(model)], reference, global_loss(), {}
    assert name == "trained on one rank"
    model, reference = pair()
    model.up.weight.requires_grad_(dist.get_rank() == 0)
    local_backward(model)
    return model, reference, global_loss(), {}


def messages(names: list[str]) -> dict[str, list[str]]:
    """The message and hint that each mistake raises on this rank."""
    found: dict[str, list[str]] = {}
    for name in names:
        model, reference, loss, more = mistake(name)
        try:
            check_gradients(model, reference, loss, **more)
        except UsageError as error:
            found[name] = [error.message, error.hint]
        else:
            found[name] = ["nothing raised", ""]
    return found
