"""DDP's gradient buckets of another size: joined, or cut between their parameters."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.micro_batches import passes_begun
from shardtoll.analyzers.replay.events.event_graph import Kind
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.analyzers.whatif.edits.under_compute import cost, note
from shardtoll.ledger import UsageError
from shardtoll.ledger.records.record import PHASES
from shardtoll.ledger.words.human import size

Floats = npt.NDArray[np.float64]

_MANY: Final = re.compile(r"(.+), \.\.\. \((\d{1,9}) parameters\)")
"""How a bucket of many parameters is named: after its first one, and how many they are."""


def buckets_of(context: Context, bucket_bytes: int, latency: Floats) -> Edit:
    """Gradient all_reduces of a backward in buckets of that size.

    Larger ones: neighbours become one, with one latency, ready when the last of them was. Smaller ones: of a
    bucket's parts all but the last overlap the backward before it, as far as that is long enough. A bucket is
    cut between parameters only, as DDP does. It holds gradients of one backward only: those of the next
    micro-batch are another bucket's. `latency`: the share of each collective's time.

    Raises UsageError if no all_reduce is in backward, and if a bucket to cut holds unknown parameters.
    """
    frame = context.collectives
    is_one = ((frame["op"] == "all_reduce") & (frame["phase"] == "backward")).to_numpy(dtype=bool)
    is_one &= frame["message_bytes"].notna().to_numpy(dtype=bool)
    if not is_one.any():
        raise UsageError(
            "--bucket: the run has no all_reduce in backward", "it is for DDP's gradient buckets"
        )
    moved = frame["message_bytes"].to_numpy(dtype=np.float64, na_value=0)
    parts = _all_parts(context, np.flatnonzero(is_one & (moved > bucket_bytes)), bucket_bytes)
    backward = _backward_of(context, np.flatnonzero(is_one))

    def apply(draft: Draft, end: float) -> None:
        share = cost(context, end)
        recorded, graph = draft.recorded, draft.recorded.graph
        nodes = np.flatnonzero(recorded.of_kinds((Kind.COLLECTIVE,)) & (recorded.row >= 0))
        nodes = nodes[is_one[recorded.row[nodes]]]
        nodes = nodes[np.lexsort((recorded.start_ns[nodes], recorded.step[nodes], graph.rank[nodes]))]
        key = recorded.step[nodes] * len(recorded.ranks) + graph.rank[nodes]
        computing = recorded.of_kinds((Kind.COMPUTE,)) & (recorded.phase == PHASES.index("backward"))
        for number in np.unique(key).tolist():
            mine = nodes[key == number]
            place, step = number % len(recorded.ranks), number // len(recorded.ranks)
            work = np.flatnonzero(computing & (graph.rank == place) & (recorded.step == step))
            of_backward = backward[recorded.row[mine]]
            for each in np.unique(of_backward).tolist():
                _one_backward(
                    draft, mine[of_backward == each], moved, latency, bucket_bytes, parts, work, share
                )

    return Edit(
        f"gradient buckets of {size(bucket_bytes)}",
        apply,
        banded=bool(parts),
        note=note(context) if parts else None,
    )


def _one_backward(
    draft: Draft,
    nodes: npt.NDArray[np.int64],
    moved: Floats,
    latency: Floats,
    most: int,
    parts_of: dict[int, tuple[float, ...]],
    work: npt.NDArray[np.int64],
    share: float,
) -> None:
    rows = draft.recorded.row[nodes]
    held: list[int] = []
    total = 0.0
    for node, row in zip(nodes.tolist(), rows.tolist(), strict=True):
        bytes_ = moved[row]
        if bytes_ > most:
            # A message larger than the asked size is full: nothing joins it.
            held, total = [], 0.0
            parts = np.array(parts_of[row]) / bytes_
            lasts, fixed = draft.duration[node], draft.duration[node] * latency[row]
            each = fixed + (lasts - fixed) * parts
            before = draft.duration[work[draft.recorded.start_ns[work] < draft.recorded.start_ns[node]]].sum()
            hidden = min(each[:-1].sum(), before * (1 - parts[-1]))
            # The longer side, which decides, grows by a share of the time that both run.
            draft.duration[node] = max(each[-1], each.sum() - hidden) + share * hidden
            continue
        if held and total + bytes_ > most:
            held, total = [], 0.0
        if held:
            # The latency of all but one is saved; their data moves with the last.
            last = held[-1]
            carried = draft.duration[last] * (1 - latency[draft.recorded.row[last]])
            # Messages that overlap last longer, both of them, for the same data.
            carried = max(0.0, carried - _beside(draft, last, node))
            draft.remove(np.array([last], dtype=np.int64))
            draft.duration[node] += carried
            draft.joined[row] = (*draft.joined.pop(draft.recorded.row[last], ()), draft.recorded.row[last])
        held.append(node)
        total += bytes_


def _beside(draft: Draft, last: int, node: int) -> float:
    """Return how long the data of two collectives moved at the same time, on record."""
    ends = draft.recorded.end_ns[[last, node]]
    begins = ends - draft.recorded.graph.duration_ns[[last, node]]
    return max(0.0, float(ends.min() - begins.max()))


def _backward_of(context: Context, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for each row of the collectives' frame the number of its backward on its group.

    The next backward begins as operators show, which only surveyed steps have; else with a bucket whose
    gradients this one already reduced.
    """
    frame = context.collectives.iloc[rows]
    frame = frame.assign(row=rows, at=frame["issue_ns"].fillna(frame["start_ns"]))
    frame = frame.assign(begun=passes_begun(context, frame, backward=True))
    frame = frame.sort_values(["rank", "step", "at"], kind="stable")
    number = np.zeros(len(context.collectives), dtype=np.int64)
    count = 0
    for _, mine in frame.groupby(["rank", "step", "group"], dropna=False, sort=False):
        seen: set[str] = set()
        before = None
        count += 1
        columns = (mine[name].tolist() for name in ("row", "begun", "parameter"))
        for row, begun, name in zip(*columns, strict=True):
            named = isinstance(name, str)
            if before is not None and (begun != before or (named and name in seen)):
                count += 1
                seen.clear()
            if named:
                seen.add(name)
            number[row], before = count, begun
    return number


