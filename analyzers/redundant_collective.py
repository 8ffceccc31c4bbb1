"""Collectives that move the same bytes again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers import remedy_code
from shardtoll.analyzers.context import Context
from shardtoll.analyzers.layers import Names, pattern
from shardtoll.analyzers.memo import once
from shardtoll.analyzers.micro_batches import passes_begun
from shardtoll.analyzers.tally import Line, keep, number, numbered, tally
from shardtoll.analyzers.words import place, size, times
from shardtoll.analyzers.wrapper_causes import GATHERERS
from shardtoll.ledger import Evidence, Finding, Remedy

SAME: Final = (
    *("rank", "step", "phase_class", "pass"),
    *("group", "group_id", "op", "dtype", "message_bytes", "reduce_op", "root", "parameter", "input_hash"),
)
"""What two records must share to be the same transfer. The parameter is among them because equal
bytes of two parameters (norm weights as they are initialised) are two transfers."""

KEYS: Final = ("op", "net", "phase_class", "caused_by_op", "parameters", "first_source", "source")
"""`parameters`: the parameter with its numbers as `*`, so that the layers of a model are one finding."""

PHASE_CLASS: Final = {"recompute": "backward"}
"""Recompute runs inside backward: what it gathered, backward still has at hand."""

SENT_BY_ROOT: Final = ("broadcast", "scatter")
"""Only the root has bytes to compare."""

SAMPLE: Final = 4096
"""Elements at most that a fingerprint is made of: of longer messages it is a sample."""

WIDTHS: Final = {
    "float64": 8,
    "int64": 8,
    "complex64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
}
"""Bytes of an element; of types that are not here as few as can be."""

DDP_ITSELF: Final = "DistributedDataParallel"
"""Causes that begin so broadcast, besides buffers, what each model agrees on once."""


@once
def repeats(context: Context) -> pd.DataFrame:
    """Return the collectives that repeat an earlier one, with `first`: the row label of that one.

    A repeat has the same rank, group, op, dtype, size and fingerprint of its input as an earlier
    collective of the same step and phase class (forward; backward with recompute; optimizer;
    other). It must be one on every rank that recorded it: equal bytes on one rank alone, as an
    empty shard, spare nothing. Records with no fingerprint and barriers are never repeats.

    A wrapper that gathers its parameters again in a later pass (the next micro-batch) trades time
    for memory on purpose; for causes of FSDP and ZeRO 3 only repeats within one pass are counted. Without a
    backward between them, as in evaluation, forward passes are told apart by what else was gathered since.
    Fingerprints are taken in surveyed steps only.
    """
    frame = context.in_surveyed
    frame = frame.assign(
        phase_class=frame["phase"].replace(PHASE_CLASS), at=frame["issue_ns"].fillna(frame["start_ns"])
    )
    frame = frame.sort_values(["rank", "step", "at"], kind="stable", na_position="last")
    where = numbered(frame, ["rank", "step", "phase_class"])
    passes = np.cumsum(np.diff(where, prepend=-1) != 0)
    by_design = frame["caused_by_op"].fillna("").str.startswith(GATHERERS).to_numpy(dtype=bool)
    # Passes without another collective between them, as with gradients kept to the last micro-batch, are told
    # apart by their operators.
    forwards = passes_begun(context, frame, backward=False)
    passes = passes * (forwards.max(initial=0) + 1) + forwards
    runs = np.zeros(len(frame), dtype=np.int64)
    begins = numbered(keep(frame, by_design), ["rank", "step", "module", "phase_class"])
    runs[by_design] = np.cumsum(np.diff(begins, prepend=-1) != 0)
    runs[(frame["phase_class"] != "forward").to_numpy(dtype=bool)] = 0
    frame["pass"] = np.where(by_design, passes * (runs.max(initial=0) + 1) + runs, -1)
    agreed = (frame["op"] == "broadcast") & frame["caused_by_op"].fillna("").str.startswith(DDP_ITSELF)
    buffers = frame["caused_by_op"] == f"{DDP_ITSELF}.buffers"
    frame = keep(frame, frame["input_hash"].notna() & (frame["op"] != "barrier") & ~(agreed & ~buffers))
    if frame.empty:
        return frame
    same = numbered(frame, SAME)
    labels = pd.Series(frame.index, index=frame.index)
    first = labels.groupby(same).transform("first")
    frame = frame.assign(first=first, again=(first != labels))
    sent_by_all = frame["match_id"].notna().to_numpy(dtype=bool)
    again = frame["again"].to_numpy(dtype=bool)
    again[sent_by_all] &= _on_every_rank(context, keep(frame, sent_by_all))
    return keep(frame, again)


def _on_every_rank(context: Context, frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return for each matched row whether all ranks that sent bytes repeat one and the same collective."""
    origin = context.collectives["match_id"].reindex(frame["first"])
    of_match = frame.assign(origin=origin.to_numpy(dtype=np.int64, na_value=-1)).groupby("match_id")
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
    frame = frame.assign(
        **{f"first_{name}": first[name].to_numpy() for name in ("source", "phase", "caused_by_op", "seq")}
    )
    frame = frame.assign(parameters=pattern(frame["parameter"]))
    result = tally(frame, KEYS, ("exposed_ns", "message_bytes"), context.surveyed)
    parameters, modules = Names(frame["parameter"], result.code), Names(frame["module"], result.code)
    unmatched = frame["match_id"].isna().groupby(result.code).any()
    sampled = is_sampled(frame).groupby(result.code).any()
    findings = []
    for line in result.lines:
        toll, moved = line.figures["exposed_ns"], line.figures["message_bytes"]
        op, phase, cause = str(line.first["op"]), str(line.first["phase_class"]), line.text("caused_by_op")
        parameter = parameters.place(line, "parameters")
        named_modules = modules.of(line)
        module = named_modules[0] if len(named_modules) == 1 else None
        subject = f" of {parameter}" if parameter else ""
        findings.append(
            Finding(
                kind="redundant-collective",
                severity="warning",
                title=f"{times(line.each, op)}{subject} a step on {line.first['net']} in {phase} sent bytes "
                f"already sent: {size(moved)} again{place(module, line.text('source'))}",
                toll_ns=toll,
                floor_ns=0,
                saving_ns=toll,
                bytes=moved,
                count=line.count,
                ranks=line.ranks,
                where=replace(
                    line.where("phase", "source", "group", "mesh_dim", op=cause or op, parameter=parameter),
                    module=module,
                ),
                evidence=(
                    Evidence("collective", op),
                    Evidence("first", _one(line, "first_")),
                    Evidence("again", _one(line, "")),
                    Evidence("fingerprint of both inputs", _hex(line.first["input_hash"])),
                    Evidence("message", number(line.first["message_bytes"]), "bytes"),
                    *(
                        (Evidence("fingerprints are of", f"{SAMPLE:,} elements at most, by a fixed stride"),)
                        if bool(sampled[line.code])
                        else ()
                    ),
                    *parameters.evidence(line, "parameters"),
                    *modules.evidence(line, "modules"),
                    Evidence("repeats in all steps and ranks", line.total),
                ),
                remedy=_remedy(op, cause, phase, claimed=toll is not None),
                confidence="likely" if bool(unmatched[line.code] or sampled[line.code]) else "certain",
            )
        )
    return findings


