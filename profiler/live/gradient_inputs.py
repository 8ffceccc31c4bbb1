"""What a gradient check needs before it can begin, agreed on by all ranks, or one error for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.modules.dropout import _DropoutNd

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.gradient_diagnosis import Measured
from shardtoll.profiler.live.gradient_pairs import Pair, pair_buffers, pair_parameters
from shardtoll.profiler.live.gradient_ranks import Ranks
from shardtoll.profiler.live.gradient_tolerance import checked_rtol
from shardtoll.profiler.live.names import clean_name

_AFTER_BACKWARD = (
    "call check_gradients after loss.backward() and before optimizer.zero_grad(), with gradient sync on"
)


def prepared(
    ranks: Ranks, model: object, reference: object, loss: object, rtol: float | None
) -> tuple[list[Pair], list[Pair], float | None]:
    """Return the parameters and buffers to compare and the user's tolerance, the same on every rank.

    Raises UsageError on all ranks when one of them cannot begin.
    """
    problem: UsageError | None = None
    pairs: list[Pair] = []
    buffers: list[Pair] = []
    relative: float | None = None
    try:
        relative = checked_rtol(rtol)
        one, other = _require_usable(ranks, model, reference, loss)
        pairs, buffers = pair_parameters(one, other), pair_buffers(one, other)
        _require_here(ranks, pairs)
    except UsageError as error:
        problem = error
    ranks.agree(problem)
    _require_alike(ranks, pairs, buffers, relative)
    if not any(ranks.gather(any(pair.own.grad is not None for pair in pairs))):
        ranks.agree(UsageError("no parameter of the model has a gradient", _AFTER_BACKWARD))
    return pairs, buffers, relative


def _require_usable(
    ranks: Ranks, model: object, reference: object, loss: object
) -> tuple[nn.Module, nn.Module]:
    if not isinstance(model, nn.Module) or not isinstance(reference, nn.Module):
        name, given = ("reference", reference) if isinstance(model, nn.Module) else ("model", model)
        raise UsageError(
            f"{name} is {type(given).__name__}, not a module", "call check_gradients(model, reference, loss)"
        )
    if not callable(loss):
        raise UsageError(
            f"loss is {type(loss).__name__}, not a function",
            "give a function of the module, as lambda module: criterion(module(x), y)",
        )
    if ranks.backend == "fake":
        raise UsageError(
            "the fake process group moves no data", "check gradients on real ranks, gloo will do"
        )
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise UsageError(
            "the model is wrapped in FSDP1, whose gradients are flat pieces",
            "use fully_shard (FSDP2), or check the model under DDP",
        )
    random = next((name for name, module in model.named_modules() if _drops_at_random(module)), None)
    if random is not None:
        raise UsageError(
            f"module {clean_name(model, random) or 'model'} drops activations at random",
            "compute loss and gradients with it in eval(), or with p = 0: no other device draws the same "
            "masks",
        )
    return model, reference


def _drops_at_random(module: nn.Module) -> bool:
    """Whether the module is dropout that is on; what functions draw inside a forward is not seen."""
    if not module.training:
        return False
    if isinstance(module, nn.MultiheadAttention):
        return bool(module.dropout > 0)
    return isinstance(module, _DropoutNd) and module.p > 0


def _require_here(ranks: Ranks, pairs: Sequence[Pair]) -> None:
    for pair in pairs:
        if ranks.rank == 0 and pair.reference.is_meta:
            raise UsageError(
                f"parameter {pair.name} of the reference is on the meta device",
                "rank 0 computes with it: give it memory there with reference.to_empty(device=...)",
            )
        if isinstance(pair.own, DTensor) and pair.own.device_mesh.get_coordinate() is None:
            raise UsageError(
                f"parameter {pair.name} lives on a mesh without this rank",
                "every rank must hold a part of every parameter; check pipeline stages one by one",
            )


def _require_alike(
    ranks: Ranks, pairs: Sequence[Pair], buffers: Sequence[Pair], relative: float | None
) -> None:
    facts = [
        (pair.name, tuple(pair.own.shape), str(pair.own.dtype), pair.own.requires_grad)
        for pair in (*pairs, *buffers)
    ]
    told = ranks.gather((facts, relative))
    other = next((rank for rank, row in enumerate(told) if row != told[0]), None)
    if other is not None:
        if told[other][0] == told[0][0]:
            what, hint = "rtol", "give it as a constant"
        else:
            what = "parameters and buffers"
            hint = "every rank must hold the whole model, sharded or not; check pipeline stages one by one"
        ranks.agree(UsageError(f"rank 0 and rank {other} were not given the same {what}", hint))


def require_nonzero(ranks: Ranks, by_rank: Sequence[Sequence[Measured]], true_sq: float) -> None:
    """Raise UsageError on all ranks when every gradient was set to zero before the check."""
    if true_sq > 0 and all(seen.overlap.own_sq == 0 for row in by_rank for seen in row):
        ranks.agree(UsageError("every gradient of the model is zero on every rank", _AFTER_BACKWARD))