def _all_parts(context: Context, rows: npt.NDArray[np.int64], most: int) -> dict[int, tuple[float, ...]]:
    """Return row of the collectives' frame -> bytes of the buckets that it becomes, in order."""
    frame = context.collectives.loc[rows]
    numels: dict[int, dict[str, int]] = {}
    held = context.parameters
    held = held[held["requires_grad"].fillna(True).astype(bool) & held["tied_to"].isna()]
    for rank, name, numel in held[["rank", "name", "numel"]].itertuples(index=False):
        numels.setdefault(int(rank), {})[str(name)] = int(numel)
    made: dict[int, tuple[float, ...]] = {}
    kept: dict[tuple[int, object, float], tuple[float, ...]] = {}
    columns = ("rank", "parameter", "message_bytes")
    for row, rank, text, bytes_ in zip(rows.tolist(), *(frame[name] for name in columns), strict=True):
        key = int(rank), text, float(bytes_)
        if key not in kept:
            name = text if isinstance(text, str) else ""
            kept[key] = _parts(name, float(bytes_), numels.get(int(rank), {}), most)
        made[row] = kept[key]
    return made


def _parts(text: str, bytes_: float, numels: dict[str, int], most: int) -> tuple[float, ...]:
    if text and ", " not in text:
        # A single parameter cannot be cut.
        return (bytes_,)
    # The width of a candidate's elements shows whether they are in the message.
    fitting = [
        (elements, bytes_ / sum(elements))
        for elements in _elements(text, numels)
        if sum(elements) and bytes_ / sum(elements) in (1.0, 2.0, 4.0, 8.0)
    ]
    if not fitting:
        raise UsageError(
            f"--bucket: nothing on record says which parameters a message of {size(round(bytes_))} holds",
            f"give {size(round(bytes_))} or more, or audit the model live",
        )
    elements, width = fitting[0]
    parts: list[float] = []
    for count in elements:
        if parts and parts[-1] + count * width <= most:
            parts[-1] += count * width
        else:
            parts.append(count * width)
    return tuple(parts)


def _elements(text: str, numels: dict[str, int]) -> list[list[int]]:
    """Return what the elements of a bucket's parameters may be, in the order of the bucket.

    If there are many parameters, the name gives the first. DDP takes neighbours in the order of their
    gradients, from the last to the first, once it has seen that order. Before that it goes from the first to
    the last.
    """
    many = _MANY.fullmatch(text)
    if many is None:
        names = [name for name in text.split(", ") if name]
        return [[numels[name] for name in names]] if all(name in numels for name in names) else []
    if many[1] not in numels:
        return []
    order, count = list(numels), int(many[2])
    first = order.index(many[1])
    runs = [order[: first + 1][::-1][:count], order[first : first + count]]
    return [[numels[name] for name in run] for run in runs if len(run) == count]
