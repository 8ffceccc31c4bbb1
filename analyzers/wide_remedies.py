"""How to have each wrapper move what it moves in the format of the computation."""

from __future__ import annotations

from shardtoll.analyzers.words import duration
from shardtoll.ledger import Remedy

_LOSSY = (
    "It is a choice about numerics, not a mistake: sums of many ranks in {narrow} lose digits{small}. "
    "Compare a few hundred steps of loss before you keep it."
)
_FLOAT16 = ", and float16 overflows above 65,504"
_EXACT = "Under autocast the weights are cast to {narrow} anyway, so nothing is lost on the way."


def remedy(cause: str | None, op: str, narrow: str, wide: str, saving_ns: int | None) -> Remedy:
    """Return what to write for the wrapper that `cause` names; by hand where it names none."""
    cause = cause or ""
    gathers = op == "all_gather"
    if gathers:
        text, note = f"Gather the parameters in {narrow}.", _EXACT
    else:
        text, note = f"Reduce in {narrow}.", _LOSSY
    text = f"{text} {note.format(narrow=narrow, small=_FLOAT16 if narrow == 'float16' else '')}"
    counterfactual = None
    if saving_ns is not None:
        counterfactual = (
            f"the same collectives in {narrow}: {duration(saving_ns)} of their own time goes with the bytes "
            f"of {wide}, as the fabric's floors of both say"
        )
    return Remedy(text=text, code=_code(cause, narrow, gathers=gathers), counterfactual=counterfactual)


def _code(cause: str, narrow: str, *, gathers: bool) -> str:
    if cause.startswith("FSDP1"):
        policy = f"MixedPrecision(param_dtype=torch.{narrow}, reduce_dtype=torch.{narrow})"
        return f"FullyShardedDataParallel(module, mixed_precision={policy})"
    if cause.startswith("FSDP"):
        choice = "param_dtype" if gathers else f"param_dtype=torch.{narrow}, reduce_dtype"
        return f"fully_shard(module, mp_policy=MixedPrecisionPolicy({choice}=torch.{narrow}))"
    if cause.startswith("DistributedDataParallel"):
        short = "bf16" if narrow == "bfloat16" else "fp16"
        return (
            f"from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import {short}_compress_hook\n"
            f"model.register_comm_hook(None, {short}_compress_hook)"
        )
    if cause.startswith("DeepSpeed"):
        short = "bfp16" if narrow == "bfloat16" else "fp16"
        return f'"communication_data_type": "{short}"  # in the DeepSpeed config'
    return f"part = gradient.to(torch.{narrow})\ndist.all_reduce(part)"
