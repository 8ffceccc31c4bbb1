"""Sound programs whose values look equal: coincidence, NaN, seeds, constants; nothing may be said of them.

Each builds what it needs and returns its step. Where a collective seems needless, it is so for the values of
this run alone, or another rank reads what this one does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import audit
from tests.live.told_kinds import report_of

ROWS, DIM = 16, 32
STEPS = 2
KINDS = (
    *("redundant-collective", "duplicated-compute", "duplicated-data", "non-finite", "identical-shards"),
    *("wrong-gradient", "replica-drift", "unsynced-parameter", "sync-every-microbatch"),
)

Step = Callable[[int], Any]
Program = Callable[[DeviceMesh], "tuple[nn.Module | None, Step]"]


def rank() -> int:
    return dist.get_rank()


def ranks() -> int:
    return dist.get_world_size()


def own(number: int, *shape: int) -> torch.Tensor:
    """Values that differ between ranks and steps."""
    seed = 100 * number + rank() + 1
    return torch.randn(*(shape or (ROWS, DIM)), generator=torch.Generator().manual_seed(seed))


def seeded(number: int, *shape: int) -> torch.Tensor:
    """Values of one seed on all ranks."""
    return torch.randn(*(shape or (ROWS, DIM)), generator=torch.Generator().manual_seed(number + 1))


def part(whole: torch.Tensor, dim: int = 0, of: int | None = None) -> torch.Tensor:
    return whole.chunk(ranks(), dim)[rank() if of is None else of]


def gathered(x: torch.Tensor) -> torch.Tensor:
    whole = x.new_empty(x.shape[0] * ranks(), *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.contiguous())
    return whole


def gathered_list(x: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(x) for _ in range(ranks())]
    dist.all_gather(parts, x.contiguous())
    return parts


def summed(x: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    dist.all_reduce(x, op=op)
    return x


def exchanged(x: torch.Tensor) -> torch.Tensor:
    back = torch.empty_like(x)
    dist.all_to_all_single(back, x.contiguous())
    return back


def alone(step: Step) -> tuple[None, Step]:
    return None, step


# -- NaN, infinity, zeros, constants --------------------------------------------------------------------


def nan_padding(_: DeviceMesh) -> tuple[None, Step]:
    """Rows that are padded with NaN are reduced, and masked before use."""

    def step(number: int) -> Any:
        x = own(number)
        x[ROWS // 4 :] = torch.nan
        return summed(x).nan_to_num().square().sum() + summed(x.clone()).nan_to_num().sum()

    return alone(step)


def infinite_mask(_: DeviceMesh) -> tuple[None, Step]:
    """A mask with minus infinity is agreed on."""

    def step(number: int) -> Any:
        mask = torch.full((ROWS, ROWS), -torch.inf).triu(1)
        mask = summed(mask, dist.ReduceOp.MAX)
        return torch.softmax(own(number, ROWS, ROWS) + gathered(part(mask)) + mask, -1).sum()

    return alone(step)


def zero_gradients(_: DeviceMesh) -> tuple[nn.Module, Step]:
    """A branch whose last layer is zero has zero gradients, reduced in every step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIM, DIM), nn.Linear(DIM, DIM, bias=False))
    nn.init.zeros_(model[1].weight)

    def step(number: int) -> Any:
        model(own(number)).square().sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        model.zero_grad()

    return model, step


def masks_of_ones(_: DeviceMesh) -> tuple[None, Step]:
    def step(number: int) -> Any:
        mask = summed(torch.ones(ROWS, DIM), dist.ReduceOp.MIN)
        return gathered(part(mask)) * mask * own(number)

    return alone(step)


def equal_counts(_: DeviceMesh) -> tuple[None, Step]:
    """Each rank counts tokens of as many kinds; the batches happen to have equally many of each."""

    def step(_: int) -> Any:
        counts = torch.arange(ROWS * DIM) // 7
        return summed(counts).float().mean()

    return alone(step)


def one_hot(_: DeviceMesh) -> tuple[None, Step]:
    """One-hot routes that all go to the first expert are exchanged there and back."""

    def step(_: int) -> Any:
        route = nn.functional.one_hot(torch.zeros(ROWS, dtype=torch.int64), DIM).float()
        return exchanged(exchanged(route)).sum()

    return alone(step)


def sparse_rows(_: DeviceMesh) -> tuple[None, Step]:
    """The gradient of a table is zero but for the rows of a batch that all ranks drew."""

    def step(_: int) -> Any:
        gradient = torch.zeros(64 * ROWS, DIM)
        gradient[:2] = torch.arange(float(DIM))
        return summed(gradient)[:2].sum()

    return alone(step)


