"""Remedies for FSDP's communication if the model's blocks are sharded each for itself already."""

from __future__ import annotations

from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.exposed.exposed_remedies import COUNTERFACTUAL
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import begins_with
from shardtoll.ledger import Remedy

_FSDP, _FSDP1 = "FSDP", "FSDP1"
_ROOT = ""
"""The name of the root module: its group has what no block holds."""


class _Calls(Struct, frozen=True):
    """How a generation of FSDP is called."""

    shard: str
    seldom: str


_CALLS = {
    False: _Calls(
        "fully_shard({module})  # and other large modules that no block holds\nfully_shard(model)  # last",
        "model.set_requires_gradient_sync(last_micro_batch)",
    ),
    True: _Calls(
        "{module} = FullyShardedDataParallel({module})  # and other large modules that no block holds\n"
        "model = FullyShardedDataParallel(model)  # last",
        "with contextlib.nullcontext() if last_micro_batch else model.no_sync():\n"
        "    loss_of(model(batch)).backward()",
    ),
}


def remedy(context: Context, cause: str, module: str | None, parameter: str | None) -> Remedy | None:
    """Return advice for such a collective; None if the blocks are not sharded, or usual advice fits.

    `module`: the one module that asked for it, empty for the root, None if several did; `parameter`: the
    name of what it carries, of the first if there are more.
    """
    if not cause.startswith(_FSDP) or not _blocks_are_sharded(context):
        return None
    calls, gathers = _CALLS[cause.startswith(_FSDP1)], cause.endswith("unshard")
    if module == _ROOT:
        owner = (parameter or "").partition(",")[0].rpartition(".")[0]
        name = f"model.{owner}" if owner else "model.head"
        first = "gathered before the first block" if gathers else "reduced after all of backward"
        return Remedy(
            text="Shard the large modules that no block holds, as embedding and head, as groups of their "
            f"own. They are one group with the root now, {first}: nothing hides it.",
            code=calls.shard.format(module=name),
            counterfactual=COUNTERFACTUAL,
        )
    if gathers:
        return None
    return Remedy(
        text="Give each block more to compute: a larger batch, or gradients that are reduced on the last "
        "micro-batch only. Blocks are sharded each for itself already.",
        code=calls.seldom,
        counterfactual=COUNTERFACTUAL,
    )


@once
def _blocks_are_sharded(context: Context) -> bool:
    """Whether FSDP sends for modules below the root too."""
    rows = context.collectives
    below = (rows["module"].fillna(_ROOT) != _ROOT).to_numpy(dtype=bool)
    return bool((begins_with(rows["caused_by_op"], _FSDP) & below).any())
