"""From a diagnosis to the finding a user reads: one sentence, the evidence, and the code to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardtoll.ledger import Evidence, Figure, Finding, Where
from shardtoll.profiler.live.gradients.diagnosis import Diagnosis, Measured
from shardtoll.profiler.live.gradients.remedies import for_all, remedy_of
from shardtoll.profiler.live.gradients.shards import Partition

GROUP_ABOVE: Final = 20
"""Parameters that share one diagnosis before they become one finding instead of one each."""
_NAMED: Final = 3
_RANKS_SHOWN: Final = 16


@dataclass(frozen=True, slots=True)
class Suspect:
    """A parameter whose gradient is wrong, with everything its finding says."""

    name: str
    """In the reference."""
    kind: str
    """`plain`, `DDP`, `FSDP1`, or the placements of a DTensor gradient."""
    replicated_over: tuple[str, ...]
    """Labels of the mesh dimensions over which a DTensor's placements say Replicate."""
    was_partial: str | None
    ranks: tuple[Measured, ...]
    diagnosis: Diagnosis
    tolerance: float
    dtype: str
    weights_apart: tuple[float | None, ...]
    """By rank: |w - w0| / |w0| against rank 0's weight; None if it is not a number."""
    error_after: float | None = None
    """Worst relative error once the missing reduction is done."""
    tied_to: str | None = None
    own_name: str | None = None
    """In the model, if that differs."""

    @property
    def holders(self) -> list[int]:
        """Ranks that hold any of it."""
        return [rank for rank, seen in enumerate(self.ranks) if seen.held]


def findings_of(suspects: Sequence[Suspect], partitions: Sequence[Partition]) -> list[Finding]:
    """Return one finding per parameter, or one per diagnosis if more than `GROUP_ABOVE` share it."""
    alike: dict[tuple[object, ...], list[Suspect]] = {}
    for suspect in suspects:
        seen = suspect.diagnosis
        factor = None if seen.factor is None else float(f"{seen.factor:.2g}")
        key = (seen.cause, seen.ranks, seen.partition, factor, suspect.kind)
        alike.setdefault(key, []).append(suspect)
    findings: list[Finding] = []
    for group in alike.values():
        if len(group) > GROUP_ABOVE:
            findings.append(_finding(group, partitions))
        else:
            findings += [_finding([suspect], partitions) for suspect in group]
    return findings


def _finding(group: Sequence[Suspect], partitions: Sequence[Partition]) -> Finding:
    suspect = max(group, key=lambda member: _worst(member)[1])
    diagnosis = suspect.diagnosis
    partition = None if diagnosis.partition is None else partitions[diagnosis.partition]
    if len(group) == 1:
        subject = f"gradient of {suspect.name} is wrong"
    else:
        first = ", ".join(member.name for member in group[:_NAMED])
        subject = f"gradients of {len(group)} parameters ({first}, ...) are wrong"
    parameter = group[0].name
    return Finding(
        kind="wrong-gradient",
        severity="error",
        title=f"{subject}: {_why(suspect, partition)}",
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=len(group),
        ranks=diagnosis.ranks,
        where=Where.of_parameter(
            parameter, phase="backward", mesh_dim=None if partition is None else partition.mesh_dim
        ),
        evidence=_evidence(suspect, group, partition),
        remedy=for_all(
            remedy_of(
                diagnosis,
                suspect.own_name or parameter,
                partition=partition,
                partial_hidden=partition is not None and says_replicate(suspect, partition),
                wrapper=suspect.kind if suspect.kind in ("DDP", "FSDP1") else None,
                weights_differ=bool(drifted_ranks(suspect)),
                holders=suspect.holders,
            ),
            suspect.own_name or parameter,
            len(group),
        ),
        confidence="likely" if diagnosis.ambiguous else "certain",
        figures=() if diagnosis.factor is None else (Figure("factor", diagnosis.factor, "x"),),
        parameters=tuple(member.name for member in group) if len(group) > 1 else (),
        cause=diagnosis.cause,
    )


def says_replicate(suspect: Suspect, partition: Partition) -> bool:
    """Whether a DTensor's placements claim that the ranks of these groups hold equal values."""
    return partition.label in suspect.replicated_over


def drifted_ranks(suspect: Suspect) -> list[int]:
    """Return the ranks whose weight is not rank 0's."""
    return [rank for rank, apart in enumerate(suspect.weights_apart) if apart is None or apart > 0]


def _worst(suspect: Suspect) -> tuple[int, float]:
    errors = [(seen.overlap.error or 0.0, -rank) for rank, seen in enumerate(suspect.ranks)]
    error, rank = max(errors)
    return -rank, error


