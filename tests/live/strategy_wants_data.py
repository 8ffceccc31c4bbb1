"""What each data-parallel sample must put on record, in closed form: every collective of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from shardtoll.samples.strategies import accumulation, ddp
from shardtoll.samples.strategies.transformer import Sizes
from tests.live.strategy_rows import Want, at

SIZES: Final = Sizes()
FLOAT: Final = 4
BLOCK: Final = FLOAT * SIZES.block_elements
REST: Final = FLOAT * SIZES.rest_elements
WHOLE: Final = FLOAT * SIZES.elements
HERE: Final = "samples/strategies/"
COMMON: Final = HERE + "common.py"
FORWARD: Final = at(COMMON, "loss = loss_of(model(batch.tokens)", "step")
BACKWARD: Final = at(COMMON, "loss.backward()", "step")
UPDATE: Final = at(COMMON, "optimizer.step()", "step")
BLOCK_CALL: Final = at(HERE + "transformer.py", "x = block(x)", "forward")


def parameters() -> dict[str, int]:
    """Every parameter of the transformer with its elements, in the order of registration."""
    dim, hidden, vocab = SIZES.dim, SIZES.hidden, SIZES.vocab
    found = {"embed.weight": vocab * dim}
    for layer in range(SIZES.layers):
        block = f"blocks.{layer}"
        found[f"{block}.attention_norm.weight"] = dim
        found |= {f"{block}.attention.{name}.weight": dim * dim for name in ("wq", "wk", "wv", "wo")}
        found[f"{block}.ffn_norm.weight"] = dim
        found[f"{block}.ffn.up.weight"] = found[f"{block}.ffn.down.weight"] = dim * hidden
    return found | {"norm.weight": dim, "head.weight": vocab * dim}


def owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def matrices() -> dict[str, tuple[int, int]]:
    """Rows and columns of each parameter that is a matrix."""
    square, shapes = SIZES.dim, {"up": (SIZES.hidden, SIZES.dim), "down": (SIZES.dim, SIZES.hidden)}
    vocab = (SIZES.vocab, SIZES.dim)
    return {
        name: vocab if "." not in owner(name) else shapes.get(name.split(".")[-2], (square, square))
        for name in parameters()
        if "norm" not in name
    }


# -- DDP -----------------------------------------------------------------------------------------------


def buckets(cap_bytes: float) -> list[tuple[str, int]]:
    """DDP's final buckets: gradients in the order in which they become ready, closed once they reach the cap.

    Each as the parameter that came last, which sets it off, and its bytes.
    """
    found: list[tuple[str, int]] = []
    held, last = 0, ""
    for name, elements in reversed(parameters().items()):
        held, last = held + FLOAT * elements, name
        if held >= cap_bytes:
            found.append((last, held))
            held = 0
    return [*found, (last, held)] if held else found


def reduced(name: str, size: int, **changed: Any) -> Want:
    want = Want(
        "all_reduce", "backward", size, "DistributedDataParallel.reducer", BACKWARD, owner(name), name
    )
    return replace(want, **changed)


ONE: Final = [("embed.weight", WHOLE)]
SMALL: Final = buckets(ddp.SMALL_BUCKET_MB * 2**20)
BUFFERS: Final = Want(
    "broadcast",
    "forward",
    FLOAT * SIZES.context * SIZES.dim,
    "DistributedDataParallel.buffers",
    FORWARD,
    module="",
    root=0,
)


def rebuilt(count: int) -> list[Want]:
    """DDP agrees on its final buckets: each parameter's place and how many there are, then their sizes."""
    one = Want(
        "broadcast",
        "forward",
        0,
        "DistributedDataParallel.bucket_order",
        FORWARD,
        module="",
        dtype="int32",
        root=0,
    )
    return [replace(one, message_bytes=4 * (len(parameters()) + 1)), replace(one, message_bytes=4 * count)]


HOOK: Final = at(HERE + "ddp.py", "return bf16_compress_hook", "_as_bf16")
SGD: Final = "DistributedDataParallel.powerSGD_hook"


def power_sgd() -> list[Want]:
    """Norms as they are, then the two factors of all matrices: rows + columns instead of rows * columns."""
    rank = ddp.POWER_SGD_RANK
    assert all((n + m) * rank * 2 < n * m for n, m in matrices().values()), "torch compresses all of them"
    norms = sum(parameters()[name] for name in parameters() if name not in matrices())
    sizes = [norms, *(rank * sum(shape[side] for shape in matrices().values()) for side in (0, 1))]
    return [reduced("embed.weight", FLOAT * size, cause=SGD) for size in sizes]


