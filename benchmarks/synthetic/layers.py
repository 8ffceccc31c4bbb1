"""What a made-up rank computes: layers forward and backward, and what holds it up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from synthetic.rank import Rank
from synthetic.spec import US

GEMM: Final = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
_MUL: Final = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl"
    "(at::TensorIteratorBase&)::{lambda()#1}, std::array<char*, 2ul> >"
    "(int, at::native::GeluCUDAKernelImpl, std::array<char*, 2ul>)"
)


def world(rank: Rank) -> tuple[int, ...]:
    """Return all ranks of the job."""
    return tuple(range(rank.spec.ranks))


def group_name(rank: Rank, number: int) -> str:
    """Return a group's name; jobs with another port have others."""
    return str(number + 10 * rank.spec.port)


def extra(rank: Rank, cause: str) -> int:
    """Return what the rank loses for this cause because it is the straggler."""
    spec = rank.spec
    slow = not spec.slow_steps or rank.step in spec.slow_steps
    return spec.extra_ns if slow and spec.straggler == rank.rank and spec.cause == cause else 0


def trouble(rank: Rank, cause: str, lost: int) -> None:
    """Lose time on the host: `sync` reads a value from the device first, `host` does not."""
    lost += extra(rank, cause)
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


def compute(rank: Rank, layer: int, backward: bool, share: float = 1.0) -> None:
    """Launch the kernels of a layer in one direction; the straggler's extra time is in the middle layer."""
    spec = rank.spec
    times = round(spec.kernel_ns * (2 if backward else 1) * share)
    for number in range(spec.kernels):
        name, op = (_MUL, "aten::gelu") if number % 3 == 2 else (GEMM, "aten::mm")
        rank.kernel(op, name, times)
    slow = extra(rank, "backward" if backward else "forward")
    if slow and layer == spec.layers // 2:
        rank.kernel("aten::mm", GEMM, round(slow * share))


@contextmanager
def layer_of(rank: Rank, layer: int) -> Iterator[None]:
    """Run the body inside the module of a layer."""
    with rank.frame(f"nn.Module: Block_{layer}", module=True):
        yield


@contextmanager
def autograd(rank: Rank) -> Iterator[None]:
    """Run the body on the autograd thread while the training thread waits."""
    with rank.frame("torch/_tensor.py(570): backward"):
        main, rank.thread = rank.thread, rank.thread + 500
        ops, rank._ops = rank._ops, []
        frames, rank._frames = rank._frames, []
        yield
        rank.thread, rank._ops, rank._frames = main, ops, frames


def backward(rank: Rank, layer: int, share: float = 1.0) -> None:
    """Run a layer backward, its forward again first where the job recomputes."""
    if not rank.spec.recompute:
        with rank.op("autograd::engine::evaluate_function: AddmmBackward0"):
            compute(rank, layer, True, share)
        return
    with rank.op("autograd::engine::evaluate_function: CheckpointFunctionBackward"):
        with rank.op("CheckpointFunctionBackward"):
            with rank.frame("torch/utils/checkpoint.py(290): backward"), layer_of(rank, layer):
                before = len(rank.work.start_ns)
                compute(rank, layer, False, share)
                work = rank.work
                rows = range(before, len(work.start_ns))
                again = sum(work.end_ns[row] - work.start_ns[row] for row in rows)
                rank.work.recompute_ns[rank.step] = rank.work.recompute_ns.get(rank.step, 0) + again
            with rank.op("autograd::engine::evaluate_function: AddmmBackward0"):
                compute(rank, layer, True, share)