def rank_list(ranks: Sequence[int]) -> str:
    """Return `rank 2`, `ranks 0-3` or `ranks 0, 2, 5`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}-{ranks[-1]}"
    shown = ", ".join(map(str, ranks[:_RANKS_SHOWN]))
    return f"ranks {shown}" + (", ..." if len(ranks) > _RANKS_SHOWN else "")


def _percent(error: float) -> str:
    return f"{100 * error:.3g} %"


def _over(partition: Partition, suspect: Suspect) -> str:
    if len(suspect.holders) < len(partition.ranks) == partition.size:
        return f"the ranks that hold it ({rank_list(suspect.holders)})"
    whole = partition.size == len(partition.ranks)
    if partition.mesh_dim is None and whole:
        return f"all {partition.size} ranks"
    return f"{partition.label} ({'all ' if whole else ''}{partition.size} ranks)"


def _why(suspect: Suspect, partition: Partition | None) -> str:
    diagnosis = suspect.diagnosis
    rank, error = _worst(suspect)
    off = f"off by {_percent(error)} on rank {rank}"
    where = rank_list(diagnosis.ranks)
    match diagnosis.cause:
        case "missing-reduction":
            assert partition is not None
            factor = f"x{diagnosis.factor:.4g}"
            over = _over(partition, suspect)
            total = (
                f"the {diagnosis.factor_name} of the gradients over {over} would be right"
                if diagnosis.factor_name in ("sum", "mean")
                else f"the sum of the gradients over {over} would be the true one {factor}"
            )
            hidden = ", though its placements say Replicate" if says_replicate(suspect, partition) else ""
            total = f"{total[0].upper()}{total[1:]}"
            return f"a reduction is missing. {total}, but each rank holds only its own part{hidden} ({off})"
        case "wrong-scale":
            named = f", {diagnosis.factor_name}" if diagnosis.factor_name else ""
            return f"wrong scale: it is {diagnosis.factor:.4g} times the true one{named}"
        case "replicas-differ":
            right = [rank for rank in suspect.holders if rank not in diagnosis.ranks]
            rest = f" while {rank_list(right)} {'is' if len(right) == 1 else 'are'} right" if right else ""
            return (
                f"replicas differ: {where} {'is' if len(diagnosis.ranks) == 1 else 'are'} wrong{rest} ({off})"
            )
        case "missing":
            return f"missing gradient: None on {where}, the unsharded model has one"
        case "extra":
            return f"extra gradient: on {where}, the unsharded model has none"
        case "zero":
            return "it is zero on every rank, the unsharded model's is not"
        case "not-finite":
            return f"NaN or infinity on {where}, the unsharded model's is finite"
        case _:
            return f"different, cause unknown: {off}"


def _evidence(
    suspect: Suspect, group: Sequence[Suspect], partition: Partition | None
) -> tuple[Evidence, ...]:
    facts = [Evidence("proof", "one device's run of the global batch")]
    shown = suspect.holders[:_RANKS_SHOWN]
    if len(group) > 1:
        facts.append(Evidence("parameters", ", ".join(member.name for member in group)))
        facts.append(Evidence("worst parameter", suspect.name))
    for rank in shown:
        facts.append(Evidence(f"relative error, rank {rank}", suspect.ranks[rank].overlap.error))
    for rank in shown:
        facts.append(Evidence(f"norm / true norm, rank {rank}", suspect.ranks[rank].overlap.ratio, "x"))
    diagnosis = suspect.diagnosis
    if partition is not None:
        facts.append(Evidence("reduce over", _over(partition, suspect)))
        facts.append(Evidence("relative error once reduced", suspect.error_after))
    if diagnosis.factor is not None:
        facts.append(Evidence("factor", diagnosis.factor, "x"))
    if diagnosis.factor_name is not None:
        facts.append(Evidence("factor equals", diagnosis.factor_name))
    facts.append(Evidence("tolerance", suspect.tolerance))
    if len(suspect.holders) < len(suspect.ranks) and suspect.kind != "FSDP1":
        facts.append(Evidence("held by", rank_list(suspect.holders)))
    if suspect.own_name is not None:
        facts.append(Evidence(f"name on rank {suspect.holders[0]}", suspect.own_name))
    facts.append(Evidence("gradient", f"{suspect.kind}, {suspect.dtype}"))
    if suspect.was_partial is not None:
        facts.append(Evidence("reduced for this comparison", f"its placements were {suspect.was_partial}"))
    if suspect.tied_to is not None:
        facts.append(Evidence("tied in the reference, not in the model", suspect.tied_to))
    drifted = drifted_ranks(suspect)
    if drifted:
        worst = max((suspect.weights_apart[rank] or 0.0) for rank in drifted)
        facts.append(Evidence(f"weight differs from rank 0's on {rank_list(drifted)}", worst))
    return tuple(facts)
