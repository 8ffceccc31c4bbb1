"""The layout that ran, from the mesh, the groups and the collectives of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from shardtoll.analyzers.advise.from_run.step_ops import StepOp, attention_modules
from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.answers.training_plan import Checkpointing, Sharding
from shardtoll.ledger.records.mesh_names import NAMES, REPLICATE, SHARD, MeshKind, is_of, plain_name

_KINDS: Final[dict[str, MeshKind]] = {"tp": "tensor", "pp": "stages", "cp": "context", "ep": "experts"}
_HINT: Final = "leave the run out and give --model and --gpus, with its layout by --explain"
_SMALL_BYTES: Final = 1 << 16
"""Below this a reduction in forward is of a loss or a count, not of activations."""
_SHARD: Final = (*SHARD, "dp_shard_cp")


@dataclass(frozen=True, slots=True)
class Degrees:
    """How the ranks are divided, with what says so."""

    tp: int
    pp: int
    cp: int
    ep: int
    dp: int
    shard_size: int | None
    source: str


def degrees_of(report: Report) -> Degrees:
    """Return the degrees: of the mesh's dimensions by name, else of the groups by what they send.

    Raises UsageError if the mesh does not divide the ranks, or the groups may be of several layouts.
    """
    run, calls = report.run, report.collectives
    sizes = {plain_name(dim): size for dim, size in run.mesh.items()}
    degree = {kind: _product(sizes, NAMES[named]) for kind, named in _KINDS.items()}
    source = "mesh " + " x ".join(f"{dim} {size}" for dim, size in run.mesh.items())
    if not run.mesh:
        source = "groups by what they send"
        degree.update(_by_calls(report, calls, run.world_size))
    inner = degree["tp"] * degree["pp"] * degree["cp"]
    if inner < 1 or run.world_size % inner:
        raise UsageError(f"{source} does not divide the run's {run.world_size:,} ranks", _HINT)
    dp = run.world_size // inner
    replicas, shards = _product(sizes, REPLICATE), _product(sizes, _SHARD)
    hybrid = replicas > 1 and 1 < shards < dp
    return Degrees(
        degree["tp"], degree["pp"], degree["cp"], degree["ep"], dp, shards if hybrid else None, source
    )


def _product(sizes: dict[str, int], names: Sequence[str]) -> int:
    made = 1
    for name in names:
        made *= sizes.get(name, 1)
    return made


def _by_calls(report: Report, calls: pd.DataFrame, world: int) -> dict[str, int]:
    """Degrees without a mesh: stages send, and tensor-parallel groups reduce activations in forward.

    Raises UsageError if that is no proof. A reduction over all ranks may be of data parallelism. Sends may
    pass keys around a ring, unless each rank of the group holds other blocks.
    """
    made: dict[str, int] = {}
    forward = calls[(calls["phase"] == "forward") & (calls["op"].isin(["all_reduce", "reduce_scatter"]))]
    # An unknown size is taken for a large one.
    forward = forward[~(forward["message_bytes"] < _SMALL_BYTES).fillna(False).astype(bool)]
    inner = sorted({int(size) for size in forward["group_size"].dropna() if size > 1})
    if len(inner) > 1 or (inner and inner[0] == world):
        sizes = " and ".join(map(str, inner))
        raise UsageError(
            f"forward reduces activations over {sizes} of {world:,} ranks, and the run has no mesh: "
            "which are tensor parallel is unknown",
            _HINT,
        )
    if inner:
        made["tp"] = inner[0]
    sends = calls[calls["op"].isin(["send", "recv"])]
    sizes_of_sends = [int(size) for size in sends["group_size"].dropna() if size > 1]
    if sizes_of_sends:
        stages = len(attention_modules(report))
        if stages < 2 or min(sizes_of_sends) not in (stages, world):
            raise UsageError(
                f"ranks send within groups of {min(sizes_of_sends)}, and the run has no mesh: "
                "whether they are stages or a ring of context parallelism is unknown",
                _HINT,
            )
        made["pp"] = stages
    return made


def sharding_of(report: Report, degrees: Degrees) -> tuple[Sharding, bool]:
    """Return the tensors that replicas share, and whether tensor parallelism shards the sequence too."""
    calls = report.collectives
    steps = calls["step"].dropna()
    if not steps.empty:
        calls = calls[calls["step"] == steps.max()]
    dims = calls["mesh_dim"]
    cut = dims.isin([dim for dim in dims.dropna().unique() if is_of(str(dim), "tensor")])
    if not report.run.mesh and degrees.tp > 1:
        cut = calls["group_size"] == degrees.tp
    tensor, data = calls[cut], calls[~cut]
    sequence = bool(((tensor["op"] == "reduce_scatter") & (tensor["phase"] == "forward")).any())
    gathers = data[data["op"] == "all_gather"]
    scatters = bool((data["op"] == "reduce_scatter").any())
    if scatters and (gathers["phase"] == "forward").any():
        # Backward gathers the last blocks at least if parameters are sharded again after forward.
        again = len(gathers[gathers["phase"].isin(["backward", "recompute"])])
        return ("fsdp" if again or degrees.dp == 1 else "zero2"), sequence
    late = data[data["phase"].isin(["optimizer", "other"])]
    if scatters or late["op"].isin(["all_gather", "broadcast"]).any():
        return "zero1", sequence
    return "ddp", sequence


def checkpointing_of(ops: Sequence[StepOp]) -> Checkpointing:
    """How much of forward is repeated in backward."""
    repeated = sum(op.count for op in ops if op.phase == "recompute" and (op.matmul or op.is_attention))
    if not repeated:
        return "none"
    forward = sum(op.count for op in ops if op.phase == "forward" and (op.matmul or op.is_attention))
    return "full" if repeated >= 0.7 * forward else "selective"
