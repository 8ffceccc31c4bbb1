"""Models whose gradients are right, or wrong in one known way, for live tests of check_gradients.

A case builds a model, runs forward and backward on this rank's share of one global batch, and returns what
check_gradients needs. `outcomes` runs cases and also looks whether the check changed anything.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from shardtoll.ledger import Finding, UsageError
from shardtoll.ledger.foreign.plain import to_plain
from shardtoll.profiler.live.gradients.gradients import check_gradients
from shardtoll.profiler.live.gradients.shards import cut_by_offset, layout_of
from shardtoll.profiler.live.session import pausing

D, H, SAMPLES = 12, 16, 8
Loss = Callable[[nn.Module], torch.Tensor]
Built = tuple[nn.Module, nn.Module, Loss]


class Net(nn.Module):
    def __init__(self, d: int = D, h: int = H) -> None:
        super().__init__()
        self.up = nn.Linear(d, h)
        self.norm = nn.LayerNorm(h)
        self.down = nn.Linear(h, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.norm(self.up(x))))


def batch(d: int = D, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, d, generator=generator)
    return x.to(dtype), torch.randn(SAMPLES, d, generator=generator).to(dtype)


def own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def mean_squared(out: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return mse_loss in the dtype of what is wanted: not every torch differentiates it of two dtypes."""
    return mse_loss(out.to(wanted.dtype), wanted)


def global_loss(d: int = D, dtype: torch.dtype = torch.float32) -> Loss:
    x, y = batch(d, dtype)
    return lambda module: mse_loss(module(x), y)


def pair(make: Callable[[], nn.Module] = Net) -> tuple[nn.Module, nn.Module]:
    """Model and reference; the reference starts from other weights, so the copy has to happen."""
    torch.manual_seed(0)
    model = make()
    torch.manual_seed(99)
    return model, make()


def local_backward(model: nn.Module, scale: float = 1.0, d: int = D) -> None:
    x, y = batch(d)
    (scale * mean_squared(model(own(x)), own(y))).backward()


def plain(reduce: str, world_scale: float = 1.0) -> Built:
    model, reference = pair()
    local_backward(model)
    for parameter in model.parameters():
        if reduce != "none":
            dist.all_reduce(parameter.grad)
        if reduce == "mean":
            parameter.grad /= dist.get_world_size()
        parameter.grad *= world_scale
    return model, reference, global_loss()


def missing_sum() -> Built:
    """Each rank's loss is its share of the global mean, as in dit-chunk."""
    model, reference = pair()
    local_backward(model, 1 / dist.get_world_size())
    return model, reference, global_loss()


def one_rank_off() -> Built:
    model, reference, loss = plain("mean")
    if dist.get_rank() == 1:
        model.up.weight.grad[0] *= 3
    return model, reference, loss


def weights_drifted() -> Built:
    model, reference = pair()
    if dist.get_rank() == 1:
        with torch.no_grad():
            model.down.weight.mul_(1.5)
    x, y = batch()
    mse_loss(model(x), y).backward()
    return model, reference, global_loss()


def not_finite() -> Built:
    model, reference, loss = plain("mean")
    if dist.get_rank() == 1:
        model.up.bias.grad[0] = float("nan")
    return model, reference, loss


def one_missing() -> Built:
    model, reference, loss = plain("mean")
    if dist.get_rank() == 1:
        model.up.weight.grad = None
    model.down.bias.grad = None
    return model, reference, loss


def one_zero() -> Built:
    model, reference, loss = plain("mean")
    model.up.weight.grad.zero_()
    return model, reference, loss


class Spare(Net):
    """`spare` is used only when the module says so."""

    used = True

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (self.spare(x) if self.used else 0)


def extra() -> Built:
    model, reference = pair(Spare)
    reference.used = False
    x, y = batch()
    mse_loss(model(x), y).backward()
    for name, parameter in model.named_parameters():
        if not name.startswith("spare"):
            parameter.grad = None
    reference_loss = global_loss()
    model.used = False
    mse_loss(model(x), y).backward()
    return model, reference, reference_loss


