"""The samples that spread a model (not its data) over ranks, run under an audit for the tests."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.samples.strategies import common
from shardtoll.samples.strategies.transformer import Sizes, loss_of
from tests.live.abilities import BATCHED_FUNCTIONAL_MESSAGES, STAGES_NEXT_TO_EACH_OTHER
from tests.live.told_kinds import kinds_of

CPU = torch.device("cpu")
LAST = 2
"""Number of the last audited step, the one whose rows come back; steps are numbered from 1 in the samples."""


def options(sizes: dict[str, int]) -> common.Options:
    return common.Options(sizes=Sizes(**sizes), steps=LAST)


def run(sizes: dict[str, int], sample: str, variants: list[str]) -> dict[str, Any]:
    """Train each variant of a sample; losses of this rank, and on rank 0 the bill of the last step."""
    module = importlib.import_module(f"shardtoll.samples.strategies.{sample}")
    return {variant: train(module.VARIANTS[variant], options(sizes)) for variant in variants}


def train(build: common.Build, chosen: common.Options) -> dict[str, Any]:
    job = build(chosen, CPU)
    session, losses = common.train(job, chosen)
    found: dict[str, Any] = {"losses": [float(loss.detach()) if loss.numel() else None for loss in losses]}
    if session.ledger is not None:
        tables = {name: table.to_pylist() for name, table in session.ledger.tables.items()}
        last = max(step["step"] for step in tables["steps"])
        found["collectives"] = [c for c in tables["collectives"] if c["step"] == last]
        found["steps"] = tables["steps"]
        found["all_collectives"] = [
            {key: c[key] for key in ("step", "rank", "exposed_ns")} for c in tables["collectives"]
        ]
        found["computes"] = [
            {key: c[key] for key in ("rank", "op", "module", "phase")}
            for c in tables["computes"]
            if c["step"] == last
        ]
        found["counts"] = tables["counts"]
        found["notices"] = [notice["text"] for notice in tables["notices"]]
        found["mesh"] = dict(session.ledger.run.mesh)
        found["groups"] = {g.name: list(g.ranks) for g in session.ledger.groups}
        found["kinds"] = kinds_of(session.ledger)
    return found


def one_device(chosen: common.Options, shares: int) -> list[float]:
    """Losses of the model on one device, trained on the batches of `shares` data-parallel ranks at once."""
    model = chosen.model(CPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number in range(chosen.steps + 1):
        batches = [chosen.batch(number, CPU, rank=share) for share in range(shares)]
        tokens = torch.cat([batch.tokens for batch in batches])
        targets = torch.cat([batch.targets for batch in batches])
        loss = loss_of(model(tokens), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def tensor_parallel(sizes: dict[str, int]) -> dict[str, Any]:
    """Every plan, and what torch's own CommDebugMode counts in a step of it; on four ranks 2-D too."""
    from torch.distributed.tensor.debug import CommDebugMode

    from shardtoll.samples.strategies import tensor_parallel as sample
    from shardtoll.samples.strategies import two_d

    found = run(sizes, "tensor_parallel", list(sample.VARIANTS))
    for variant, build in sample.VARIANTS.items():
        job = build(options(sizes), CPU)
        job.step(0)
        with CommDebugMode() as counter:
            job.step(1)
        found[variant]["torch_counts"] = {
            str(op).rpartition(".")[2]: count for op, count in counter.get_comm_counts().items() if count
        }
    if dist.get_world_size() == 4:
        found["two_d"] = run(sizes, "two_d", list(two_d.VARIANTS))
    return found


def pipelines(sizes: dict[str, int]) -> dict[str, Any]:
    """Every schedule; with its bubble at best, and the messages it says that this rank exchanges."""
    from shardtoll.samples.strategies import pipeline
    from shardtoll.samples.strategies.bubble import actions_of, ideal_bubble

    chosen = replace(options(sizes), sequences=2 * dist.get_world_size())
    found = {"sleeping": sleeping_pipeline()}
    for name, kind in pipeline.PIPELINES.items():
        if name == "zero_bubble" and not STAGES_NEXT_TO_EACH_OTHER:
            continue
        schedule: Any = kind.make(chosen, CPU)[1]
        found[name] = {
            **train(kind, chosen),
            "ideal": ideal_bubble(actions_of(schedule)),
            "planned": [
                [action.computation_type.name, action.stage_index]
                for action in getattr(schedule, "pipeline_order_with_comms", {}).get(dist.get_rank(), [])
            ],
            "last_forwards": [
                action.microbatch_index
                for action in (schedule._get_pipeline_order() or {}).get(dist.get_world_size() - 1, [])
                if action is not None and action.computation_type.name == "FORWARD"
            ]
            if name == "1f1b"
            else [],
        }
    return found


class _Sleep(torch.autograd.Function):
    """Takes as long as it is told to in forward, and twice that in backward, without any core."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        time.sleep(2 * ctx.seconds)
        return grad, None


class _Sleeper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Sleep.apply(x * self.scale, 0.02)  # type: ignore[no-any-return, no-untyped-call]


def sleeping_pipeline() -> dict[str, Any]:
    """GPipe of stages that only sleep: the bubble at best, and what was measured of it on each rank."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    from shardtoll.profiler import audit
    from shardtoll.samples.strategies.bubble import actions_of, ideal_bubble, measured_bubble

    rank, ranks = dist.get_rank(), dist.get_world_size()
    module = _Sleeper()
    stage = PipelineStage(module, rank, ranks, CPU)
    schedule = ScheduleGPipe(stage, n_microbatches=ranks, loss_fn=lambda out, target: (out - target).mean())
    x, target = torch.ones(ranks, 4), torch.zeros(ranks, 4)

    def step() -> None:
        inputs = (x,) if rank == 0 else ()
        kwargs = {"target": target} if rank == ranks - 1 else {}
        schedule.step(*inputs, **kwargs)

    step()
    with audit(module, level="survey") as session:
        for _ in range(3):
            with session.step():
                step()
    report = session.report()
    if report is None:
        return {}
    measured = measured_bubble(report)
    return {
        "ideal": ideal_bubble(actions_of(schedule)),
        "measured": [measured[rank] for rank in range(ranks)],
    }