DDP: Final[dict[str, tuple[list[Want], list[Want]]]] = {
    "plain": (
        [*rebuilt(1), BUFFERS, *(reduced(*one) for one in ONE)],
        [BUFFERS, *(reduced(*one) for one in ONE)],
    ),
    "no_buffers": ([*rebuilt(1), *(reduced(*one) for one in ONE)], [reduced(*one) for one in ONE]),
    "buckets": ([*rebuilt(3), *(reduced(*one) for one in SMALL)], [reduced(*one) for one in SMALL]),
    "bucket_view": ([*rebuilt(3), *(reduced(*one) for one in SMALL)], [reduced(*one) for one in SMALL]),
    # One bucket until it is rebuilt, which happens a step later.
    "static_graph": ([reduced(*one) for one in ONE], [*rebuilt(3), *(reduced(*one) for one in SMALL)]),
    "bf16_hook": (
        [
            *rebuilt(3),
            *(
                reduced(
                    name,
                    size // 2,
                    dtype="bfloat16",
                    cause="DistributedDataParallel.bf16_compress_hook",
                    source=HOOK,
                )
                for name, size in SMALL
            ),
        ],
        [
            reduced(
                name,
                size // 2,
                dtype="bfloat16",
                cause="DistributedDataParallel.bf16_compress_hook",
                source=HOOK,
            )
            for name, size in SMALL
        ],
    ),
    "power_sgd": ([*rebuilt(1), *(reduced(*one, cause=SGD) for one in ONE)], power_sgd()),
}


# -- FSDP2 ---------------------------------------------------------------------------------------------


def unit(layer: int | None, source: str = FORWARD, block_source: str = BLOCK_CALL, **changed: Any) -> Want:
    """An FSDP2 unit: a block, or with None the root and what is its own."""
    names = [name for name in parameters() if name.startswith(f"blocks.{layer}.")]
    want = Want("all_gather", "forward", BLOCK, "FSDP.unshard", block_source, dim="dp")
    if layer is None:
        own = ", ".join(name for name in parameters() if not name.startswith("blocks."))
        want = replace(want, message_bytes=REST, source=source, module="", parameter=own)
    else:
        own = f"{names[0]}, ... ({len(names)} parameters)"
        want = replace(want, module=f"blocks.{layer}", parameter=own)
    return replace(want, **changed)


LAYERS: Final = tuple(range(SIZES.layers))
SCATTER: Final[dict[str, Any]] = {"op": "reduce_scatter", "phase": "backward", "cause": "FSDP.post_backward"}


def gathered(**lines: Any) -> list[Want]:
    return [unit(layer, **lines) for layer in (None, *LAYERS)]


def gathered_again(**lines: Any) -> list[Want]:
    return [unit(layer, phase="backward", **lines) for layer in reversed(LAYERS)]


def scattered(**lines: Any) -> list[Want]:
    return [unit(layer, **lines, **SCATTER) for layer in (*reversed(LAYERS), None)]


def fsdp2_step(**lines: Any) -> list[Want]:
    return [*gathered(**lines), *gathered_again(**lines), *scattered(**lines)]