def unused_zero() -> Built:
    """A gradient of zeros where the unsharded model has none is no mistake."""
    model, reference = pair(Spare)
    model.used = reference.used = False
    x, y = batch()
    mse_loss(model(x), y).backward()
    model.spare.weight.grad = torch.zeros_like(model.spare.weight)
    return model, reference, global_loss()


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(D, D) for _ in range(12)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def deep_missing() -> Built:
    model, reference = pair(Deep)
    local_backward(model)
    return model, reference, global_loss()


class Attention(nn.Module):
    """The bias of `key` has a gradient of exactly zero: softmax does not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.query(x) @ self.key(x).mT / D**0.5, dim=-1)
        return weights @ self.value(x)


def zero_by_nature(dtype: str = "float32") -> Built:
    """The right gradients, once by mean over ranks and once on one device: equal but for rounding."""
    kind = getattr(torch, dtype)
    model, reference = pair(lambda: Attention().to(kind))
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, 32, D, generator=generator).to(kind)
    y = torch.randn(SAMPLES, 32, D, generator=generator).to(kind)
    mse_loss(model(own(x)), own(y)).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return model, reference, lambda module: mse_loss(module(x), y)


def ddp(how: str) -> Built:
    model, reference = pair()
    if how == "ignored":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["up.weight"])
    wrapped = DistributedDataParallel(model)
    x, y = batch()
    if how == "no_sync":
        with wrapped.no_sync():
            mse_loss(wrapped(own(x)), own(y)).backward()
    else:
        # DDP averages: its loss must be the local mean, not a share of the global one.
        scale = 1 / dist.get_world_size() if how == "share" else 1.0
        (scale * mse_loss(wrapped(own(x)), own(y))).backward()
    return wrapped, reference, global_loss()


def world_mesh(name: str = "dp") -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=(name,))


def fsdp2(how: str) -> Built:
    d, h = (10, 18) if how == "uneven" else (D, H)
    model, reference = pair(lambda: Net(d, h))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if how == "bf16" else MixedPrecisionPolicy()
    mesh = world_mesh()
    fully_shard(model.up, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if how == "unsynced":
        model.set_requires_gradient_sync(False)
    local_backward(model, dist.get_world_size() if how == "sum" else 1.0, d)
    if how == "shard_off" and dist.get_rank() == 1:
        model.up.weight.grad.to_local().mul_(2)
    return model, reference, global_loss(d)


def hsdp() -> Built:
    """FSDP2 on a mesh that replicates on one dimension and shards on the other."""
    model, reference = pair()
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    local_backward(model)
    return model, reference, global_loss()


PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(D, H)
        self.down = nn.Linear(H, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def tp() -> Built:
    model, reference = pair(TwoLayers)
    parallelize_module(model, world_mesh("tp"), PLAN)
    x, y = batch()
    mse_loss(model(x), y).backward()
    return model, reference, global_loss()


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.up = nn.Linear(D, H)
        self.down = nn.Linear(H, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


def sequence_parallel() -> Built:
    """SequenceParallel leaves the norm's gradient Partial: right once reduced, as an optimizer does."""
    model, reference = pair(Normed)
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
    }
    parallelize_module(model, world_mesh("tp"), plan)
    x, y = batch()
    out = model(DTensor.from_local(own(x), model.up.weight.device_mesh, [Shard(0)]))
    (mse_loss(out.to_local(), own(y)) / dist.get_world_size()).backward()
    assert model.norm.weight.grad.placements[0].is_partial()
    return model, reference, global_loss()


