"""Parameters that no reduction carries, as findings: with the line of the others' reductions, and the fix."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.gradients import NAMED
from shardtoll.analyzers.findings.unsynced.unreduced import Unreduced
from shardtoll.analyzers.shared.remedy_code import at, on_group, parameter
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Evidence, Finding, Remedy, Where
from shardtoll.ledger.words.human import plural as times
from shardtoll.ledger.words.human import ranks as rank_words
from shardtoll.ledger.words.names import shortened

MAKE_SURE: Final = (
    "To be sure first, compare the gradients: --checks gradients, in a program audit(checks=...)."
)

WRAPS: Final = {
    "DDP": "model = DistributedDataParallel(model)",
    "FSDP1": "model = FullyShardedDataParallel(model)",
    "FSDP2": "fully_shard(model)",
}
"""Wrapper -> the call that gives it the whole model."""


def finding_of(context: Context, found: Unreduced) -> Finding:
    """Return the finding: likely, as ranks may train a part of their own on purpose."""
    names, group = found.names, found.group
    by_hand = group.source is not None and found.wrapper is None and group.wrapper is None
    of_all = "it" if len(names) == 1 else "them"
    others = _others(found)
    few = found.others is not None and found.others < len(names)
    return Finding(
        kind="unsynced-parameter",
        severity="warning",
        title=f"{subject(names)} part in no reduction{_listed(found)}, {others}: "
        f"each rank trains {of_all} on its own data alone",
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=len(names),
        ranks=found.ranks,
        where=Where.of_parameter(
            names[0],
            phase="backward",
            source=group.source if by_hand else used_at(context, names[0]),
            mesh_dim=group.mesh_dim,
        ),
        evidence=(
            Evidence("reductions of it by name", "none on record"),
            Evidence("used by an optimizer", "in a step in which the others were reduced"),
            Evidence("gradients reduced over the same ranks", found.others),
            Evidence("the others are reduced", _by(found)),
            Evidence("wrapper", found.wrapper),
            *((Evidence("on a list to ignore", "yes"),) if found.ignored else ()),
            Evidence("recorded steps", len(context.steps)),
            Evidence("values", "not compared"),
            Evidence("ranks", rank_words(found.ranks)),
            *((Evidence("parameters", ", ".join(names)),) if len(names) > 1 else ()),
        ),
        remedy=_remedy(found, context.ledger.run.world_size),
        confidence="possible" if found.ignored or few else "likely",
        parameters=names if len(names) > 1 else (),
        cause="missing-reduction",
    )


def subject(names: tuple[str, ...] | list[str]) -> str:
    """Return the parameters as what a sentence begins with, and its verb."""
    if len(names) == 1:
        return f"{names[0]} takes"
    if len(names) <= NAMED:
        return f"{', '.join(names[:-1])} and {names[-1]} take"
    return f"{len(names)} parameters ({shortened(names, NAMED)}) take"


def _listed(found: Unreduced) -> str:
    if not found.ignored:
        return ""
    return f", as {found.wrapper} was made to ignore {'it' if len(found.names) == 1 else 'them'}"


def _others(found: Unreduced) -> str:
    """Return what becomes of the other gradients, as the rest of a sentence."""
    group = found.group
    if group.wrapper is None:
        at = f" at {group.source}" if group.source else ""
        are = "is" if found.others == 1 else "are"
        return f"while {times(found.others or 0, 'other gradient')} {are} reduced{at}"
    others = "others" if found.others is None else times(found.others, "other gradient")
    return f"while {group.wrapper} reduces {others}"


def _by(found: Unreduced) -> str | None:
    if found.group.wrapper is not None:
        return f"by {found.group.wrapper}"
    return None if found.group.source is None else f"at {found.group.source}"


def _remedy(found: Unreduced, world_size: int) -> Remedy:
    group, names = found.group, found.names
    part = names[0].rpartition(".")[0] or names[0]
    if group.wrapper is None and found.wrapper is None:
        at = f" at {group.source}" if group.source else ""
        whose = "its gradient" if len(names) == 1 else "their gradients"
        return Remedy(
            f"Reduce {whose} with the others{at}, after backward and before the optimizer. {MAKE_SURE}",
            _reduce_code(found, world_size),
        )
    wrapper = found.wrapper or group.wrapper
    whole = WRAPS.get(wrapper or "", "fully_shard(model)")
    if found.wrapper is None:
        return Remedy(
            f"Give {wrapper} the whole model: {part} is outside of what it wraps. {MAKE_SURE}",
            f"{whole}  # with {part} in it",
        )
    if found.ignored:
        return Remedy(
            f"Take {part} off the list of parameters that {wrapper} ignores, unless ranks are to train it "
            f"apart. {MAKE_SURE}",
            f"{whole}  # and ignore nothing",
        )
    return Remedy(
        f"Add {part} to the model before {wrapper} wraps it, and take it off any list of parameters to "
        f"ignore. {MAKE_SURE}",
        f"model.{part} = ...  # first\n{whole}  # then wrap, and ignore nothing",
    )


def _reduce_code(found: Unreduced, world_size: int) -> str:
    op = (found.group.reduce_op or "sum").lower()
    average = "avg" in op or "mean" in op
    argument = ", op=dist.ReduceOp.AVG" if average else ""
    group, note = on_group(found.group.mesh_dim), ""
    if not group and len(found.group.over) < world_size:
        # Without a mesh the program has the group in a variable of its own.
        group, note = ", group=group", at(found.group.source or "the others", "the group of")
    if not average:
        note += f"{';' if note else '  #'} and divide it as the others are"
    if len(found.names) == 1:
        return f"dist.all_reduce({parameter(found.names[0])}.grad{argument}{group}){note}"
    named = ", ".join(f'"{name}"' for name in found.names[:NAMED])
    more = f"  # and {len(found.names) - NAMED} more" if len(found.names) > NAMED else ""
    return (
        f"for name in ({named}):{more}\n"
        f"    dist.all_reduce(model.get_parameter(name).grad{argument}{group}){note}"
    )


def used_at(context: Context, name: str) -> str | None:
    """Return the line whose forward uses the parameter, or calls its module; None if no operator shows it."""
    frame = context.computes_in_steps
    frame = keep(frame, (frame["phase"] == "forward") & frame["source"].notna())
    owner = name.rpartition(".")[0]
    for mine in (frame["parameter"] == name, (frame["module"] == owner) & bool(owner)):
        rows = keep(frame, mine)
        if not rows.empty:
            return str(rows["source"].iloc[0])
    return None
