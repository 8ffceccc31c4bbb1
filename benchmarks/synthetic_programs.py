"""What a rank's training thread does in a step, for each way to shard."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final

from synthetic_rank import COMM_STREAM, COPY_STREAM, LOOKALIKE, Arrival, Program, Rank
from synthetic_spec import US
from synthetic_words import Call

_GEMM: Final = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
_MUL: Final = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl"
    "(at::TensorIteratorBase&)::{lambda()#1}, std::array<char*, 2ul> >"
    "(int, at::native::GeluCUDAKernelImpl, std::array<char*, 2ul>)"
)
_LOOKALIKE: Final = "void my_lib::fast_allreduce_push_kernel<__nv_bfloat16>(__nv_bfloat16*, int)"
_ADAM: Final = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4> >"
    "(FusedAdamMathFunctor<float, 4>)"
)


def world(rank: Rank) -> tuple[int, ...]:
    """Return all ranks of the job."""
    return tuple(range(rank.spec.ranks))


def group_name(rank: Rank, number: int) -> str:
    """Return a group's name; jobs with another port have others."""
    return str(number + 10 * rank.spec.port)


def train(rank: Rank) -> Program:
    """Run all steps of a rank."""
    spec = rank.spec
    body = {"ddp": _ddp, "fsdp": _fsdp, "tp": _tp, "pipeline": _pipeline}[spec.strategy]
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
        _trouble(rank, "sync", rank.spec.sync_ns)
        with rank.frame("train.py(52): optimise"), rank.annotation("Optimizer.step#AdamW.step"):
            for _ in range(2):
                rank.kernel("aten::_fused_adamw_", _ADAM, rank.spec.kernel_ns)
        if rank.spec.lookalike_ns:
            rank.kernel("my_lib::exchange", _LOOKALIKE, rank.spec.lookalike_ns, LOOKALIKE)


def _extra(rank: Rank, cause: str) -> int:
    """Return what the rank loses for this cause because it is the straggler."""
    spec = rank.spec
    return spec.extra_ns if spec.straggler == rank.rank and spec.cause == cause else 0


def _fetch(rank: Rank) -> None:
    """Fetch a batch and copy it to the device."""
    with rank.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
        lost = rank.spec.data_ns + _extra(rank, "data")
        rank.pause("data", (rank.drained_ns + lost) if lost else rank.now + 40 * US)
    with rank.frame("train.py(44): to_device"):
        lost = rank.spec.copy_ns + _extra(rank, "copy")
        rank.wait(7, rank.copy(2 << 20, 80 * US, COPY_STREAM))
        if lost:
            rank.copy(lost * 24, lost, 7)


def _trouble(rank: Rank, cause: str, lost: int) -> None:
    """Lose time on the host: `sync` reads a value from the device first, `host` does not."""
    lost += _extra(rank, cause)
    if not lost:
        return
    if cause == "sync":
        with rank.frame("train.py(49): log_loss"):
            begun = rank.now
            with rank.op("aten::item"), rank.op("aten::_local_scalar_dense"):
                rank.runtime("cudaMemcpyAsync", 3 * US, 41)
                rank.synchronise()
            rank.now += lost
            rank.work.pauses.append((begun, rank.now, "sync"))
        return
    rank.pause("host", rank.drained_ns + lost)


def _compute(rank: Rank, layer: int, backward: bool, share: float = 1.0) -> None:
    """Launch the kernels of a layer in one direction; the straggler's extra time is in the middle layer."""
    spec = rank.spec
    times = round(spec.kernel_ns * (2 if backward else 1) * share)
    for number in range(spec.kernels):
        name, op = (_MUL, "aten::gelu") if number % 3 == 2 else (_GEMM, "aten::mm")
        rank.kernel(op, name, times)
    slow = _extra(rank, "backward" if backward else "forward")
    if slow and layer == spec.layers // 2:
        rank.kernel("aten::mm", _GEMM, round(slow * share))


@contextmanager
def _layer(rank: Rank, layer: int) -> Iterator[None]:
    with rank.frame(f"nn.Module: Block_{layer}", module=True):
        yield