def two_dims(how: str) -> Built:
    """FSDP2 x TP; every weight of `up` is sharded twice on dimension 0, so its shards are strided."""
    model, reference = pair(TwoLayers)
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], PLAN)
    if how != "manual":
        fully_shard(model, mesh=mesh["dp"])
    x, y = batch()
    mine = slice(mesh["dp"].get_local_rank() * SAMPLES // 2, (mesh["dp"].get_local_rank() + 1) * SAMPLES // 2)
    scale = 2.0 if how == "sum" else 1.0
    (scale * mse_loss(model(x[mine]), y[mine])).backward()
    return model, reference, global_loss()


class Routed(nn.Module):
    """A replicated router beside a sharded expert, like a MoE layer under tensor parallelism."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Parameter(torch.randn(D, D) / D**0.5)
        self.expert = nn.Parameter(torch.randn(D, D) / D**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x @ self.router) * (x @ self.expert)


def router(declared: bool) -> Built:
    """Each rank computes its own columns with the whole router; the gradient is Partial."""
    model, reference = pair(Routed)
    mesh = world_mesh("tp")
    for name in ("router", "expert"):
        weight = distribute_tensor(getattr(model, name).detach(), mesh, [Replicate()])
        setattr(model, name, nn.Parameter(weight))
    x, y = batch()
    columns = range(D)[dist.get_rank() :: dist.get_world_size()]
    grads = {"grad_placements": [Partial()]} if declared else {}
    expert = model.expert.to_local(grad_placements=[Partial()])
    router_local = model.router.to_local(**grads)
    out = torch.sigmoid(x @ router_local)[:, columns] * (x @ expert)[:, columns]
    ((out - y[:, columns]).square().sum() / y.numel()).backward()
    return model, reference, global_loss()


def bf16(reduce: str) -> Built:
    model, reference = pair(lambda: Net().to(torch.bfloat16))
    x, y = batch(dtype=torch.bfloat16)
    mse_loss(model(own(x)), own(y)).backward()
    if reduce == "mean":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    return model, reference, global_loss(dtype=torch.bfloat16)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(D, D, bias=False)
        self.head = nn.Linear(D, D, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embed(x)))


def tied(broken: bool) -> Built:
    model, reference = pair(Tied)
    if broken:
        model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    x, y = batch()
    mse_loss(model(x), y).backward()
    return model, reference, global_loss()


class Buffered(nn.Module):
    """A buffer and a frozen parameter that change the gradient, eval mode inside, a sparse gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.rand(D))
        self.embed = nn.Embedding(20, D, sparse=True)
        self.drop = nn.Dropout(0.9)
        self.frozen = nn.Linear(D, D)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(len(x)) % 3
        return self.frozen(self.drop(self.embed(rows)) * x + self.shift)


def buffered() -> Built:
    model, reference = pair(Buffered)
    model.drop.eval()
    reference.frozen.requires_grad_(True)
    x, y = batch()
    mse_loss(model(x), y).backward()
    return model, reference, global_loss()


