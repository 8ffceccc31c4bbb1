"""The same work done on several ranks, or twice on one: by DTensor placements, or by equal values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.duplicates import duplicated_data
from shardtoll.analyzers.findings.duplicates import duplicated_remedies as remedies
from shardtoll.analyzers.findings.duplicates.same_work import (
    MOST,
    Ranks,
    Repeats,
    again_on_one_rank,
    by_placement,
    by_value,
    group_name,
    listed,
    same_gradients,
    telling,
)
from shardtoll.analyzers.findings.replicas.agreement import WHOLE, whole_contents
from shardtoll.analyzers.findings.values.identical_shards import identical
from shardtoll.analyzers.shared.layer_names import Names, pattern
from shardtoll.analyzers.shared.tally import Codes, Line, keep, numbered, tally
from shardtoll.ledger import Evidence, Figure, Finding, Rows
from shardtoll.ledger.records.finding import Confidence, Severity, Where
from shardtoll.ledger.records.work import kind_of_work
from shardtoll.ledger.words.human import place
from shardtoll.ledger.words.human import plural as times
from shardtoll.ledger.words.human import work as flops

FAMILY: Final = ("why", "in_phase", "modules", "at", "factor", "basis", "place")
"""Columns that the operators of one finding have in common: the layers of a model are one. If it is a choice,
or the data are equal, findings differ only in why, on how many ranks, which, and how that is known. The rest
is one sentence for all."""

AGAIN: Final = ("phase", "modules", "parameters", "first_source", "source")

LEAST_SHARE: Final = 0.01
"""Share of the step from which it is a warning."""

LEAST_FLOPS: Final = 0.02
"""Share of the step's FLOPs from which it is a warning. A small router or head, kept whole on purpose, takes
less. In a step of tiny operators any one of them takes 1 % of the time."""


MEAN: Final = "a mean step, all ranks seen"


class _Work(Struct, frozen=True):
    """FLOPs of a family, per step, all ranks together; whole if all steps agree, else a mean."""

    done: int
    needed: int
    even: bool


def find(context: Context) -> list[Finding]:
    """Return one finding a family: layers, phase, line; one for each kind of choice and for equal data.

    Each operator is counted once: as done again on its own rank, or else by whichever of the two proofs
    shows more ranks. The toll is the mean duration over the ranks, per surveyed step, times (1 - 1/ranks);
    None if operators have no durations. The counterfactual is each rank doing its share of the work, so the
    saving is the whole toll. FLOPs are exact sums over the ranks seen.
    """
    frame = keep(context.priced_computes, context.priced_computes["flops"] > 0)
    if frame.empty:
        return []
    frame = frame.assign(row=frame.index).reset_index(drop=True)
    work = {op: kind_of_work(str(op)) for op in frame["op"].unique()}
    frame = frame.assign(
        work=frame["op"].map(work), modules=pattern(frame["module"]), parameters=pattern(frame["parameter"])
    )
    matmuls = keep(frame, frame["work"] == "matmul")
    weigh = _Weigh(context, float(matmuls["flops"].to_numpy(dtype=np.float64).sum()))
    again = again_on_one_rank(frame)
    frame = frame.drop(index=again.index).reset_index(drop=True)
    return [*_on_several(context, frame, weigh), *_on_one(context, again, weigh)]


class _Weigh(Struct, frozen=True):
    """Says how much a finding weighs."""

    context: Context
    matmul_flops: float
    """Sum over all surveyed steps and ranks."""

    def severity(self, toll: int | None, too_many: int) -> Severity:
        """Return `warning` if both the time (if known) and the FLOPs are worth one; FLOPs per step."""
        share = self.context.share_as_watched(toll)
        of_all = too_many * len(self.context.surveyed) / max(1, self.matmul_flops)
        heavy = of_all >= LEAST_FLOPS and (share is None or share >= LEAST_SHARE)
        return "warning" if heavy else "info"


# -- on several ranks ----------------------------------------------------------------------------------


def _on_several(context: Context, frame: pd.DataFrame, weigh: _Weigh) -> list[Finding]:
    placed, valued = by_placement(context, frame), _without_equal_shards(context, by_value(context, frame))
    sure = placed.factor >= valued.factor
    frame = frame.assign(
        factor=np.maximum(placed.factor, valued.factor),
        basis=np.where(sure, "placements", "fingerprints"),
        place=np.where(sure, placed.place, valued.place),
    )
    why = frame["work"].where(frame["phase"] != "optimizer", "optimizer").replace("matmul", "")
    why = why.mask((why != "optimizer") & ~sure & _of_equal_data(context, frame, valued), "data")
    frame = keep(frame.assign(why=why), frame["factor"] > 1)
    if frame.empty:
        return []
    avoidable = frame["why"] == ""
    frame = frame.assign(
        in_phase=frame["phase"].where(avoidable),
        at=frame["source"].where(avoidable),
        modules=frame["modules"].where(avoidable),
        extra_ns=_spread(frame["duration_ns"], frame["factor"].to_numpy(dtype=np.int64)),
    )
    result = tally(frame, FAMILY, ("extra_ns",), context.surveyed, over_ranks="mean")
    rows_of = frame.groupby(result.code).indices
    names = {
        column: Names(frame[column], result.code) for column in ("module", "parameter", "source", "phase")
    }
    equal_inputs = _told_by_inputs(context) if (frame["why"] == "data").any() else []
    return [
        _finding(
            context,
            line,
            frame.iloc[rows_of[line.code]],
            placed if line.first["basis"] == "placements" else valued,
            names,
            weigh,
        )
        for line in result.lines
        if not (line.first["why"] == "data" and any({*line.ranks} <= ranks for ranks in equal_inputs))
    ]


def _without_equal_shards(context: Context, valued: Repeats) -> Repeats:
    """Return what equal values say, but for ranks whose shards began equal.

    These compute the same until their shards differ, as they ought to: `identical-shards` says it.
    """
    ranks = [ranks for names in identical(context).values() for ranks in names.values()]
    if not ranks:
        return valued
    equal = set().union(*ranks)
    explained = np.array([all(set(members) <= equal for members in sets) for sets in valued.sets] + [False])
    mine = explained[valued.place]
    return replace(valued, factor=np.where(mine, 1, valued.factor), place=np.where(mine, -1, valued.place))


def _told_by_inputs(context: Context) -> list[set[int]]:
    """Return the ranks whose equal inputs `duplicated-data` bills, with all that they compute from them."""
    return [
        set(finding.ranks)
        for finding in duplicated_data.find(context)
        if finding.where.op == "input" and finding.toll_ns is not None
    ]


def _of_equal_data(
    context: Context, frame: pd.DataFrame, valued: Repeats
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each row whether the ranks that did it had equal gradients to reduce: all else follows."""
    equal = [set(ranks) for ranks in same_gradients(context) if _all_the_same(frame, valued, ranks)]

    def explained(ranks: Ranks) -> bool:
        members = set(ranks)
        return any(members <= other for other in equal) or any(other <= members for other in equal)

    explained_sets = np.array([all(map(explained, sets)) for sets in valued.sets] + [False], dtype=bool)
    # Rows that placements explain have places of their own; whoever asks leaves those out.
    place_of = frame["place"].to_numpy()
    return explained_sets[np.where((place_of >= 0) & (place_of < len(valued.sets)), place_of, -1)]


