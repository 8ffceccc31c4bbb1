"""What a rank's training thread does in a step, for each way to shard."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from synthetic.layers import GEMM, autograd, backward, compute, extra, group_name, layer_of, trouble, world
from synthetic.pipeline import chain, pipeline
from synthetic.rank import COMM_STREAM, COPY_STREAM, LOOKALIKE, Arrival, Program, Rank
from synthetic.spec import US
from synthetic.words import Call

_LOOKALIKE: Final = "void my_lib::fast_allreduce_push_kernel<__nv_bfloat16>(__nv_bfloat16*, int)"
_ADAM: Final = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4> >"
    "(FusedAdamMathFunctor<float, 4>)"
)


def train(rank: Rank) -> Program:
    """Run all steps of a rank."""
    spec = rank.spec
    body = {"ddp": _ddp, "fsdp": _fsdp, "tp": _tp, "pipeline": pipeline, "chain": chain}[spec.strategy]
    for step in range(spec.steps):
        rank.step = step
        start = rank.now
        if spec.steps_marked:
            with rank.annotation(f"ProfilerStep#{step}"):
                yield from _step(rank, body)
        else:
            yield from _step(rank, body)
        rank.work.steps.append((step, start, rank.now))
    rank.runtime("cudaDeviceSynchronize", max(rank.drained_ns - rank.now, 0) + 2 * US, 165)


def _step(rank: Rank, body: Callable[[Rank], Program]) -> Program:
    with rank.frame("train.py(40): train_step"):
        _fetch(rank)
        yield from body(rank)
        trouble(rank, "sync", rank.spec.sync_ns)
        with rank.frame("train.py(52): optimise"), rank.annotation("Optimizer.step#AdamW.step"):
            for _ in range(2):
                rank.kernel("aten::_fused_adamw_", _ADAM, rank.spec.kernel_ns)
        if rank.spec.lookalike_ns:
            rank.kernel("my_lib::exchange", _LOOKALIKE, rank.spec.lookalike_ns, LOOKALIKE)


def _fetch(rank: Rank) -> None:
    """Fetch a batch and copy it to the device."""
    with rank.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
        lost = rank.spec.data_ns + extra(rank, "data")
        rank.pause("data", (rank.drained_ns + lost) if lost else rank.now + 40 * US)
    with rank.frame("train.py(44): to_device"):
        lost = rank.spec.copy_ns + extra(rank, "copy")
        rank.wait(7, rank.copy(2 << 20, 80 * US, COPY_STREAM))
        if lost:
            rank.copy(lost * 24, lost, 7)


def _forward(rank: Rank) -> None:
    for layer in range(rank.spec.layers):
        with layer_of(rank, layer):
            compute(rank, layer, False)
    trouble(rank, "host", 0)


def _ddp(rank: Rank) -> Program:
    """All-reduce of buckets behind the backward pass."""
    spec = rank.spec
    with rank.annotation("DistributedDataParallel.forward"), rank.frame("nn.Module: Net_0", module=True):
        _forward(rank)
    buckets = spec.collectives if spec.collectives is not None else max(spec.layers // 2, 1)
    cuts = {round((bucket + 1) * spec.layers / max(buckets, 1)) - 1: 0 for bucket in range(buckets)}
    for bucket in range(buckets):
        cuts[round((bucket + 1) * spec.layers / buckets) - 1] += 1
    call = Call("all_reduce", group_name(rank, 0), world(rank), spec.comm_bytes, "Float")
    ended = 0
    with autograd(rank):
        for number, layer in enumerate(reversed(range(spec.layers))):
            backward(rank, layer)
            for _ in range(cuts.get(number, 0)):
                ended = yield from rank.collective(call)
        yield from _pairs(rank, ended)
    rank.wait(7, ended)


def _pairs(rank: Rank, before_ns: int = 0) -> Program:
    """Run pairs of independent collectives of two groups, one after the other on one stream."""
    spec = rank.spec
    if spec.serialized:
        rank.wait(7, before_ns)
    for _ in range(spec.serialized):
        ended = 0
        for number, size in ((1, spec.comm_bytes), (2, spec.comm_bytes * 5 // 8)):
            name = group_name(rank, number)
            call = Call("all_reduce", name, world(rank), size, "Float", f"extra_{number}")
            ended = yield from rank.collective(call, COMM_STREAM + 8)
        rank.wait(7, ended)
        rank.kernel("aten::mm", GEMM, spec.kernel_ns)


def _fsdp(rank: Rank) -> Program:
    """Gather each layer's parameters one layer ahead; scatter its gradients behind the backward pass."""
    spec = rank.spec
    gather = Call("all_gather", group_name(rank, 0), world(rank), spec.comm_bytes)
    scatter = Call("reduce_scatter", group_name(rank, 0), world(rank), spec.comm_bytes)

    def gathered(layer: int) -> Generator[Arrival, int, int]:
        with rank.annotation(f"FSDP::all_gather (layers.{layer})"):
            return (yield from rank.collective(gather))

    with rank.frame("nn.Module: Net_0", module=True):
        ended = yield from gathered(0)
        for layer in range(spec.layers):
            with layer_of(rank, layer):
                with rank.annotation(f"FSDP::pre_forward (layers.{layer})"):
                    rank.wait(7, ended)
                if layer + 1 < spec.layers:
                    ended = yield from gathered(layer + 1)
                compute(rank, layer, False)
    trouble(rank, "host", 0)
    with autograd(rank):
        ended, scattered = (yield from gathered(spec.layers - 1)), 0
        for layer in reversed(range(spec.layers)):
            with rank.annotation(f"FSDP::pre_backward (layers.{layer})"):
                rank.wait(7, ended)
            if layer:
                ended = yield from gathered(layer - 1)
            backward(rank, layer)
            with rank.annotation(f"FSDP::post_backward_reduce (layers.{layer})"):
                scattered = yield from rank.collective(scatter, COMM_STREAM + 4)
        yield from _pairs(rank, scattered)
    rank.wait(7, scattered)


def _tp(rank: Rank) -> Program:
    """All-reduce after each layer in both directions; the next layer needs it at once."""
    spec = rank.spec
    call = Call("all_reduce", group_name(rank, 1), world(rank), spec.comm_bytes, "BFloat16", "mesh_tp")
    with rank.frame("nn.Module: Net_0", module=True):
        for layer in range(spec.layers):
            with layer_of(rank, layer):
                compute(rank, layer, False)
                rank.wait(7, (yield from rank.collective(call)))
    trouble(rank, "host", 0)
    with autograd(rank):
        for layer in reversed(range(spec.layers)):
            backward(rank, layer)
            rank.wait(7, (yield from rank.collective(call)))
        yield from _pairs(rank)
