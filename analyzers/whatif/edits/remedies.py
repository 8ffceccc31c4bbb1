"""Which edit of the graph stands for the remedy of each kind of finding, and which kinds have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.findings.origins.like_with_like import alike_ranks
from shardtoll.analyzers.findings.stages.pipeline_imbalance import worst
from shardtoll.analyzers.pipelines.stage_lines import lines
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.event_graph import Kind
from shardtoll.analyzers.shared.fsdp_blocks import left_by_larger, too_small_shards
from shardtoll.analyzers.shared.remedy_code import OBJECT_CALLS
from shardtoll.analyzers.shared.tally import begins_with
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.analyzers.whatif.edits.removal import joined, removal
from shardtoll.analyzers.whatif.edits.taken_out import batches_ready, lost_by_step
from shardtoll.analyzers.whatif.edits.under_compute import note
from shardtoll.ledger import Finding
from shardtoll.ledger.records.record import PHASES
from shardtoll.ledger.records.stall import SHORT_GAP_NS

Ints = npt.NDArray[np.int64]

Maker = Callable[[Context, Finding], Edit | None]

BOUND: Final = "saving_at_most_ns"
"""Figure of a finding whose saving was replayed: the upper bound that the prediction stands in for."""

LATE_MORE: Final = "transfers that came after the late rank are then hidden by compute"
_MESSAGES: Final = (
    "Messages are taken to move behind the compute of other micro-batches. Each stage still waits for the "
    "one before it."
)
TURNS_MORE: Final = "another rank waits for its batch in each step, and all wait for that one"
STAGES_MORE: Final = "each stage of the pipeline waits for the stages before it, and that goes too"

NO_EDIT: Final = {
    "wrong-gradient": "a correct gradient costs what a wrong one does",
    "replica-drift": "replicas that agree cost what replicas that drift do",
    "unsynced-parameter": "the missing reduction is not on record",
    "missing-zero-grad": "it changes results, not time",
    "non-finite": "it changes results, not time",
    "identical-shards": "it changes results, not time",
    "duplicated-data": "other batches cost what equal ones do",
    "unused-parameter-search": "the search is not on record apart from the backward",
    "checkpoint-stall": "when the next checkpoint is written is not on record",
    "hang": "a step that never ended has no time to save",
    "unattributed-time": "nothing on record says what the time is",
    "unmatched-collectives": "it is about the record",
    "incomplete-input": "it is about the record",
    "clock-skew": "it is about the record",
}
"""Kinds whose remedy no edit stands for -> why."""


def edit_of(context: Context, finding: Finding, number: int | None = None) -> Edit | None:
    """Return the edit that stands for the remedy; None if there is none, or if the finding names no rows to
    edit.

    It saves at most what the bill says: one fix has one figure, wherever it is asked for. In a live run the
    host's work for removed calls comes on top (`Edit.beyond`). A late rank's toll is no such bound: the
    transfers that it pushes out of compute are in nobody's waiting. Nor is that of a second forward in a
    pipeline, or of its messages. A micro-batch goes through all stages in turn, so it is bounded by that of
    every stage.
    """
    maker = MAKERS.get(finding.kind)
    made = None if maker is None else maker(context, finding)
    if made is None or finding.kind == "straggler":
        return made if made is None else replace(made, number=number)
    # One message in place of many spares their meetings too: what it saves is replayed, not claimed.
    claimed = None if finding.kind == "latency-bound" else _bound(finding)
    bounds = [each for each in (made.most_ns, claimed, finding.toll_ns) if each is not None]
    if not bounds:
        return replace(made, number=number)
    most_ns = min(bounds)
    count = stages(context)
    if count > 1 and (finding.kind == "recompute" or made.in_stages):
        return replace(made, number=number, most_ns=most_ns * count, in_stages=True, more=STAGES_MORE)
    return replace(made, number=number, most_ns=most_ns, in_stages=False)


def stages(context: Context) -> int:
    """Return how many ranks work one after the other on a micro-batch, at most; 1 without a pipeline."""
    return max(map(len, lines(context)), default=1)


def _rows(finding: Finding, context: Context) -> Ints:
    if not finding.rows.collectives:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(finding.rows.mask("collectives", len(context.collectives)))


def _bound(finding: Finding) -> float | None:
    """Return what the finding's own analysis says that the remedy saves at most, replayed or not."""
    bound = finding.figure(BOUND)
    return finding.saving_ns if bound is None else bound