# -- seeds, equal shards, replicas ----------------------------------------------------------------------


def one_seed_reduced(_: DeviceMesh) -> tuple[None, Step]:
    """Noise of each rank's generator is averaged; all generators began with one seed."""
    return alone(lambda number: summed(seeded(number)) / ranks())


def one_seed_gathered(_: DeviceMesh) -> tuple[None, Step]:
    """Ranks agree on noise: each gives its part of what it drew."""
    return alone(lambda number: gathered(part(seeded(number))).square())


def one_seed_scattered(_: DeviceMesh) -> tuple[None, Step]:
    def step(number: int) -> Any:
        mine = torch.empty(ROWS // ranks(), DIM)
        dist.reduce_scatter_tensor(mine, seeded(number))
        return mine * 2

    return alone(step)


def one_prompt(_: DeviceMesh) -> tuple[None, Step]:
    """All ranks hold one prompt; each takes what the last rank has."""
    return alone(lambda number: gathered_list(seeded(number))[-1].square())


class _Sum(torch.autograd.Function):
    """Adds up in forward; the gradient is one for all ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return summed(x.clone())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class _Copy(torch.autograd.Function):
    """Adds up gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return summed(grad.clone())


def equal_megatron_shards(_: DeviceMesh) -> tuple[None, Step]:
    """Two layers cut by hand; each rank drew its part with the seed of all."""
    torch.manual_seed(0)
    up, down = torch.randn(DIM, DIM, requires_grad=True), torch.randn(DIM, DIM, requires_grad=True)

    def step(number: int) -> Any:
        x = seeded(number).requires_grad_()
        y = _Sum.apply(torch.relu(_Copy.apply(x) @ up) @ down)  # type: ignore[no-untyped-call]
        y.square().sum().backward()
        up.grad = down.grad = None

    return alone(step)


def replicated_inputs(mesh: DeviceMesh) -> tuple[None, Step]:
    """A pending sum whose terms happen to be equal."""

    def step(number: int) -> Any:
        pending = DTensor.from_local(seeded(number), mesh, [Partial()])
        return pending.redistribute(placements=[Replicate()]).to_local() * 2

    return alone(step)


class Banked(nn.Module):
    """Weights given as DTensors, multiplied with what each rank has."""

    def __init__(self, **weights: DTensor) -> None:
        super().__init__()
        for name, weight in weights.items():
            self.register_parameter(name, nn.Parameter(weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        terms = [
            (x @ weight.to_local().reshape(-1, x.shape[-1]).t()).square().mean()
            for weight in self.parameters()
        ]  # type: ignore[attr-defined]
        return torch.stack(terms).sum()


def _banked(mesh: DeviceMesh, **weights: torch.Tensor) -> tuple[nn.Module, Step]:
    model = Banked(**{name: distribute_tensor(weight, mesh, [Shard(0)]) for name, weight in weights.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> Any:
        model(own(number)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def upcycled_experts(mesh: DeviceMesh) -> tuple[nn.Module, Step]:
    """Experts that are copies of one dense layer, one or two a rank."""
    one = seeded(0, 1, DIM, DIM)
    return _banked(mesh, up=one.repeat(ranks(), 1, 1), down=one.repeat(2 * ranks(), 1, 1))


def repeated_heads(mesh: DeviceMesh) -> tuple[nn.Module, Step]:
    """Heads of keys and values are repeated, as there are fewer of them than ranks; queries are not."""
    heads = seeded(0, 4, DIM).repeat(ranks(), 1)
    return _banked(mesh, q=seeded(1, 8 * ranks(), DIM), o=seeded(2, 8 * ranks(), DIM), k=heads)


def equal_rows(mesh: DeviceMesh) -> tuple[nn.Module, Step]:
    """A table whose rows are all equal, as of decay rates; ones; a bias of zeros."""
    rates = torch.arange(1.0, DIM + 1).log().repeat(8 * ranks(), 1)
    return _banked(mesh, rates=rates, scale=torch.ones(8 * ranks(), DIM))


def repeated_buckets(_: DeviceMesh) -> tuple[None, Step]:
    """Weights of two norms, equal as they are initialised, are averaged one after the other."""
    first, second = torch.linspace(0, 1, ROWS * DIM), torch.linspace(0, 1, ROWS * DIM)

    def step(number: int) -> Any:
        for weight in (first, second):
            dist.all_reduce(weight, op=dist.ReduceOp.SUM)
            weight /= ranks()

    return alone(step)


# -- what is written to in between ----------------------------------------------------------------------


def zero_branch(_: DeviceMesh) -> tuple[None, Step]:
    """Sequence parallelism: the branch between cut and gather is zero as yet."""
    weight = torch.zeros(DIM, DIM)

    def step(number: int) -> Any:
        whole = summed(own(number))
        mine = part(whole)
        return gathered(mine + mine @ weight).square() + whole

    return alone(step)


def zero_branch_in_place(_: DeviceMesh) -> tuple[None, Step]:
    weight = torch.zeros(DIM, DIM)

    def step(number: int) -> Any:
        whole = summed(own(number))
        mine = part(whole).clone()
        mine += mine @ weight
        return gathered(mine).square() + whole

    return alone(step)


def dtensor_zero_branch(mesh: DeviceMesh) -> tuple[None, Step]:
    weight = torch.zeros(DIM, DIM)

    def step(number: int) -> Any:
        whole = DTensor.from_local(seeded(number), mesh, [Replicate()])
        mine = whole.redistribute(placements=[Shard(0)]).to_local()
        mine = mine + mine @ weight
        return (
            DTensor.from_local(mine, mesh, [Shard(0)]).redistribute(placements=[Replicate()]).to_local() * 2
        )

    return alone(step)


def scaled_by_one(_: DeviceMesh) -> tuple[None, Step]:
    """Gradients are clipped by a factor that is one in these steps, and averaged with a second sum."""

    def step(number: int) -> Any:
        x = summed(own(number))
        x.mul_(torch.ones(1))
        return summed(x) / ranks() ** 2

    return alone(step)


def masked_by_ones(_: DeviceMesh) -> tuple[None, Step]:
    """What was reduced is masked on each rank; in these steps nothing is left out."""
    return alone(lambda number: summed(summed(own(number)) * torch.ones(ROWS, 1)))


def repeated_after_update(_: DeviceMesh) -> tuple[None, Step]:
    """A table is gathered, updated by what is zero as yet, and gathered again."""

    def step(number: int) -> Any:
        table = own(0)
        first = gathered(table).sum()
        table += torch.zeros(DIM)
        return first + gathered(table).sum()

    return alone(step)


def idle_expert(_: DeviceMesh) -> tuple[None, Step]:
    """Tokens go to experts whose output is zero as yet, and come back with the residual."""
    weight = torch.zeros(DIM, DIM)

    def step(number: int) -> Any:
        there = exchanged(own(number))
        return exchanged(there + there @ weight) * 2

    return alone(step)


def identity_permutation(_: DeviceMesh) -> tuple[None, Step]:
    """Tokens are sorted by their expert; they are in order already."""

    def step(number: int) -> Any:
        there = exchanged(own(number))
        order = torch.argsort(torch.arange(ROWS), stable=True)
        return exchanged(there[order]) * 2

    return alone(step)


# -- who reads what -------------------------------------------------------------------------------------


def moe_gather(_: DeviceMesh) -> tuple[None, Step]:
    """Each rank takes its experts of the batches of all ranks: half of what it reads came from the others."""

    def step(number: int) -> Any:
        x = own(number, 8, 2 * ranks(), 4, DIM)
        by_expert = torch.cat(gathered_list(x)).transpose(0, 1).reshape(-1, 4, DIM)
        return by_expert.split([2 * 8 * ranks()] * ranks())[rank()].square()

    return alone(step)


def moe_gather_equal(_: DeviceMesh) -> tuple[None, Step]:
    """The same with one seed, so that what came from the others equals the rank's own."""

    def step(number: int) -> Any:
        x = seeded(number, 8, 2 * ranks(), 4, DIM)
        by_expert = torch.cat(gathered_list(x)).transpose(0, 1).reshape(-1, 4, DIM)
        return by_expert.split([2 * 8 * ranks()] * ranks())[rank()].square()

    return alone(step)


def transposed(_: DeviceMesh) -> tuple[None, Step]:
    """Rows of all ranks, transposed: this rank's part of the columns holds some of every rank's."""
    return alone(lambda number: part(gathered(own(number)).t().contiguous()).square())


def reversed_parts(_: DeviceMesh) -> tuple[None, Step]:
    """The parts are put together in another order than the ranks'."""
    return alone(lambda number: part(torch.cat(gathered_list(own(number))[::-1])).square())


def of_the_neighbour(_: DeviceMesh) -> tuple[None, Step]:
    return alone(lambda number: part(gathered(own(number)), of=(rank() + 1) % ranks()).square())


def of_the_first(_: DeviceMesh) -> tuple[None, Step]:
    """All ranks read the part of the first, who has it already."""
    return alone(lambda number: part(gathered(own(number)), of=0).square())


def summed_for_the_neighbour(_: DeviceMesh) -> tuple[None, Step]:
    """Each rank reads an even part of the sum, and not the one that a reduce_scatter would give it."""
    return alone(lambda number: part(summed(own(number)), of=(rank() + 1) % ranks()).square())


def summed_first_rows(_: DeviceMesh) -> tuple[None, Step]:
    """All ranks read the same rows of the sum."""
    return alone(lambda number: part(summed(own(number)), of=0).square())


def interleaved(_: DeviceMesh) -> tuple[None, Step]:
    """Each rank reads every so manieth row of all."""
    return alone(lambda number: gathered(own(number))[rank() :: ranks()].square())


def summed_interleaved(_: DeviceMesh) -> tuple[None, Step]:
    """Each rank reads every so manieth row of a sum, which no reduce_scatter along a dimension gives it."""
    return alone(lambda number: summed(own(number))[rank() :: ranks()].square())


def stacked(_: DeviceMesh) -> tuple[None, Step]:
    """Parts are stacked as the second dimension and flattened: an even part is a mix."""
    return alone(lambda number: part(torch.stack(gathered_list(own(number)), 1).flatten(0, 1)).square())


# -- rings, scalers, others -----------------------------------------------------------------------------


def ring_of_equal_blocks(_: DeviceMesh) -> tuple[None, Step]:
    """Ring attention over blocks of keys that are equal on all ranks."""

    def step(number: int) -> Any:
        block, total = seeded(number), torch.zeros(ROWS, ROWS)
        query = own(number)
        for _ in range(ranks()):
            total += query @ block.t()
            received = torch.empty_like(block)
            send = dist.P2POp(dist.isend, block, (rank() + 1) % ranks())
            receive = dist.P2POp(dist.irecv, received, (rank() - 1) % ranks())
            for work in dist.batch_isend_irecv([send, receive]):
                work.wait()
            block = received
        return total

    return alone(step)


def ring_of_broadcasts(_: DeviceMesh) -> tuple[None, Step]:
    def step(number: int) -> Any:
        total = torch.zeros(())
        for owner in range(ranks()):
            block = seeded(number)
            dist.broadcast(block, owner)
            total += block.square().sum()
        return total

    return alone(step)


def ring_of_gathers(_: DeviceMesh) -> tuple[None, Step]:
    """Blocks that hold equal values are gathered one after the other."""

    def step(number: int) -> Any:
        return torch.stack([gathered(seeded(number).clone()).sum() for _ in range(3)]).sum()

    return alone(step)


def skipped_by_a_scaler(_: DeviceMesh) -> tuple[nn.Module, Step]:
    """The first step overflows, as in every run with a scaler, and is left out."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(DIM, DIM))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def step(number: int) -> Any:
        loss = model(own(number)).square().mean() * (torch.inf if number == 0 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return model, step


def always_skipped_by_a_scaler(_: DeviceMesh) -> tuple[nn.Module, Step]:
    """All surveyed steps overflow, as the first ones do if the scale begins too high."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(DIM, DIM))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def step(number: int) -> Any:
        scaler.scale(model(own(number)).square().mean() * torch.inf).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return model, step


def skipped_beside_another(_: DeviceMesh) -> tuple[nn.Module, Step]:
    """What one optimizer leaves out, in every second step of two micro-batches; another steps in each."""
    torch.manual_seed(0)
    model, critic = DistributedDataParallel(nn.Linear(DIM, DIM)), DistributedDataParallel(nn.Linear(DIM, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def step(number: int) -> Any:
        scaler.scale(model(own(number)).square().mean() * torch.inf).backward()
        critic(own(number + STEPS)).mean().backward()
        of_critic.step()
        of_critic.zero_grad()
        if number % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return model, step


def skipped_by_hand(_: DeviceMesh) -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(DIM, DIM))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> Any:
        loss = model(own(number)).square().mean() * (torch.nan if number == 0 else 1)
        loss.backward()
        if all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None):
            optimizer.step()
        optimizer.zero_grad()

    return model, step


SOUND: dict[str, Program] = {
    program.__name__: program
    for program in (
        *(nan_padding, infinite_mask, zero_gradients, masks_of_ones, equal_counts, one_hot, sparse_rows),
        *(one_seed_reduced, one_seed_gathered, one_seed_scattered, one_prompt, equal_megatron_shards),
        *(replicated_inputs, upcycled_experts, repeated_heads, equal_rows, repeated_buckets),
        *(zero_branch, zero_branch_in_place, dtensor_zero_branch, scaled_by_one, masked_by_ones),
        *(repeated_after_update, idle_expert, identity_permutation),
        *(moe_gather, moe_gather_equal, transposed, reversed_parts, of_the_neighbour, of_the_first),
        *(summed_for_the_neighbour, summed_first_rows, interleaved, summed_interleaved, stacked),
        *(ring_of_equal_blocks, ring_of_broadcasts, ring_of_gathers, skipped_by_a_scaler, skipped_by_hand),
        *(always_skipped_by_a_scaler, skipped_beside_another),
    )
}


def audited(
    program: Program, mesh: DeviceMesh, *, named: bool = True, **given: Any
) -> list[dict[str, Any]] | None:
    """Return what is said of a program's values on rank 0; None elsewhere.

    `named`: audit() is given the model.
    """
    model, step = program(mesh)
    with audit(model if named else None, **given) as session:
        for number in range(STEPS):
            with session.step():
                step(number)
    # What an implicit redistribution's line already says is said no second time.
    report = report_of(session, *KINDS, "implicit-redistribute")
    if report is None:
        return None
    notices = report.tables["notices"].column("kind").to_pylist()
    assert "capture-stopped" not in notices, (program.__name__, report.tables["notices"].to_pylist())
    return [
        {"kind": one.kind, "title": one.title, "severity": one.severity, "confidence": one.confidence}
        | {"parameters": one.parameters, "ranks": one.ranks, "code": one.remedy and one.remedy.code}
        for one in report.findings
        if one.kind in KINDS
    ]


def sound() -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (ranks(),), mesh_dim_names=("tp",))
    return {name: audited(program, mesh, level="survey") for name, program in SOUND.items()}


# -- what is a fault of its own -------------------------------------------------------------------------


def same_start(mesh: DeviceMesh) -> tuple[nn.Module, Step]:
    """Tensor parallelism reset shard by shard, as `samples.wrong_values.same_seed`."""
    return _parallel(mesh, "reset")


def whole_start(mesh: DeviceMesh) -> tuple[nn.Module, Step]:
    """The same, its weights made as a whole and cut."""
    return _parallel(mesh, "whole")


def mended_start(mesh: DeviceMesh) -> tuple[nn.Module, Step]:
    """The same, with what the finding says to do."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    from shardtoll.samples.wrong_values.same_seed import Net

    model, step = _parallel(mesh, "reset")
    names = {
        "torch": torch,
        "model": model,
        "build_model": Net,
        "seed": 7,
        "StateDictOptions": StateDictOptions,
        "set_model_state_dict": set_model_state_dict,
    }
    exec(REMEDIES["identical-shards"], names)
    return model, step


REMEDIES: dict[str, str] = {}
"""Remedies that programs execute, by kind; the test that found them puts them here."""


def _parallel(_: DeviceMesh, variant: str) -> tuple[nn.Module, Step]:
    from shardtoll.samples.strategies.common import Options
    from shardtoll.samples.wrong_values.same_seed import VARIANTS

    job = VARIANTS[variant](Options(), torch.device("cpu"))
    return job.model, job.step


def overshooting(_: DeviceMesh) -> tuple[nn.Module, Step]:
    """Every gradient is infinite or NaN from the second step on."""
    from shardtoll.samples.strategies.common import Options
    from shardtoll.samples.wrong_values.too_fast import regression

    job = regression(Options(), torch.device("cpu"))
    job.step(0)
    return job.model, job.step


def nan_on_one_rank(_: DeviceMesh) -> tuple[nn.Module, Step]:
    """One element of one gradient is NaN on the last rank, and the optimizer uses it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIM, DIM), nn.Linear(DIM, 4 * DIM))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> Any:
        model(own(number)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if number == 1 and rank() == ranks() - 1:
            model[1].weight.grad[3, 5] = torch.nan
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def faults() -> dict[str, Any]:
    """Return what is said of each, at the default level and with all checks."""
    mesh = init_device_mesh("cpu", (ranks(),), mesh_dim_names=("tp",))
    checks = ("gradients", "replicas")
    told = {
        f"{program.__name__}{' checked' if given else ''}": audited(program, mesh, **given)
        for program in (same_start, whole_start, overshooting, nan_on_one_rank)
        for given in ({}, {"checks": checks})
    }
    for program in (same_start, whole_start):
        told[f"{program.__name__} unnamed"] = audited(program, mesh, named=False)
    code = next((one["code"] for one in told["same_start"] or () if one["kind"] == "identical-shards"), None)
    codes = [code]
    dist.broadcast_object_list(codes)
    if codes[0] is not None:
        REMEDIES["identical-shards"] = codes[0]
        told["mended_start checked"] = audited(mended_start, mesh, checks=checks)
    return told