def _all_the_same(frame: pd.DataFrame, valued: Repeats, ranks: Ranks) -> bool:
    """Whether values show nearly all that the ranks multiply to be the same.

    Those that share a model cut by hand have equal gradients of what is not cut, and their own parts of it.
    """
    mine = frame["rank"].isin(ranks) & (frame["work"] == "matmul") & (frame["phase"] != "optimizer")
    mine &= telling(frame)
    told = frame["flops"].to_numpy(dtype=np.float64)[mine.to_numpy(dtype=bool)]
    same = (valued.factor > 1)[mine.to_numpy(dtype=bool)]
    return bool(told[same].sum() >= MOST * told.sum())


def _spread(duration_ns: pd.Series[Any], factor: Codes) -> pd.arrays.IntegerArray:
    """Return what each rank would be spared if they shared the work."""
    known_ns = duration_ns.to_numpy(dtype=np.int64, na_value=0)
    unknown = duration_ns.isna().to_numpy(dtype=bool)
    return pd.arrays.IntegerArray(known_ns * (factor - 1) // factor, unknown)


def _per_step(context: Context, rows: pd.DataFrame, ways: int) -> _Work:
    # Python's numbers: the FLOPs of many ranks may not fit 64 bits.
    per_step = [sum(flops.to_numpy(dtype=np.int64).tolist()) for _, flops in rows.groupby("step")["flops"]]
    even = len(set(per_step)) == 1 and len(per_step) == len(context.surveyed)
    done = per_step[0] if even else round(sum(per_step) / len(context.surveyed))
    return _Work(done, -(-done // ways), even)


def _finding(
    context: Context,
    line: Line,
    rows: pd.DataFrame,
    repeats: Repeats,
    names: dict[str, Names],
    weigh: _Weigh,
) -> Finding:
    toll, ways, why = line.figures["extra_ns"], int(line.first["factor"]), str(line.first["why"])
    by_op = rows["flops"].astype("Float64").groupby(rows["op"]).sum()
    by_op = by_op.sort_values(ascending=False, kind="stable")
    op, sure = str(by_op.index[0]), line.first["basis"] == "placements"
    code = int(line.first["place"])
    sets, dims = repeats.sets[code], repeats.over[code]
    module = None if why else names["module"].place(line, "modules")
    parameter = None if why else names["parameter"].place(line, "parameters")
    source, phases = names["source"].of(line), names["phase"].of(line)
    work = _per_step(context, rows, ways)
    case = remedies.Told(
        why=why,
        op=op,
        ways=ways,
        dims=dims,
        ranks=listed(sets) or listed([line.ranks]),
        module=module,
        parameter=parameter,
        phases=tuple(phases),
        toll=toll,
        state_bytes=remedies.state_bytes(line.text("shapes")) if why == "optimizer" else None,
        modules=tuple(names["module"].of(line)),
        inputs_seen=why == "data" and _inputs_are_equal(context, sets),
    )
    shown_by = (
        f"every input is Replicate over {dims}"
        if sure
        else "same operator in the same order with equal inputs and outputs (fingerprints) on each rank"
    )
    line_of_source = source[0] if len(source) == 1 else None
    # Equal data are a mistake whatever their share of a step that is all overhead.
    severity: Severity = "warning" if why == "data" else weigh.severity(toll, work.done - work.needed)
    return Finding(
        kind="duplicated-compute",
        severity="info" if remedies.is_choice(case) else severity,
        title=remedies.title(case, place(module, line_of_source), flops(work.done), flops(work.needed)),
        toll_ns=toll,
        floor_ns=None,
        saving_ns=toll,
        bytes=None,
        count=line.count,
        ranks=line.ranks,
        where=Where(
            phase=phases[0] if len(phases) == 1 else None,
            module=module,
            parameter=parameter,
            op=op,
            source=line_of_source,
            group=None if dims else group_name(context, sets),
            mesh_dim=dims,
        ),
        evidence=(
            *_work_evidence(work, ways),
            Evidence("ranks that did the same", case.ranks),
            Evidence("shown by", shown_by),
            *_operators(by_op, len(context.surveyed)),
            *names["module"].evidence(line, "modules"),
            *names["source"].evidence(line, "lines"),
            Evidence("shapes", _first_few(rows["shapes"])),
            Evidence("state of the optimizer on each rank", case.state_bytes, "bytes")
            if case.state_bytes is not None
            else Evidence("operators in all steps and ranks", line.total),
        ),
        remedy=remedies.remedy(case),
        confidence="certain" if sure else "likely",
        rows=Rows.of(computes=rows["row"]),
        figures=(
            *_figures(work.done, work.needed),
            Figure("ranks_to_one_work", ways, "x"),
            *((Figure("ranks_of_equal_data", ways, "count"),) if why == "data" else ()),
        ),
    )


def _figures(done: int, needed: int) -> tuple[Figure, ...]:
    return (
        Figure("flops_done", done, "flops"),
        Figure("flops_needed", needed, "flops"),
        Figure("flops_too_many", done - needed, "flops"),
    )


def _work_evidence(work: _Work, ways: int) -> tuple[Evidence, ...]:
    return (
        Evidence("FLOPs done per step", work.done, "FLOP"),
        Evidence("FLOPs needed per step", work.needed, "FLOP"),
        Evidence("needless FLOPs per step", work.done - work.needed, "FLOP"),
        Evidence("factor", ways, "x"),
        Evidence("FLOPs are summed over", "one step, all ranks seen" if work.even else MEAN),
    )


def _operators(by_op: pd.Series[Any], steps: int) -> tuple[Evidence, ...]:
    if len(by_op) < 2:
        return ()
    return tuple(
        Evidence(f"of them {op}", round(int(count) / max(1, steps)), "FLOP") for op, count in by_op.items()
    )


def _first_few(shapes: pd.Series[Any], most: int = 3) -> str:
    different = [str(text) for text in shapes.unique()]
    more = f" and {len(different) - most} more" if len(different) > most else ""
    return "; ".join(different[:most]) + more


def _inputs_are_equal(context: Context, sets: tuple[Ranks, ...]) -> bool:
    """Whether the model's inputs were looked at and found equal on these ranks."""
    inputs = keep(context.values, context.values["kind"] == "input")
    inputs = keep(inputs, inputs["hash"].notna() & inputs["rank"].isin(sets[0] if sets else ()))
    if inputs.empty:
        return False
    content = numbered(whole_contents(inputs), ["shape", "hash", *WHOLE])
    contents = (
        inputs.assign(content=content).groupby(["step", "name", "nth"], dropna=False)["content"].nunique()
    )
    return bool((contents == 1).all())


# -- twice on one rank ---------------------------------------------------------------------------------


def _on_one(context: Context, again: pd.DataFrame, weigh: _Weigh) -> list[Finding]:
    if again.empty:
        return []
    again = again.assign(extra_ns=again["duration_ns"])
    result = tally(again, AGAIN, ("extra_ns",), context.surveyed)
    rows_of = again.groupby(result.code).indices
    modules, parameters = Names(again["module"], result.code), Names(again["parameter"], result.code)
    findings = []
    for line in result.lines:
        rows = again.iloc[rows_of[line.code]]
        everywhere = rows["step"].nunique() == len(context.surveyed)
        if not everywhere:
            # Equal in some steps only: weights that start as copies, or data that happen to repeat.
            continue
        too_many, toll = _per_step(context, rows, 1).done, line.figures["extra_ns"]
        first, source = line.text("first_source"), line.text("source")
        module, op = modules.place(line, "modules"), str(line.first["op"])
        confidence: Confidence = "likely" if len(context.surveyed) > 1 else "possible"
        findings.append(
            Finding(
                kind="duplicated-compute",
                severity=weigh.severity(toll, too_many),
                title=f"the same work twice on one rank: {op}{place(module, source)} repeats what it "
                f"multiplied {'there' if first == source else f'at {first}'}, "
                f"{times(line.each, 'time')} per step: {flops(too_many)} too many",
                toll_ns=toll,
                floor_ns=None,
                saving_ns=toll,
                bytes=None,
                count=line.count,
                ranks=line.ranks,
                where=Where(
                    phase=line.text("phase"),
                    module=module,
                    parameter=parameters.place(line, "parameters"),
                    op=op,
                    source=source,
                ),
                evidence=(
                    Evidence("FLOPs done per step", 2 * too_many, "FLOP"),
                    Evidence("FLOPs needed per step", too_many, "FLOP"),
                    Evidence("needless FLOPs per step", too_many, "FLOP"),
                    Evidence("first done at", first),
                    Evidence("done again at", source),
                    Evidence("shown by", "equal inputs and outputs (fingerprints) within one pass"),
                    *modules.evidence(line, "modules"),
                    Evidence("shapes", _first_few(rows["shapes"])),
                ),
                remedy=remedies.keep_result(toll),
                confidence=confidence,
                rows=Rows.of(computes=rows["row"]),
                figures=(*_figures(2 * too_many, too_many), Figure("times_on_one_rank", 2, "count")),
            )
        )
    return findings
