"""Remedies for communication that nothing hides, by who asked for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from msgspec import Struct

from shardtoll.analyzers.findings.needless.latency_bound import TINY_BYTES
from shardtoll.analyzers.shared.ddp_options import no_buffers
from shardtoll.analyzers.shared.fsdp_blocks import LATENCY_BELOW_BYTES, too_small_shards
from shardtoll.analyzers.shared.remedy_code import CALLS, OBJECT_CALLS, call
from shardtoll.ledger import Remedy
from shardtoll.ledger.records import ddp_causes

COUNTERFACTUAL: Final = "full overlap: the same transfers hidden behind the step's compute"
SELDOM: Final = "a step that leaves them out"
"""The saving if the remedy is to do it in one step of many: no compute need hide it then."""


class _Advice(Struct, frozen=True):
    cause: str
    """Beginning of the cause, as `FSDP.unshard`."""
    op: str | None
    phase: str | None
    text: str
    code: str | None = None
    only_hides: bool = False
    """Whether all that it does is to start the collective earlier."""


_SHARD_EACH_BLOCK: Final = (
    "for block in model.layers:  # the model's own list of blocks\n"
    "    fully_shard(block)\n"
    "fully_shard(model)  # last: what no block holds"
)
_WRAP_EACH_BLOCK: Final = (
    "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n\n"
    "FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}))  # class of the blocks"
)
_WIDE: Final = ("float32", "complex64")
"""Types of which bf16 is half as wide."""
_TENSOR_PARALLEL: Final = ("RowwiseParallel", "ColwiseParallel", "SequenceParallel", "PrepareModule")
"""Styles of tensor parallelism. If they gather and scatter, sequences are sharded already."""

_ADVICE: Final = (
    _Advice(
        "FSDP.unshard",
        None,
        "backward",
        "Gather the next block's parameters while this one's backward computes.",
        "block.set_modules_to_backward_prefetch([previous_block])",
    ),
    _Advice(
        "FSDP.unshard",
        None,
        None,
        "Gather the next block's parameters while this one computes.",
        "block.set_modules_to_forward_prefetch([next_block])",
    ),
    *(
        _Advice(
            cause,
            None,
            None,
            "Shard smaller blocks: then gradients of one are reduced while backward computes the next. With "
            "gradient accumulation, reduce on the last micro-batch only.",
            code,
        )
        for cause, code in (("FSDP1", _WRAP_EACH_BLOCK), ("FSDP", _SHARD_EACH_BLOCK))
    ),
    _Advice(
        "DeepSpeed.ZeRO-3.gather",
        None,
        None,
        "Let DeepSpeed gather the next modules' parameters while this one computes, and keep small ones.",
        'config["zero_optimization"] |= {\n'
        '    "stage3_prefetch_bucket_size": 50_000_000, "stage3_param_persistence_threshold": 100_000\n'
        "}",
    ),
    *(
        _Advice(
            f"DeepSpeed.ZeRO-{stage}.reduce",
            None,
            None,
            "Let DeepSpeed reduce one bucket while backward computes the next; smaller buckets start sooner.",
            'config["zero_optimization"] |= {"overlap_comm": True, "reduce_bucket_size": 50_000_000}',
        )
        for stage in (1, 2, 3)
    ),
    _Advice(
        ddp_causes.USED_PARAMETERS,
        None,
        None,
        "Turn the search off if every backward reaches all parameters. It reduces a map of the parameters "
        "that backward reached, after the last gradient.",
        "DistributedDataParallel(model, find_unused_parameters=False)",
    ),
    _Advice(
        ddp_causes.DDP,
        "broadcast",
        None,
        "Survey later steps too: DDP sends this message once, in the first steps, to agree on its buckets. "
        "If a rank is late, the waiting moves to the next collective.",
        'with audit(model, level="schedule") as session:  # surveys later steps too\n    ...',
    ),
    *(
        _Advice(
            style,
            "all_reduce",
            None,
            "Use sequence parallelism, as the next operator needs this result: its halves (reduce_scatter, "
            "all_gather) can be pipelined with the neighbouring matmuls. Keep the dimension inside a node.",
            'parallelize_module(block, mesh["tp"], {"norm": SequenceParallel()})',
        )
        for style in _TENSOR_PARALLEL
    ),
    *(
        _Advice(
            style,
            None,
            None,
            "Pipeline an all_gather or a reduce_scatter with its matmul by symmetric memory, compiled: "
            "else overlap is hard, as the matmul needs the result. Keep the dimension inside a node.",
            "from torch.distributed._symmetric_memory import enable_symm_mem_for_group\n\n"
            "torch._inductor.config._micro_pipeline_tp = True  # on one node's GPUs, with torch.compile\n"
            'enable_symm_mem_for_group(mesh["tp"].get_group().group_name)',
        )
        for style in _TENSOR_PARALLEL
    ),
    *(
        _Advice(
            function,
            None,
            None,
            "Send objects in one step of many, or their numbers as one tensor in every step. The host "
            "pickles objects, and their sizes are exchanged first.",
            f"if step % 100 == 0:\n    dist.{code}",
        )
        for function, code in OBJECT_CALLS.items()
    ),
    _Advice(
        "DTensor.redistribute",
        None,
        None,
        "Keep the tensor as it is if the operators after it work on shards, as elementwise ones, norms and "
        "most matmuls do. Else start the redistribution earlier, with async_op=True.",
        "x = x.redistribute(placements=placements, async_op=True)\n...  # what does not need x",
    ),
    _Advice(
        "DTensor.full_tensor",
        None,
        None,
        "Log every so many steps, or sum the local part and reduce one number: full_tensor() gathers a whole "
        "tensor here.",
        "if step % 100 == 0:\n    total = x.to_local().sum()\n    dist.all_reduce(total)\n"
        "    log(total.item() / x.numel())",
    ),
    *(
        _Advice(
            op,
            op,
            "other",
            "Log every so many steps, or reduce only the few logged numbers. A whole tensor is gathered "
            "here outside the model's passes.",
            f"if step % 100 == 0:\n    {call(op)}",
        )
        for op in ("all_gather", "gather")
    ),
    *(
        _Advice(
            "",
            op,
            None,
            "Post the receive before other work, and send as soon as the tensor is ready. "
            "Time that waits for the other end goes only if that end is earlier.",
            f"work = dist.{call}(tensor, {end}=other_rank)\n...  # other work\nwork.wait()",
        )
        for op, call, end in (("send", "isend", "dst"), ("recv", "irecv", "src"))
    ),
    *(
        _Advice(
            "",
            op,
            "backward",
            "Start the collective with async_op=True as soon as its tensor is ready, and wait for it just "
            "before its first use.",
            f"work = {call(op, asynchronous=True)}\n...  # other work\nwork.wait()",
            only_hides=True,
        )
        for op in CALLS
    ),
    *(
        _Advice(
            "",
            op,
            None,
            "Start the collective earlier, with async_op=True, and compute something else before waiting "
            "for it.",
            f"work = {call(op, asynchronous=True)}\n...  # what does not need it\nwork.wait()",
            only_hides=True,
        )
        for op in (*CALLS, None)
    ),
)


LEAST_BUCKET_BYTES: Final = 1 << 20
"""DDP's own first bucket (torch: `_DEFAULT_FIRST_BUCKET_BYTES`): smaller ones cost more than they hide."""