@contextmanager
def _autograd(rank: Rank) -> Iterator[None]:
    """Run the body on the autograd thread while the training thread waits."""
    with rank.frame("torch/_tensor.py(570): backward"):
        main, rank.thread = rank.thread, rank.thread + 500
        ops, rank._ops = rank._ops, []
        frames, rank._frames = rank._frames, []
        yield
        rank.thread, rank._ops, rank._frames = main, ops, frames


def _backward(rank: Rank, layer: int, share: float = 1.0) -> None:
    """Run a layer backward, its forward again first where the job recomputes."""
    if not rank.spec.recompute:
        with rank.op("autograd::engine::evaluate_function: AddmmBackward0"):
            _compute(rank, layer, True, share)
        return
    with rank.op("autograd::engine::evaluate_function: CheckpointFunctionBackward"):
        with rank.op("CheckpointFunctionBackward"):
            with rank.frame("torch/utils/checkpoint.py(290): backward"), _layer(rank, layer):
                before = len(rank.work.start_ns)
                _compute(rank, layer, False, share)
                work = rank.work
                rows = range(before, len(work.start_ns))
                again = sum(work.end_ns[row] - work.start_ns[row] for row in rows)
                rank.work.recompute_ns[rank.step] = rank.work.recompute_ns.get(rank.step, 0) + again
            with rank.op("autograd::engine::evaluate_function: AddmmBackward0"):
                _compute(rank, layer, True, share)


def _forward(rank: Rank) -> None:
    for layer in range(rank.spec.layers):
        with _layer(rank, layer):
            _compute(rank, layer, False)
    _trouble(rank, "host", 0)


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
    with _autograd(rank):
        for number, layer in enumerate(reversed(range(spec.layers))):
            _backward(rank, layer)
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
        rank.kernel("aten::mm", _GEMM, spec.kernel_ns)


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
            with _layer(rank, layer):
                with rank.annotation(f"FSDP::pre_forward (layers.{layer})"):
                    rank.wait(7, ended)
                if layer + 1 < spec.layers:
                    ended = yield from gathered(layer + 1)
                _compute(rank, layer, False)
    _trouble(rank, "host", 0)
    with _autograd(rank):
        ended, scattered = (yield from gathered(spec.layers - 1)), 0
        for layer in reversed(range(spec.layers)):
            with rank.annotation(f"FSDP::pre_backward (layers.{layer})"):
                rank.wait(7, ended)
            if layer:
                ended = yield from gathered(layer - 1)
            _backward(rank, layer)
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
            with _layer(rank, layer):
                _compute(rank, layer, False)
                rank.wait(7, (yield from rank.collective(call)))
    _trouble(rank, "host", 0)
    with _autograd(rank):
        for layer in reversed(range(spec.layers)):
            _backward(rank, layer)
            rank.wait(7, (yield from rank.collective(call)))
        yield from _pairs(rank)


def _pipeline(rank: Rank) -> Program:
    """All microbatches forward, then all backward; each rank is one stage."""
    spec, me, last = rank.spec, rank.rank, rank.spec.ranks - 1
    name = group_name(rank, 1)

    def move(op: str, peer: int) -> Program:
        call = Call(op, name, world(rank), spec.comm_bytes, "BFloat16", "mesh_pp", peer)
        if spec.transport == "host":
            yield from rank.hand_over(call)
            return
        stream = COMM_STREAM + 4 * (peer > me) + (8 if op == "recv" else 0)
        ended = yield from rank.collective(call, stream)
        if op == "recv":
            rank.wait(7, ended)

    start = rank.now
    for number in range(spec.microbatches):
        with rank.annotation(f"Forward {number}"):
            if me > 0:
                yield from move("recv", me - 1)
            for layer in range(spec.layers):
                with _layer(rank, layer):
                    _compute(rank, layer, False)
            if me < last:
                yield from move("send", me + 1)
    _trouble(rank, "host", 0)
    for number in range(spec.microbatches):
        with rank.annotation(f"Backward {number}"):
            if me < last:
                yield from move("recv", me + 1)
            with _autograd(rank):
                for layer in reversed(range(spec.layers)):
                    _backward(rank, layer)
            if me > 0:
                yield from move("send", me - 1)
    rank.work.pauses.append((start, rank.now, "bubble"))