def is_sampled(frame: pd.DataFrame) -> pd.Series[Any]:
    """Return for each collective whether its message has more elements than a fingerprint looks at.

    Then equal fingerprints do not prove equal bytes: one row of a table may differ.
    """
    width = frame["dtype"].map(WIDTHS).fillna(1).astype("int64")
    return (frame["message_bytes"].fillna(0) > SAMPLE * width).astype(bool)


def _hex(fingerprint: int) -> str:
    """Return a signed 64-bit fingerprint as 16 digits."""
    return f"{int(fingerprint) & (2**64 - 1):016x}"


def _one(line: Line, prefix: str) -> str:
    """Return one of the pair in words: its phase, sequence number, cause and line."""
    seq = number(line.first[f"{prefix}seq"])
    parts = (
        line.text(f"{prefix}phase"),
        None if seq is None else f"seq {seq}",
        line.text(f"{prefix}caused_by_op"),
        line.text(f"{prefix}source"),
    )
    return ", ".join(part for part in parts if part)


def _remedy(op: str, cause: str | None, phase: str, *, claimed: bool) -> Remedy:
    code = None
    if cause is not None and cause.startswith(GATHERERS) and phase == "backward":
        text = (
            "Backward gathers these parameters once for recompute and once for itself: the checkpoint calls "
            "the block that is sharded, so it is gathered, freed, and gathered again. Checkpoint the block "
            "first and shard it afterwards, or checkpoint it with use_reentrant=False."
        )
        code = (
            "block = FullyShardedDataParallel(checkpoint_wrapper(block))"
            if cause.startswith("FSDP1")
            else "block = checkpoint_wrapper(block)\nfully_shard(block)"
        )
    elif phase == "optimizer":
        text = (
            "The optimizer reads the same pending gradient several times and each read communicates. "
            "Redistribute the gradient once before step()."
        )
        code = "p.grad = p.grad.redistribute(placements=p.placements)"
    else:
        text = f"Keep the result of the first {op} and use it again, or redistribute once before all uses."
        code = (
            f"{remedy_code.call(op, tensor='x')}  # once a step\n"
            "first, second = use(x), use_again(x)  # both take what was kept"
        )
    counterfactual = "the same step with the first result kept: none of the repeats" if claimed else None
    return Remedy(text=text, code=code, counterfactual=counterfactual)