def experts(sizes: dict[str, int]) -> dict[str, Any]:
    """Both routers; with how many tokens this rank had for each expert, layer by layer, in the last step."""
    from shardtoll.samples.strategies import expert_parallel as sample

    sent: list[list[int]] = []

    def count(module: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        with torch.no_grad():
            scores = module.router(inputs[0].flatten(0, 1))
            scores[:, 0] += module.bias
            sent.append(scores.argmax(-1).bincount(minlength=scores.shape[1]).tolist())

    found = {}
    for name, build in sample.VARIANTS.items():

        def watched(chosen: common.Options, device: torch.device, build: common.Build = build) -> common.Job:
            job = build(chosen, device)
            for module in job.model.modules():
                if isinstance(module, sample.Experts):
                    module.register_forward_pre_hook(count)
            return job

        found[name] = {**train(watched, options(sizes)), "sent": sent[-sizes["layers"] :]}
    return found


def contexts(sizes: dict[str, int]) -> dict[str, Any]:
    """What runs on the CPU; what torch says to the rest; and the collectives of torch's own ring."""
    from torch.distributed.tensor.experimental._context_parallel import _attention

    from shardtoll.profiler import audit
    from shardtoll.samples.strategies import context_parallel as sample

    found = {name: train(sample.VARIANTS[name], options(sizes)) for name in ("ulysses", "gather")}
    torch.manual_seed(0)
    whole = [torch.randn(2, 4, 8 * dist.get_world_size(), 8) for _ in range(3)]
    query, key, value = (x.chunk(dist.get_world_size(), dim=2)[dist.get_rank()] for x in whole)
    # Before the ring: torch 2.11 leaves attention exchanged once it has refused.
    right = nn.functional.scaled_dot_product_attention(*whole).chunk(dist.get_world_size(), dim=2)
    try:
        sample.ring(options(sizes), CPU).step(0)
        found["refused"] = {"text": ""}
    except NotImplementedError as error:
        found["refused"] = {"text": str(error)}
    # torch's ring itself, below the dispatch that the CPU's kernel is missing in.
    _attention._cp_options.enable_load_balance = False
    for method in ("allgather", "alltoall"):
        _attention.set_rotate_method(method)
        with audit(level="survey") as session, session.step():
            out, _ = _attention._templated_ring_attention(
                dist.group.WORLD,
                2,
                torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
                query,
                key,
                value,
            )
        assert torch.allclose(out, right[dist.get_rank()], atol=1e-5)
        tables = {} if session.ledger is None else session.ledger.tables
        found[method] = {name: table.to_pylist() for name, table in tables.items()}
    return found


def compiled(sizes: dict[str, int]) -> dict[str, Any]:
    """Both variants; with how many graphs there were after each step."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    from shardtoll.samples.strategies import compiled as sample

    found = {}
    for name, build in sample.VARIANTS.items():
        graphs: list[int] = []
        torch._dynamo.reset()
        watched = _counting(build, lambda seen=graphs: seen.append(counters["stats"]["unique_graphs"]))
        found[name] = {**train(watched, options(sizes)), "graphs": graphs}
    return found


def _counting(build: common.Build, after_step: Callable[[], None]) -> common.Build:
    """The same job; what it compiles again after its first step is an error."""
    import torch._dynamo

    def watched(chosen: common.Options, device: torch.device) -> common.Job:
        job = build(chosen, device)

        def step(number: int) -> torch.Tensor:
            with torch._dynamo.config.patch(error_on_recompile=number > 0):
                loss = job.step(number)
            after_step()
            return loss

        return replace(job, step=step)

    return watched


def by_hand(sizes: dict[str, int]) -> dict[str, Any]:
    """Every exchange of gradients; a batch of functional messages; what symmetric memory says on the CPU."""
    import torch.distributed._symmetric_memory

    from shardtoll.profiler import audit
    from shardtoll.samples.strategies import point_to_point as sample

    found = {name: train(build, options(sizes)) for name, build in sample.VARIANTS.items()}
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(1, ranks)))
    with audit(level="survey") as session, session.step():
        if rank > 0 and BATCHED_FUNCTIONAL_MESSAGES:
            # Peers are ranks of the group, not of the job.
            inside, others = rank - 1, ranks - 1
            got = torch.zeros(6)
            batch = torch.ops._c10d_functional.batch_p2p_ops(
                ["isend", "irecv"],
                [(inside + 1) % others, (inside - 1) % others],
                [0, 0],
                [torch.full((6,), float(rank)), got],
                group.group_name,
            )
            for tensor in batch:
                torch.ops._c10d_functional.wait_tensor(tensor)
            assert got[0] == (inside - 1) % others + 1
    tables = {} if session.ledger is None else session.ledger.tables
    found["batch"] = {name: table.to_pylist() for name, table in tables.items()}
    name = dist.group.WORLD.group_name
    refused = []
    for call in (
        lambda: torch.ops.symm_mem.one_shot_all_reduce(torch.ones(4), "sum", name),
        lambda: torch.ops.symm_mem.fused_all_gather_matmul(torch.ones(4, 4), [torch.ones(4, 4)], 0, name),
    ):
        try:
            call()
        except NotImplementedError as error:
            refused.append(str(error).splitlines()[0])
    found["refused"] = {"lines": refused}
    return found
