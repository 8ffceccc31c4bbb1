"""Collectives that nobody asked for: DTensor moves an operator's input to another placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared import remedy_code
from shardtoll.analyzers.shared.layer_names import Names, pattern
from shardtoll.analyzers.shared.placements import as_list, changes, hidden
from shardtoll.analyzers.shared.tally import keep, number, tally, with_columns
from shardtoll.ledger import Evidence, Finding, Remedy, Rows
from shardtoll.ledger.words.human import place, some_size, some_time
from shardtoll.ledger.words.human import plural as times

KEYS: Final = (
    "modules",
    "caused_by_op",
    "op",
    "source",
    "placements_from",
    "placements_to",
    "net",
    "phase",
)

MATMULS: Final = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear")


def find(context: Context) -> list[Finding]:
    """Return one finding a cause: module, operator, line, placements, mesh dimension and phase.

    In the optimizer, whose line is the cause and not the module, the layers of a model are one.

    Counts, bytes and times are per step, on the rank where they are largest. The counterfactual is the
    same step without the collective, so the saving is the whole toll. A pending sum has to be reduced
    once all the same, so there it is the same reduction at its expected time. A collective may also be
    part of a `latency-bound` finding: those tolls do not add up. `one_line` joins a `redundant-collective`
    of the same rows. The sum over ranks
    that a norm of shards is made of is none of these.
    """
    frame = keep(context.in_steps, hidden(context.in_steps))
    if frame.empty:
        return []
    stepping = frame["phase"] == "optimizer"
    frame = with_columns(frame, modules=frame["module"].mask(stepping, pattern(frame["module"])))
    values = ("exposed_ns", "message_bytes", "wire_bytes", "floor_ns", "expected_ns")
    result = tally(frame, KEYS, values, context.steps, times_in=context.timed)
    by_code = frame.groupby(result.code)
    sizes = by_code["message_bytes"].agg(["min", "max"])
    parameters, modules = Names(frame["parameter"], result.code), Names(frame["module"], result.code)
    operands = Names(frame["operand"], result.code)
    findings = []
    for line in result.lines:
        toll, moved = line.figures["exposed_ns"], line.figures["message_bytes"]
        op, cause, phase = str(line.first["op"]), line.text("caused_by_op"), str(line.first["phase"])
        before, after = line.text("placements_from"), line.text("placements_to")
        path = f"{before or 'unknown placements'} -> {after or 'unknown placements'}"
        named, module = parameters.of(line), modules.place(line, "modules")
        # A sum that is pending has to be reduced somewhere, whoever asks for it.
        needed = line.figures["expected_ns"] if "Partial" in (before or "") else 0
        saving = None if toll is None or needed is None else max(0, toll - needed)
        findings.append(
            Finding(
                kind="implicit-redistribute",
                severity="info" if _required(cause, before, after, phase) else "warning",
                title=f"{cause or 'an operator'} made DTensor redistribute {path}: {times(line.each, op)} "
                f"per step on {line.first['net']}, {some_size(moved)}"
                f"{place(module, line.text('source'))}",
                toll_ns=toll,
                floor_ns=line.figures["floor_ns"],
                saving_ns=saving,
                bytes=moved,
                count=line.count,
                ranks=line.ranks,
                where=replace(
                    line.where("phase", "source", "group", "mesh_dim", op=cause),
                    module=module,
                    parameter=named[0] if len(named) == 1 else None,
                ),
                rows=Rows.of(collectives=result.places(line)),
                parameters=parameters.several(line),
                evidence=(
                    Evidence("collective", op),
                    Evidence("placements", path),
                    Evidence("operand", "; ".join(operands.of(line)) or None),
                    Evidence("smallest message", number(sizes["min"][line.code]), "bytes"),
                    Evidence("largest message", number(sizes["max"][line.code]), "bytes"),
                    Evidence("dtype", line.text("dtype")),
                    Evidence("wire bytes per step and rank", line.figures["wire_bytes"], "bytes"),
                    *parameters.evidence(line, "parameters"),
                    *modules.evidence(line, "modules"),
                    Evidence("collectives in all steps and ranks", line.total),
                    Evidence("of them without a known time or size", line.unknown),
                ),
                remedy=_located(
                    _remedy(cause or "the operator", before, after, phase, saving, operands.of(line)),
                    named[0] if len(named) == 1 else None,
                    module,
                    line.text("source"),
                    line.text("mesh_dim"),
                ),
            )
        )
    return findings


def _required(cause: str | None, before: str | None, after: str | None, phase: str) -> bool:
    """Whether the operator cannot do without: it needs the values of a pending sum, as softmax's backward.

    An optimizer reads a gradient several times, a matmul could have been given operands cut to fit.
    """
    moves = {(a.split(":")[0], b.split(":")[0]) for a, b in changes(before, after)}
    reduces = bool(moves) and all(was == "partial" for was, _ in moves)
    return reduces and phase != "optimizer" and not _is_matmul(cause or "")


def _is_matmul(cause: str) -> bool:
    return cause.removeprefix("aten.").split(".")[0] in MATMULS


def _remedy(
    cause: str,
    before: str | None,
    after: str | None,
    phase: str,
    saving: int | None,
    operands: Sequence[str],
) -> Remedy:
    """Return what placement would have spared the collective, as far as the placements tell."""
    moves = {(a.split(":")[0], b.split(":")[0]) for a, b in changes(before, after)}
    which = "; ".join(operands) or "of unknown place"
    is_matmul = _is_matmul(cause)
    if any(was == "partial" and now in ("replicate", "shard") for was, now in moves):
        text, written = _of_pending_sum(cause, after, phase, whole=("partial", "replicate") in moves)
    elif is_matmul and "_StridedShard" in (before or ""):
        text = (
            "Multiply the local tensors and give the result its placement, or keep one dimension as bmm's "
            f"batch. Before {cause}, matmul folded dimensions that are sharded on several mesh dimensions. "
            f"The operator does not take the folded tensor ({which}), so it is gathered, although each rank "
            "has the parts that it needs."
        )
        written = (
            "own = weight.redistribute(placements=[Replicate(), Shard(0)])  # what belongs to this rank's x\n"
            "y = torch.matmul(x.to_local(), own.to_local(grad_placements=[Partial(), Shard(0)]))\n"
            "y = DTensor.from_local(y, x.device_mesh, x.placements)\n"
            "y = torch.bmm(x, weight.expand(len(x), -1, -1))  # of three dimensions and one matrix"
        )
    elif ("shard", "replicate") in moves and is_matmul:
        text = (
            "Shard the other operand to match (ColwiseParallel or RowwiseParallel does): then nothing is "
            f"gathered. One operand of {cause} ({which}) is sharded and the other does not fit. Or "
            "redistribute it once before all its uses."
        )
        written = (
            f"other = other.redistribute(placements=[Shard(dim)])  # name the other operand of {cause}\n"
            "# where both are nn.Linear's, as `up` and `down` of an MLP (name yours):\n"
            '# parallelize_module(module, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})'
        )
    elif ("shard", "replicate") in moves:
        text = (
            f"Give all operands of {cause} one placement: {before}, so that it runs on the shards and "
            "gathers nothing. Or redistribute once before all its uses."
        )
        written = f"other = other.redistribute(placements={as_list(before)})"
    elif ("shard", "shard") in moves:
        text = (
            f"Make the tensor as {after}, or move its users to {before}: it is made as {before} and used as "
            f"{after}."
        )
        written = f"x = x.redistribute(placements={as_list(after)})  # once, where x is made"
    else:
        text = (
            f"Give the operands placements that {cause} takes as they are, or redistribute once, "
            "explicitly, before all uses."
        )
        arguments = f"placements={as_list(after)}" if after else "mesh, placements"
        written = f"x = x.redistribute({arguments})  # once, before all uses"
    if "Partial" in (before or ""):
        counterfactual = "the same reduction, explicit, at its expected time on the fabric"
    else:
        counterfactual = f"the same step without this redistribute ({some_time(saving)} exposed)"
    return Remedy(text=text, code=written, counterfactual=None if saving is None else counterfactual)


def _of_pending_sum(cause: str, after: str | None, phase: str, *, whole: bool) -> tuple[str, str]:
    """Return text and code if a pending sum was reduced: to the whole on each rank, else to shards."""
    if whole and phase == "optimizer":
        text = (
            "Reduce the gradient once before step(), after backward and before clipping. It is a pending "
            "sum (Partial), and each read by clipping or the optimizer reduces it again."
        )
        return text, "p.grad = p.grad.redistribute(placements=p.placements)"
    if whole:
        text = (
            f"Reduce the operand of {cause} once, before all its uses: the operator cannot run on a pending "
            "sum. If the result may stay sharded, redistribute to Shard: a reduce-scatter sends half the "
            "bytes."
        )
        before_use = (
            "x = x.redistribute(placements=[Shard(0)])  # before the operator, on this mesh dimension"
        )
        return text, before_use
    what = "the gradient" if phase == "optimizer" else f"the operand of {cause}"
    text = (
        f"Reduce {what} once, before all its uses: it is a pending sum (Partial), and each use reduces and "
        "scatters it again. It is Partial because an operator's inputs are sharded along another axis "
        "than its result. If all share one axis, no sum is needed."
    )
    return text, (
        "p.grad = p.grad.redistribute(placements=p.placements)"
        if phase == "optimizer"
        else f"x = x.redistribute(placements={as_list(after)})  # before the operator"
    )


def _located(
    remedy: Remedy, parameter: str | None, module: str | None, source: str | None, mesh_dim: str | None
) -> Remedy:
    """Return the remedy with the names of the finding's place in its code."""
    written = remedy.code or ""
    if written.startswith("p.grad") and parameter is not None:
        written = f"p = {remedy_code.parameter(parameter)}  # after backward, before clipping\n{written}"
    elif written.startswith("p.grad"):
        written = (
            f"for p in model.parameters():  # after backward, before clipping\n"
            f"    if isinstance(p.grad, DTensor):\n        {written}"
        )
    elif written.startswith("parallelize_module"):
        written = written.replace(
            'module, mesh["tp"]', f"{remedy_code.module(module)}, {remedy_code.mesh(mesh_dim)}"
        )
    comment = remedy_code.at(source, "for")
    return replace(remedy, code=f"{written}\n{comment.strip()}" if comment else written)