def _smaller_buckets(message_bytes: int | None) -> Remedy:
    """Return advice for a DDP bucket of that size."""
    if message_bytes is not None and message_bytes < LATENCY_BELOW_BYTES:
        return Remedy(
            text="Give each step more work (a larger batch, or accumulation with `no_sync`). "
            "Backward's last bucket has nothing to hide behind, and its time is latency. Smaller "
            "buckets would "
            "not help.",
            code="with contextlib.nullcontext() if last_micro_batch else ddp.no_sync():\n"
            "    loss_of(ddp(batch)).backward()",
            counterfactual=COUNTERFACTUAL,
        )
    if message_bytes is None or message_bytes < 2 * LEAST_BUCKET_BYTES:
        return Remedy(
            text="Use a larger batch, or reduce in bf16: backward's last bucket has nothing to hide "
            "behind, and this one is small already. Smaller buckets would not help.",
            code="from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks\n\n"
            "ddp.register_comm_hook(dist.group.WORLD, hooks.bf16_compress_hook)  # a choice about numerics",
            counterfactual=COUNTERFACTUAL,
        )
    half_mib = message_bytes / 2 / (1 << 20)
    return Remedy(
        text=f"Use smaller buckets: one of {message_bytes / 1e6:.3g} MB waits for its last gradient. Smaller "
        "ones are reduced while backward goes on; only the last has nothing left to hide behind.",
        code=f"DistributedDataParallel(model, bucket_cap_mb={half_mib:.3g})",
        counterfactual=COUNTERFACTUAL,
    )