def _left(finding: Finding) -> float:
    """Return the share of its collectives' time that the remedy leaves."""
    bound = _bound(finding)
    return 0.0 if not finding.toll_ns or bound is None else 1 - bound / finding.toll_ns


def _without(context: Context, finding: Finding) -> Edit | None:
    """Its collectives are gone, or as much shorter as its saving says."""
    rows, left = _rows(finding, context), _left(finding)
    if not len(rows):
        return None
    if left < 0.01:
        return removal(context, rows, "without these collectives")
    return Edit(
        f"these collectives in {left:.0%} of their time",
        lambda draft, _: draft.scale(draft.nodes_of(rows), left),
    )


def _inside_nodes(context: Context, finding: Finding) -> Edit | None:
    """Its collectives as fast as inside a node; None if the bill does not know how fast that is."""
    return None if _bound(finding) is None else _without(context, finding)


def _joined(context: Context, finding: Finding) -> Edit | None:
    """One message in place of each burst of small ones."""
    rows = _rows(finding, context)
    return joined(context, rows, "one message in place of these") if len(rows) else None


def _repriced(context: Context, finding: Finding) -> Edit | None:
    """Its collectives take what the fabric's model expects."""
    rows = _rows(finding, context)
    if not len(rows):
        return None
    frame = context.collectives
    columns = [frame[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in _PRICES]

    def apply(draft: Draft, end: float) -> None:
        nodes = draft.nodes_of(rows)
        price = columns[0 if end == 0 else 2 if end < 0 else 1][draft.recorded.row[nodes]]
        known = np.isfinite(price)
        draft.duration[nodes[known]] = np.minimum(draft.duration[nodes[known]], price[known])

    return Edit("these collectives as fast as the fabric's model expects", apply, banded=True)


_PRICES: Final = ("expected_ns", "band_low_ns", "band_high_ns")


LOGGING: Final = ("op", "phase", "caused_by_op", "parameter")


def is_logging(rows: pd.DataFrame) -> bool:
    """Return whether the rows gather whole tensors outside the model's passes, as for logging, or exchange
    Python objects. Their remedy is to do it seldom, not to hide it. Columns `LOGGING`."""
    cause = rows["caused_by_op"].fillna("")
    if cause.isin(OBJECT_CALLS).all():
        return True
    whole = begins_with(cause, "DTensor.full_tensor")
    by_hand = (cause == rows["op"]) & cause.isin(("all_gather", "gather")) & rows["parameter"].isna()
    return bool(((whole | by_hand) & (rows["phase"] == "other") & (rows["op"] != "all_reduce")).all())


SENT: Final = ("caused_by_op", "message_bytes")


def _too_small(rows: pd.DataFrame, count: int) -> int | None:
    """Return the usual bytes of a message if the remedy is larger blocks: FSDP's messages are many and small.

    Columns `SENT`. None otherwise.
    """
    causes, sizes = rows["caused_by_op"], rows["message_bytes"].dropna()
    if causes.isna().any() or sizes.empty:
        return None
    usual = int(sizes.mode()[0])
    return usual if all(too_small_shards(str(cause), usual, count) for cause in causes.unique()) else None


def _overlapped(context: Context, finding: Finding) -> Edit | None:
    """Nobody waits for its collectives before the step ends.

    A pipeline's messages stay what the next stage needs: hidden, they take no time, and are waited for still.
    """
    rows = _rows(finding, context)
    if not len(rows):
        return None
    is_message = context.collectives["op"].iloc[rows].isin(PEER_OPS).to_numpy(dtype=bool)
    messages, rest = _both_sides(context, rows[is_message]), rows[~is_message]
    if not len(rest):
        return Edit(
            "these messages take no time",
            lambda draft, _: draft.scale(draft.nodes_of(messages), 0.0),
            in_stages=True,
            note=_MESSAGES,
        )
    # Rows of a few columns: those of all sixty take longer than all else here.
    if is_logging(context.collectives[list(LOGGING)].iloc[rows]):
        return removal(context, rows, "without these exchanges, but for one step in many")
    small_bytes = _too_small(context.collectives[list(SENT)].iloc[rows], finding.count)
    if small_bytes is not None:
        left = left_by_larger(small_bytes, finding.count)
        return Edit(
            f"one message of the same bytes in place of {finding.count}",
            lambda draft, _: draft.scale(draft.nodes_of(rows), left),
            banded=True,
        )

    def apply(draft: Draft, _end: float) -> None:
        draft.let_go(draft.nodes_of(rest))
        if len(messages):
            draft.scale(draft.nodes_of(messages), 0.0)

    return Edit(
        "nobody waits for these collectives",
        apply,
        banded=True,
        overlaps=True,
        note=note(context),
    )


def _both_sides(context: Context, rows: Ints) -> Ints:
    """Return these messages, and what their other ranks have of them."""
    if not len(rows):
        return rows
    match = context.collectives["match_id"]
    same = match.isin(match.iloc[rows].dropna().unique()).to_numpy(dtype=bool)
    return np.union1d(rows, np.flatnonzero(same))


def _as_peers(context: Context, finding: Finding) -> Edit | None:
    """Its ranks take what their peers take."""
    peers = alike_ranks(context).peers
    late = [rank for rank in finding.ranks if peers.get(rank)]
    if not late or len(late) > max(1, len(peers) // 2):
        return None

    def apply(draft: Draft, _end: float) -> None:
        draft.ranks_as(late, peers)

    named = ", ".join(map(str, late[:4]))
    return Edit(f"rank {named} as fast as its peers", apply, as_recorded=True, more=LATE_MORE)


def _balanced(context: Context, finding: Finding) -> Edit | None:
    """Every rank computes the mean of all; or works it, where the finding counts time outside operators."""
    imbalance = worst(context) if finding.kind == "pipeline-imbalance" else None
    works = imbalance is not None and imbalance.verb == "work"
    kinds = (Kind.COMPUTE, Kind.HOST) if works else (Kind.COMPUTE,)

    def apply(draft: Draft, _end: float) -> None:
        recorded = draft.recorded
        chosen = recorded.of_kinds(kinds) & (recorded.step >= 0)
        sums = np.bincount(recorded.graph.rank[chosen], draft.duration[chosen], len(recorded.ranks))
        factor = np.where(sums > 0, sums.mean() / np.where(sums > 0, sums, 1.0), 1.0)
        draft.duration[chosen] *= factor[recorded.graph.rank[chosen]]

    label = "the same work on every rank" if works else "the same compute on every rank"
    return Edit(label, apply, as_recorded=True)


def _removed(kind: Kind, label: str) -> Maker:
    """Nodes of a kind take no time; where the graph has none, as much is taken off the ranks' own time."""

    def make(context: Context, finding: Finding) -> Edit | None:
        def each(recorded: Recorded) -> dict[tuple[int, int], float]:
            if kind != Kind.DATA or recorded.source != "points":
                return {}
            return lost_by_step(context, recorded, "data")

        def in_turn_ns(recorded: Recorded, toll_ns: float, _end: float) -> float:
            # The toll is of the rank that loses most: each step may have another one.
            by_step: dict[int, float] = {}
            for (step, _), lost_ns in each(recorded).items():
                by_step[step] = max(by_step.get(step, 0.0), lost_ns)
            return max(0.0, sum(by_step.values()) / max(1, len(recorded.steps)) - toll_ns)

        def apply(draft: Draft, _end: float) -> None:
            nodes = _places(draft.recorded, finding, np.flatnonzero(draft.recorded.of_kinds((kind,))))
            if kind == Kind.DATA and batches_ready(context, draft):
                return
            if not len(nodes) or draft.recorded.source == "points":
                _own_time(draft, finding, _OWN[kind], _WORK[kind])
            elif kind == Kind.SYNC:
                draft.no_waits(nodes)
            else:
                draft.duration[nodes] = 0.0

        if kind != Kind.DATA:
            return Edit(label, apply, most_ns=finding.toll_ns)
        return Edit(label, apply, most_ns=finding.toll_ns, beyond=in_turn_ns, more=TURNS_MORE)

    return make


_OWN: Final = {
    Kind.COPY: (Kind.COPY,),
    Kind.DATA: (Kind.HOST, Kind.GAP),
    # A read of a value is an operator among others.
    Kind.SYNC: (Kind.HOST, Kind.GAP, Kind.COMPUTE),
}
"""Kinds of own time that hold what has no nodes of its own."""
_WORK: Final = {Kind.COPY: "copy", Kind.DATA: "data", Kind.SYNC: "host-sync"}
"""Work that goes, as stalls name it."""


def _places(recorded: Recorded, finding: Finding, nodes: Ints) -> Ints:
    """Return the nodes in the phases and modules that the finding names; all if it names none, or none of
    these."""
    named = {
        (where.phase, where.module or "")
        for where in [place.where for place in finding.places] or [finding.where]
        if where.phase is not None
    }
    is_there = [
        (PHASES[phase], recorded.names[module]) in named
        for phase, module in zip(recorded.phase[nodes].tolist(), recorded.module[nodes].tolist(), strict=True)
    ]
    chosen = nodes[np.array(is_there, dtype=np.bool_)]
    return chosen if len(chosen) else nodes


def _own_time(draft: Draft, finding: Finding, kinds: tuple[Kind, ...], work: str) -> None:
    if bound := _bound(finding):
        by_ns = dict.fromkeys(finding.ranks or draft.recorded.ranks, bound)
        draft.shorten(kinds, by_ns, None, work, id(finding))


def _launched_ahead(_: Context, finding: Finding) -> Edit | None:
    """Launches take no time of the host, nor does what lies between two of them unless it is long.

    In a trace this holds on all ranks. They run one program, and one may be billed as late in place of this
    finding. Replay from points knows no launches: there the own time of the finding's ranks becomes shorter.
    """

    def apply(draft: Draft, _end: float) -> None:
        recorded = draft.recorded
        if recorded.source == "points":
            _own_time(draft, finding, (Kind.HOST, Kind.GAP), "launch")
            return
        nodes = recorded.of_kinds((Kind.HOST,)) & (recorded.step >= 0)
        draft.duration[nodes] = 0.0
        draft.gap[nodes & (draft.gap > 0) & (draft.gap <= SHORT_GAP_NS)] = 0.0

    return Edit("the host launches ahead of the device", apply, most_ns=finding.toll_ns)


def _recompute(_: Context, finding: Finding) -> Edit | None:
    phase = PHASES.index("recompute")

    def apply(draft: Draft, _end: float) -> None:
        nodes = np.flatnonzero((draft.recorded.phase == phase) & draft.recorded.of_kinds((Kind.COMPUTE,)))
        if len(nodes) and draft.recorded.source == "events":
            draft.no_phase(phase)
        else:
            by_ns = dict.fromkeys(finding.ranks, finding.toll_ns or 0)
            draft.shorten((Kind.COMPUTE,), by_ns, PHASES.index("backward"), "recompute", id(finding))

    return Edit("without the second forward", apply, most_ns=finding.toll_ns)


def _less_compute(_: Context, finding: Finding) -> Edit | None:
    saving = _bound(finding)
    if not saving:
        return None
    phase = PHASES.index(finding.where.phase) if finding.where.phase in PHASES else None
    by_ns = dict.fromkeys(finding.ranks, saving)
    return Edit(
        "each rank computes its part alone",
        lambda draft, _: draft.shorten((Kind.COMPUTE,), by_ns, phase, "duplicated", id(finding)),
    )


def _bubble(context: Context, finding: Finding) -> Edit | None:
    """More micro-batches: the bubble shrinks by what the finding claims, as a share of the step."""
    bound = _bound(finding)
    if not bound or not context.step_ns:
        return None
    left = max(0.0, 1 - bound / context.step_ns)

    def apply(draft: Draft, _end: float) -> None:
        draft.step_factor *= left

    return Edit("a bubble as small as the schedule allows", apply)


MAKERS: Final[dict[str, Maker]] = {
    "implicit-redistribute": _without,
    "redundant-collective": _without,
    "sync-every-microbatch": _without,
    "latency-bound": _joined,
    "cross-node-traffic": _inside_nodes,
    "wide-dtype": _without,
    "needless-barrier": _without,
    "constant-buffers": _without,
    "gathered-logits": _without,
    "serialized-collectives": _without,
    "below-roofline": _repriced,
    "exposed-communication": _overlapped,
    "straggler": _as_peers,
    "expert-imbalance": _balanced,
    "pipeline-imbalance": _balanced,
    "pipeline-bubble": _bubble,
    "recompute": _recompute,
    "duplicated-compute": _less_compute,
    "data-stall": _removed(Kind.DATA, "every batch is ready"),
    "host-sync": _removed(Kind.SYNC, "the host waits for no device"),
    "launch-bound": _launched_ahead,
    "transfer-stall": _removed(Kind.COPY, "copies run behind compute"),
}


def nodes_there(recorded: Recorded, edit: Edit) -> bool:
    """Return whether the edit changes anything in these steps."""
    as_is, draft = Draft(recorded), Draft(recorded)
    edit.apply(draft, 0.0)
    graph = recorded.graph
    return bool(
        draft.alone.any()
        or draft.step_factor != 1
        or not np.array_equal(draft.duration, as_is.duration)
        or not np.array_equal(draft.gap, graph.gap_ns)
        or not np.array_equal(draft.lag, graph.lag_ns)
        or not np.array_equal(draft.release, graph.release_ns)
    )
