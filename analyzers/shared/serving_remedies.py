"""Remedies for inference: an engine has no backward to hide communication behind, and no training loop."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from shardtoll.analyzers.shared.remedy_code import call


class Advice(Struct, frozen=True):
    """Text and code of a remedy."""

    text: str
    code: str


HOST_SYNC: Final = Advice(
    "Keep sampled tokens on the device: feed them to the next pass there, and copy them to the host behind "
    "it. Engines do that with overlapped scheduling (SGLang by default, vLLM with `--async-scheduling`). "
    "Stop tests and detokenising can lag one token behind.",
    "tokens = logits.argmax(-1)  # stays on the device, input of the next pass\n"
    'on_host = tokens.to("cpu", non_blocking=True)  # read after the next pass was launched',
)
"""The host waits for the device in each pass."""

DATA: Final = Advice(
    "Prepare the next batch while the device serves this one: tokenise in other processes, and schedule one "
    "pass ahead.",
    "next_batch = pool.submit(prepare, waiting)  # while the device works\n"
    "run(batch)\n"
    "batch = next_batch.result()",
)
"""The device waits for its batch."""

LAUNCHES: Final = Advice(
    "Replay passes as CUDA graphs: one launch then starts all kernels of a pass. vLLM does so without "
    "`--enforce-eager`, SGLang without `--disable-cuda-graph`. Capture the batch sizes that you serve: "
    "others run kernel by kernel.",
    "graph = torch.cuda.CUDAGraph()\n"
    "with torch.cuda.graph(graph):  # once per batch size, after a warm-up\n"
    "    logits = model(tokens)\n"
    "graph.replay()  # one launch per pass; new tokens are copied into `tokens` first",
)
"""The host launches the kernels of a pass one by one, more slowly than the device runs them."""

_ALL_REDUCE: Final = Advice(
    "Use a one-shot all_reduce over NVLink (symmetric memory, or the engine's custom all_reduce): messages "
    "of a decode step are small. Or fuse it with the norm that follows, or serve with fewer tensor-parallel "
    "ranks and more replicas. The next layer needs this result, so one batch cannot overlap it.",
    "# x comes from symm_mem.empty(...), after symm_mem.rendezvous(x, group_name)\n"
    'out = torch.ops.symm_mem.one_shot_all_reduce(x, "sum", group_name)',
)
_PIECES: Final = Advice(
    "Pipeline it and the matmul next to it in pieces (symmetric memory): the matmul needs this result. Or "
    "serve with fewer tensor-parallel ranks and more replicas.",
    "torch._inductor.config._micro_pipeline_tp = True  # on one host's GPUs, with torch.compile",
)
_EXPERTS: Final = Advice(
    "Split the batch in two: one half's tokens travel while the other half computes (two-batch overlap). In "
    "decode use the low-latency kernels of the expert exchange.",
    "for half in x.chunk(2):  # combine() after both halves have computed\n"
    "    handles.append(dispatch(half, async_finish=True))",
)
_AGREED: Final = Advice(
    "Let the host agree on the next batch while the device works: one message per pass, on a CPU group.",
    f"work = {call('broadcast', asynchronous=True)}  # group=cpu_group, before the pass that needs it",
)
_EXPOSED: Final = {
    "all_reduce": _ALL_REDUCE,
    "all_gather": _PIECES,
    "reduce_scatter": _PIECES,
    "all_to_all": _EXPERTS,
    "broadcast": _AGREED,
    "gather": _AGREED,
}

_RECORD: Final = (
    "with torch.profiler.profile(with_stack=True) as prof:  # on all ranks, over the same passes\n"
    "    serve(requests)"
)


def exposed(op: str) -> Advice | None:
    """Return what to do about exposed communication of that op; None if it is as in training."""
    return _EXPOSED.get(op)


def late(part: str | None, rank: int) -> Advice | None:
    """Return what to do about a late rank by what it spends longer at; None if it is as in training.

    `part`: one of `lateness.CAUSES`, or None if nothing tells.
    """
    if part is None or part == "began_ns":
        return Advice(
            f"Record more passes, on all ranks, with Python stacks: the trace does not show what rank {rank} "
            "does before it is late.",
            _RECORD,
        )
    if part == "data_ns":
        return DATA
    if part == "sync_ns":
        return HOST_SYNC
    if part in ("between_ns", "host_ns"):
        return Advice(
            f"Move scheduling, detokenising and HTTP into other processes: the host of rank {rank} launches "
            "late. Replay decode steps as CUDA graphs, so that a pass is one launch.",
            f"if dist.get_rank() == {rank}:\n"
            "    faulthandler.dump_traceback_later(0.05, repeat=True)  # where its thread is",
        )
    return None