def wrapped() -> Built:
    """torch.compile's and activation checkpointing's wrappers, and meta references beyond rank 0."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model, reference = pair()
    model.up = checkpoint_wrapper(model.up)
    compiled = torch.compile(model, backend="eager")
    ddp_model = DistributedDataParallel(compiled)
    x, y = batch()
    mse_loss(ddp_model(own(x)), own(y)).backward()
    if dist.get_rank() != 0:
        reference = reference.to("meta")
    return ddp_model, reference, global_loss()


CASES: dict[str, Callable[[], Built]] = {
    "plain right": lambda: plain("mean"),
    "plain missing mean": lambda: plain("none"),
    "plain missing sum": missing_sum,
    "plain sum for mean": lambda: plain("sum"),
    "plain odd scale": lambda: plain("mean", 0.3),
    "plain loss scale": lambda: plain("mean", 1024.0),
    "one rank off": one_rank_off,
    "weights drifted": weights_drifted,
    "not finite": not_finite,
    "one missing": one_missing,
    "one zero": one_zero,
    "extra": extra,
    "unused zero": unused_zero,
    "deep missing": deep_missing,
    "zero by nature": zero_by_nature,
    "zero by nature bf16": lambda: zero_by_nature("bfloat16"),
    "ddp right": lambda: ddp("right"),
    "ddp no_sync": lambda: ddp("no_sync"),
    "ddp ignored": lambda: ddp("ignored"),
    "ddp share": lambda: ddp("share"),
    "fsdp2 right": lambda: fsdp2("right"),
    "fsdp2 uneven": lambda: fsdp2("uneven"),
    "fsdp2 bf16": lambda: fsdp2("bf16"),
    "fsdp2 sum": lambda: fsdp2("sum"),
    "fsdp2 shard off": lambda: fsdp2("shard_off"),
    "tp right": tp,
    "sequence parallel right": sequence_parallel,
    "router declared": lambda: router(True),
    "router drift": lambda: router(False),
    "bf16 right": lambda: bf16("mean"),
    "bf16 missing": lambda: bf16("none"),
    "tied right": lambda: tied(False),
    "tied broken": lambda: tied(True),
    "buffered right": buffered,
    "wrapped right": wrapped,
}
FOUR_RANKS: dict[str, Callable[[], Built]] = {
    "2-D right": lambda: two_dims("right"),
    "2-D sum": lambda: two_dims("sum"),
    "2-D manual missing": lambda: two_dims("manual"),
    "hsdp right": hsdp,
}


def _bits(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    dense = local.detach().to_dense() if local.is_sparse else local.detach()
    placements = str(tensor.placements) if isinstance(tensor, DTensor) else ""
    return placements, str(dense.dtype), dense.clone().contiguous().view(torch.uint8).reshape(-1).tolist()


def _state(model: nn.Module) -> list[Any]:
    return [
        torch.get_rng_state().tolist(),
        random.getstate(),
        torch.is_grad_enabled(),
        [module.training for module in model.modules()],
        [getattr(module, "require_backward_grad_sync", None) for module in model.modules()],
        [(name, _bits(p), _bits(p.grad), p.requires_grad) for name, p in model.named_parameters()],
        [(name, _bits(b)) for name, b in model.named_buffers()],
    ]


def outcome(build: Callable[[], Built]) -> dict[str, Any]:
    model, reference, loss = build()
    events: list[str] = []
    delivered: list[list[Finding]] = []
    undo = [
        pausing.register(lambda: events.append("pause"), lambda: events.append("resume")),
        pausing.register_sink(lambda findings, right, wrong: delivered.append(list(findings))),
    ]
    before = _state(model)

    def drawing_loss(module: nn.Module) -> torch.Tensor:
        assert events == ["pause"]
        torch.rand(7)
        return loss(module)

    findings = check_gradients(model, reference, drawing_loss)
    for undone in undo:
        undone()
    return {
        "findings": [to_plain(finding) for finding in findings],
        "unchanged": _state(model) == before,
        "events": events,
        "delivered": delivered == [findings],
        "reference_grads": sum(p.grad is not None for p in reference.parameters()),
    }


def outcomes(names: list[str]) -> dict[str, Any]:
    dist.barrier()
    cases = {**CASES, **FOUR_RANKS}
    return {name: outcome(cases[name]) for name in names}


# -- mistakes ------------------------------------------------------------------------------------------


def mistake(name: str) -> Built:
    model, reference, loss = plain("mean")
    first = dist.get_rank() == 0
    if name == "name":
        reference.extra = nn.Linear(2, 2)
    elif name == "name on the model":
        del reference.norm
    elif name == "shape on rank 1" and not first:
        reference.up.bias = nn.Parameter(torch.zeros(3))
    elif name == "buffer shape":
        model.register_buffer("table", torch.zeros(3))
        reference.register_buffer("table", torch.zeros(4))
    elif name == "not scalar":
        x, _ = batch()
        return model, reference, lambda module: module(x)
    elif name == "not a tensor":
        return model, reference, lambda module: loss(module).item()  # type: ignore[return-value]
    elif name == "other weights":
        return model, reference, lambda module: torch.ones(())
    elif name == "loss fails":
        return model, reference, lambda module: module(torch.zeros(2, 5)).sum()
    elif name == "loss communicates":

        def talking(module: nn.Module) -> torch.Tensor:
            value = loss(module)
            dist.all_reduce(value.detach())
            return value

        return model, reference, talking
    elif name == "loss is a DTensor":
        mesh = world_mesh()
        x, y = batch()
        spread = distribute_tensor(x, mesh, [Replicate()])
        return model, reference, lambda module: mse_loss(module(spread), y)
    elif name == "loss not finite":
        return model, reference, lambda module: loss(module) * float("inf")
    elif name == "no gradients":
        model.zero_grad()
    elif name == "zeroed":
        model.zero_grad(set_to_none=False)
    elif name == "same module":
        return model, model, loss
    elif name == "reference is parallel":
        fully_shard(reference, mesh=world_mesh())
    elif name == "meta":
        return model, reference.to("meta"), loss
    elif name == "other parameters on rank 1" and not first:
        return (*pair(TwoLayers), loss)
    elif name == "no function":
        return model, reference, loss(reference)  # type: ignore[return-value]
    elif name == "no module":
        return model, reference.state_dict(), loss  # type: ignore[return-value]
    return model, reference, loss


def messages(names: list[str]) -> dict[str, list[str]]:
    """The message and hint that each mistake raises on this rank."""
    found: dict[str, list[str]] = {}
    for name in names:
        model, reference, loss = mistake(name)
        rtol = -1.0 if name == "rtol" else None
        if name == "rtol on rank 1":
            rtol = 0.1 if dist.get_rank() else 0.2
        try:
            check_gradients(model, reference, loss, rtol=rtol)
        except UsageError as error:
            found[name] = [error.message, error.hint]
        else:
            found[name] = ["nothing raised", ""]
    return found


def after_a_mistake() -> dict[str, Any]:
    """After an error nothing is left behind: the same model checks clean, and hooks have been resumed."""
    events: list[str] = []
    undo = pausing.register(lambda: events.append("pause"), lambda: events.append("resume"))
    model, reference, loss = plain("mean")
    state = torch.get_rng_state()
    raised = False
    try:
        check_gradients(model, reference, lambda module: module(torch.rand(2, 5)).sum())
    except UsageError:
        raised = True
    kept = bool((torch.get_rng_state() == state).all())
    findings = check_gradients(model, copy.deepcopy(reference), loss)
    undo()
    return {"raised": raised, "events": events, "rng": kept, "findings": len(findings)}


# -- slices --------------------------------------------------------------------------------------------


def slices() -> dict[str, list[bool]]:
    """By placement: whether a rank's slice of the whole is its shard, by each of the two ways to cut."""
    flat, grid = world_mesh(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    found: dict[str, list[bool]] = {}

    def compare(name: str, tensor: torch.Tensor) -> None:
        assert isinstance(tensor, DTensor)
        full, local = tensor.full_tensor(), tensor.to_local()
        layout = layout_of(tensor)
        assert layout.mesh is not None
        by_offset = cut_by_offset(full, layout.mesh, layout.placements)
        found[name] = [torch.equal(layout.cut(full), local), torch.equal(by_offset, local)]

    whole = torch.arange(7 * 5.0).reshape(7, 5)
    for placements in ([Shard(0)], [Shard(1)], [Replicate()]):
        compare(str(placements), distribute_tensor(whole, flat, placements))
    compare("too few rows", distribute_tensor(whole[:2], flat, [Shard(0)]))
    for placements in ([Shard(0), Shard(0)], [Shard(0), Shard(1)], [Replicate(), Shard(1)]):
        compare(str(placements), distribute_tensor(whole, grid, placements))
    model = TwoLayers()
    parallelize_module(model, grid["tp"], PLAN)
    fully_shard(model, mesh=grid["dp"])
    for name, parameter in model.named_parameters():
        compare(f"2-D {name} {parameter.placements}", parameter.detach())
    return found