def in_bf16(wants: Sequence[Want]) -> list[Want]:
    return [
        replace(want, dtype="bfloat16", message_bytes=want.message_bytes // 2)
        if want.op == "all_gather"
        else want
        for want in wants
    ]


FSDP2: Final[dict[str, list[Want]]] = {
    "reshard_true": fsdp2_step(),
    "reshard_false": [*gathered(), *scattered()],
    "mixed_precision": in_bf16(fsdp2_step()),
    "prefetch": fsdp2_step(),
    "cpu_offload": fsdp2_step(),
}


def near(rank: int) -> tuple[int, int]:
    return rank - rank % 2, rank - rank % 2 + 1


def across(wants: Sequence[Want], rank: int) -> list[Want]:
    """The same on two dims: shards in pairs, and each one's gradient then reduced over the pairs."""
    pair: dict[str, Any] = {"dim": "shard", "ranks": near(rank)}
    between: dict[str, Any] = {"dim": "replicate", "ranks": (rank % 2, rank % 2 + 2)}
    found: list[Want] = []
    for want in wants:
        found.append(replace(want, **pair))
        if want.op == "reduce_scatter":
            size = want.message_bytes // 2
            found.append(replace(want, op="all_reduce", message_bytes=size, **between))
    return found


# -- FSDP1 ---------------------------------------------------------------------------------------------


def as_fsdp1(wants: Sequence[Want], **changed: Any) -> list[Want]:
    """FSDP1 has units of the same bytes, and no mesh unless it is given one."""
    return [replace(want, cause=want.cause.replace("FSDP.", "FSDP1."), dim=None, **changed) for want in wants]


HALF: Final = [
    replace(want, message_bytes=want.message_bytes // 2, dtype="bfloat16") for want in fsdp2_step()
]
FSDP1: Final[dict[str, list[Want]]] = {
    "full_shard": as_fsdp1(fsdp2_step()),
    "shard_grad_op": as_fsdp1([*gathered(), *scattered()]),
    "mixed_precision": as_fsdp1(HALF),
}


# -- ZeRO ----------------------------------------------------------------------------------------------


def owned(world: int) -> list[list[str]]:
    """Which parameters each rank's optimizer updates: the largest first, each to the rank with least."""
    held = [0] * world
    found: list[list[str]] = [[] for _ in range(world)]
    for name, elements in sorted(parameters().items(), key=lambda item: -item[1]):
        rank = held.index(min(held))
        held[rank] += elements
        found[rank].append(name)
    return found


def updated(name: str | None, elements: int, root: int) -> Want:
    cause = "ZeroRedundancyOptimizer"
    module = None if name is None else owner(name)
    return Want("broadcast", "optimizer", FLOAT * elements, cause, UPDATE, module, name, root=root)


def flat(world: int) -> list[Want]:
    return [
        # Of several parameters at once, so of no one.
        updated(None, sum(parameters()[name] for name in names), root)
        for root, names in enumerate(owned(world))
    ]


# -- accumulation --------------------------------------------------------------------------------------


MICRO: Final = accumulation.MICRO_BATCHES
ACC_FORWARD: Final = at(HERE + "accumulation.py", "loss = loss_of(model(batch.tokens)", "step")
ACC_BACKWARD: Final = at(HERE + "accumulation.py", "loss.backward()", "step")
ACC_LINES: Final = {"source": ACC_FORWARD}
ACCUMULATED: Final[dict[str, list[Want]]] = {
    "ddp_every": MICRO * [reduced(*ONE[0], source=ACC_BACKWARD)],
    "ddp_last": [reduced(*ONE[0], source=ACC_BACKWARD)],
    "fsdp2_every": MICRO * fsdp2_step(**ACC_LINES),
    "fsdp2_last": [*MICRO * [*gathered(**ACC_LINES), *gathered_again()], *scattered(**ACC_LINES)],
    # Kept after backward: only the first forward gathers; the blocks still are thrown away after forward.
    "fsdp2_keep": [*gathered(**ACC_LINES), *MICRO * gathered_again(), *scattered(**ACC_LINES)],
}


# -- activation checkpointing --------------------------------------------------------------------------


CHECKPOINTED: Final = HERE + "checkpointing.py"
BY_ONE: Final = at(CHECKPOINTED, "x = checkpoint(part", "forward")
AT_ONCE: Final = at(CHECKPOINTED, "x = block(x)", "_segment")


def checkpointed(build: str, reentrant: bool) -> list[Want]:
    if build == "ddp":
        return [reduced(*one) for one in SMALL]
    line = {"called": BY_ONE, "segment": AT_ONCE}.get(build, BLOCK_CALL)
    step = fsdp2_step(block_source=line)
    if (build, reentrant) == ("segment", True):
        # Only the last block's turn has come when the recompute begins: it gathers the one before itself.
        step[len(LAYERS) + 2] = replace(step[len(LAYERS) + 2], phase="recompute")
    return step


# -- clipping ------------------------------------------------------------------------------------------


CLIPPING: Final = HERE + "clipping.py"
CLIP_LINES: Final = {"source": at(CLIPPING, "loss = loss_of(model(batch.tokens)", "step")}
CLIP_BACKWARD: Final = at(CLIPPING, "loss.backward()", "step")
NORM_COUNT: Final = len(parameters())
NORM: Final = Want("all_reduce", "other", FLOAT, "all_reduce", None, dim="dp")
LIBRARY: Final = replace(
    NORM,
    phase="optimizer",
    message_bytes=FLOAT * NORM_COUNT,
    cause="aten.linalg_vector_norm.default",
    source=at(CLIPPING, "return clip_grad_norm_(", "library"),
    implicit=True,
)
BY_HAND: Final = replace(NORM, source=at(CLIPPING, "dist.all_reduce(total)", "by_hand"))
CLIPPED: Final[dict[str, list[Want]]] = {
    "library": [*fsdp2_step(**CLIP_LINES), LIBRARY],
    "by_hand": [*fsdp2_step(**CLIP_LINES), BY_HAND],
    "ddp": [reduced(*ONE[0], source=CLIP_BACKWARD)],
}
