"""Collectives that move the same bytes again."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.micro_batches import passes_begun
from shardtoll.analyzers.findings.needless.needless_finding import (
    Story,
    Subject,
    described,
    needless_findings,
)
from shardtoll.analyzers.shared import remedy_code
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.sampled import SAMPLED
from shardtoll.analyzers.shared.tally import Line, begins_with, keep, numbered, with_columns
from shardtoll.analyzers.shared.wrapper_causes import GATHERERS, WRAPPER_CAUSES
from shardtoll.ledger import Evidence, Finding, Remedy

SAME: Final = (
    *("rank", "step", "phase_class", "pass"),
    *("group", "group_id", "op", "dtype", "message_bytes", "reduce_op", "root", "parameter", "input_hash"),
)
"""Columns in which two records must agree to be the same transfer. The parameter is among them because equal
bytes of two parameters (norm weights as they are initialised) are two transfers."""

KEYS: Final = ("op", "net", "phase_class", "caused_by_op", "parameters", "first_source", "source")
"""`parameters`: the parameter with its numbers as `*`, so that the layers of a model are one finding."""

PHASE_CLASS: Final = {"recompute": "backward"}
"""Recompute runs inside backward: what it gathered, backward still has at hand."""

SENT_BY_ROOT: Final = ("broadcast", "scatter")
"""Only the root has bytes to compare."""

SHOWN: Final = ("phase", "seq", "caused_by_op", "source")
"""Columns shown of each collective of a pair."""

DDP_ITSELF: Final = "DistributedDataParallel"
"""Causes that begin so broadcast buffers, and values that each model agrees on once."""


@once
def repeats(context: Context) -> pd.DataFrame:
    """Return the collectives that repeat an earlier one, with `first`: the row label of that one.

    A repeat has the same rank, group, op, dtype, size and fingerprint of its input as an earlier collective.
    Both are in the same step and phase class (forward; backward with recompute; optimizer; other). It must be
    one on every rank that recorded it: equal bytes on one rank alone, as an empty shard, spare nothing.
    Records with no fingerprint and barriers are never repeats.

    A wrapper that gathers its parameters again in a later pass (the next micro-batch) trades time
    for memory on purpose. For causes of FSDP and ZeRO 3 only repeats within one pass are counted. Without a
    backward between them, as in evaluation, forward passes are separated by what else was gathered since.
    Fingerprints are taken in surveyed steps only.

    Equal bytes may be a coincidence: ranks of one seed, a ring that passes equal blocks on. A repeat sends
    one untouched memory again, the values of one parameter, or what a wrapper keeps.
    """
    frame = context.in_surveyed
    if not context.tells("input_hash"):
        nothing: pd.DataFrame = frame.iloc[:0]
        return nothing
    frame = with_columns(
        frame, phase_class=frame["phase"].replace(PHASE_CLASS), at=frame["issue_ns"].fillna(frame["start_ns"])
    )
    frame = frame.sort_values(["rank", "step", "at"], kind="stable", na_position="last")
    where = numbered(frame, ["rank", "step", "phase_class"])
    passes = np.cumsum(np.diff(where, prepend=-1) != 0)
    by_design = begins_with(frame["caused_by_op"], GATHERERS)
    # Passes without another collective between them, as with gradients kept to the last micro-batch, are
    # separated by their operators.
    forwards = passes_begun(context, frame, backward=False)
    passes = passes * (forwards.max(initial=0) + 1) + forwards
    runs = np.zeros(len(frame), dtype=np.int64)
    begins = numbered(keep(frame, by_design), ["rank", "step", "module", "phase_class"])
    runs[by_design] = np.cumsum(np.diff(begins, prepend=-1) != 0)
    runs[(frame["phase_class"] != "forward").to_numpy(dtype=bool)] = 0
    frame["pass"] = np.where(by_design, passes * (runs.max(initial=0) + 1) + runs, -1)
    agreed = (frame["op"] == "broadcast") & begins_with(frame["caused_by_op"], DDP_ITSELF)
    buffers = frame["caused_by_op"] == f"{DDP_ITSELF}.buffers"
    frame = keep(frame, frame["input_hash"].notna() & (frame["op"] != "barrier") & ~(agreed & ~buffers))
    if frame.empty:
        return frame
    named = frame["parameter"].notna() | begins_with(frame["caused_by_op"], WRAPPER_CAUSES)
    frame = with_columns(frame, content=frame["input_content"].mask(named, -1))
    frame = keep(frame, frame["content"].notna())
    same = numbered(frame, [*SAME, "content"])
    labels = pd.Series(frame.index, index=frame.index)
    first = labels.groupby(same).transform("first")
    frame = with_columns(frame, first=first, again=(first != labels))
    sent_by_all = frame["match_id"].notna().to_numpy(dtype=bool)
    again = frame["again"].to_numpy(dtype=bool)
    again[sent_by_all] &= _on_every_rank(context, keep(frame, sent_by_all))
    return keep(frame, again)


def _on_every_rank(context: Context, frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return for each matched row whether all ranks that sent bytes repeat one and the same collective."""
    origin = context.collectives["match_id"].reindex(frame["first"])
    of_match = with_columns(frame, origin=origin.to_numpy(dtype=np.int64, na_value=-1)).groupby("match_id")
    rows = context.in_surveyed
    senders = keep(rows, rows["input_hash"].notna() | ~rows["op"].isin(SENT_BY_ROOT))
    wanted = frame["match_id"].map(senders.groupby("match_id").size())
    every: npt.NDArray[np.bool_] = (
        of_match["again"].transform("all")
        & (of_match["origin"].transform("nunique") == 1)
        & (of_match["again"].transform("size") == wanted)
    ).to_numpy(dtype=bool)
    return every