def _larger_blocks(cause: str, message_bytes: int, count: int) -> Remedy:
    """Return advice for blocks so small that FSDP's messages are latency."""
    code = _WRAP_EACH_BLOCK if cause.startswith("FSDP1") else _SHARD_EACH_BLOCK
    return Remedy(
        text=f"Shard larger blocks, as whole transformer layers in place of each linear layer: "
        f"{count} messages of {message_bytes / 1e3:.3g} kB take their latency {count} times.",
        code=code,
        counterfactual="one message of the same bytes: one latency, and what the bytes take",
    )


EXCHANGES: Final = frozenset(CALLS) - {"send", "recv", "barrier"}
"""Ops by which flags, counts and losses are exchanged."""


def _tiny(op: str, message_bytes: int) -> Remedy:
    """Return advice for a few numbers that are exchanged in every step."""
    return Remedy(
        text=f"Reduce flags, counts and logged losses only every so many steps. Or put several values "
        f"into one message: {message_bytes:,} bytes are latency, and waiting for others.",
        code=f"if step % 10 == 0:\n    {call(op)}",
        counterfactual=COUNTERFACTUAL,
    )


def _buffers(torch: str | None) -> Remedy:
    """Return advice for DDP's broadcasts of buffers."""
    return Remedy(
        text="Turn the broadcast of buffers off if they are equal on all ranks: DDP sends them in every "
        "forward.",
        code=no_buffers(torch),
        counterfactual=COUNTERFACTUAL,
    )


def sending_less(async_remedy: Remedy, free: str, dtype: str | None) -> Remedy:
    """Return advice for transfers that no compute can hide: `free` is how long it computes, in words.

    `dtype`: of the messages, None if it is not known or differs.
    """
    how = " (bf16 halves it)" if dtype in _WIDE else ""
    return replace(
        async_remedy,
        text=f"Send less{how}, or use a larger batch: only {free} of compute could hide it. "
        f"{async_remedy.text}",
    )


def can_only_hide(cause: str, op: str, phase: str, message_bytes: int | None = None) -> bool:
    """Return whether all that the advice for these (see `remedy`) does is to start the collective earlier."""
    special = cause in (ddp_causes.BUFFERS, ddp_causes.REDUCER) or _is_tiny(cause, op, phase, message_bytes)
    return not special and _fitting(cause, op, phase).only_hides


def _is_tiny(cause: str, op: str, phase: str, message_bytes: int | None) -> bool:
    by_itself = cause == op and op in EXCHANGES and phase != "backward"
    return by_itself and message_bytes is not None and message_bytes <= TINY_BYTES


def _fitting(cause: str, op: str, phase: str) -> _Advice:
    for advice in _ADVICE:
        fits_op = advice.op is None or advice.op == op
        fits_phase = advice.phase is None or advice.phase == phase
        if cause.startswith(advice.cause) and fits_op and fits_phase:
            return advice
    raise AssertionError("the last advice fits everything")


def remedy(
    cause: str,
    op: str,
    phase: str,
    message_bytes: int | None = None,
    torch: str | None = None,
    *,
    count: int = 1,
) -> Remedy:
    """Return the first advice that fits the cause (`FSDP.unshard`, `all_reduce`, ...), op and phase.

    `message_bytes` is the size of one message; advice on the size of buckets and blocks depends on it, and
    on the `count` of them per step. `torch`: the run's.
    """
    if message_bytes is not None and too_small_shards(cause, message_bytes, count):
        return _larger_blocks(cause, message_bytes, count)
    if cause == ddp_causes.BUFFERS:
        return _buffers(torch)
    if cause == ddp_causes.REDUCER:
        return _smaller_buckets(message_bytes)
    if message_bytes is not None and _is_tiny(cause, op, phase, message_bytes):
        return _tiny(op, message_bytes)
    advice = _fitting(cause, op, phase)
    return Remedy(text=advice.text, code=advice.code, counterfactual=COUNTERFACTUAL)