def find(context: Context) -> list[Finding]:
    """Return one finding a pair of lines, cause, parameter, group and phase class.

    Counts, bytes and times are those of the repeats alone, per surveyed step, on the rank where they are
    largest. The counterfactual is the same step with the first result kept, so the saving is the whole toll.
    """
    frame = repeats(context)
    if frame.empty:
        return []
    first = context.collectives.reindex(frame["first"])
    frame = with_columns(frame, **{f"first_{name}": first[name].to_numpy() for name in SHOWN})
    return needless_findings(context, frame, KEYS, "phase_class", _story)


def _story(line: Line, subject: Subject) -> Story:
    return Story(
        title_end=f" repeated {subject.size} that this step had sent before{subject.place}",
        remedy=_remedy(str(line.first["op"]), line.text("caused_by_op"), str(line.first["phase_class"])),
        evidence=(
            Evidence("first", described(line, [f"first_{name}" for name in SHOWN])),
            Evidence("again", described(line, SHOWN)),
            Evidence("fingerprint of both inputs", _hex(line.first["input_hash"])),
        ),
        more_evidence=(SAMPLED,) if subject.sampled else (),
        total_label="repeats in all steps and ranks",
        confidence="certain" if subject.matched else "likely",
        floor_ns=0,
        clause="repeats bytes that this step had sent before",
    )


def _hex(fingerprint: int) -> str:
    """Return a signed 64-bit fingerprint as 16 digits."""
    return f"{int(fingerprint) & (2**64 - 1):016x}"


def _remedy(op: str, cause: str | None, phase: str) -> Remedy:
    code = None
    if cause is not None and cause.startswith(GATHERERS) and phase == "backward":
        text = (
            "Checkpoint the block first and shard it afterwards, or checkpoint it with use_reentrant=False. "
            "Backward gathers these parameters once for recompute and once for itself: the checkpoint calls "
            "the block that is sharded, so it is gathered, freed, and gathered again."
        )
        code = (
            "block = FullyShardedDataParallel(checkpoint_wrapper(block))"
            if cause.startswith("FSDP1")
            else "block = checkpoint_wrapper(block)\nfully_shard(block)"
        )
    elif phase == "optimizer":
        text = (
            "Redistribute the gradient once before step(): the optimizer reads the same pending gradient "
            "several times, and each read communicates."
        )
        code = "p.grad = p.grad.redistribute(placements=p.placements)"
    else:
        text = f"Keep the result of the first {op} and use it again, or redistribute once before all uses."
        code = (
            f"{remedy_code.call(op, tensor='x')}  # once per step\nfirst, second = use(x), use_again(x)  # "
            "both use the kept result"
        )
    counterfactual = "the same step with the first result kept: none of the repeats"
    return Remedy(text=text, code=code, counterfactual=counterfactual)
