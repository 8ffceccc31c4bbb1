"""Messages that hosts hand to each other, without device work: which call waited for whose.

A receiver's host stands in its call until the sender's device has made the data and it has come over. Traces
name the calls, but as a rule neither the group nor the other side. If they do, the messages are matched by
that (`match`). Else the pipeline's order says it. Activations go from each stage to the next and gradients
back, each in the order in which they are sent. A group is taken for a pipeline only if all its ranks agree in
each whole step. Each has as many messages for its neighbour as that one receives. No message arrives before
it is sent. The profiler may cut the first and last step of its window. If their calls contradict, only these
messages stay without a match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.compute as pc
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger.records.columns import literal

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SLACK_NS: Final = 100_000.0
"""Clocks of one host are as good as one within this."""

_PHASES: Final = ("forward", "backward", "recompute")

Key = tuple[int, int, bool, bool]
"""Rank, step, whether it sends, and whether in the forward."""


class Messages(Struct, frozen=True):
    """By message: the calls of both sides. Ranks are places; times ns on the reference's clock."""

    source: Ints
    target: Ints
    sent: Floats
    """When the sender called."""
    called: Floats
    """When the receiver did, ..."""
    got: Floats
    """... and when it had the message."""
    thread: Ints
    """The receiver's host thread."""
    step: Ints


@once
def messages(context: Context) -> Messages | None:
    """Return the messages among the events of hosts; None if no event is one. Ranks are those with events."""
    kinds = context.ledger.tables["events"].column("kind")
    if not pc.any(pc.equal(kinds, literal("message"))).as_py():
        return None  # of most jobs; the frame would be the largest of all
    events = context.ledger.frame("events")
    ranks = np.unique(events["rank"].to_numpy(dtype=np.int64))
    # Launches too: they say what a rank sends.
    events = keep(events, events["stream"].isna())
    rank, recorded_ns = (events[name].to_numpy(dtype=np.int64) for name in ("rank", "start_ns"))
    calls = _calls(context, events, context.clocks.corrected(rank, recorded_ns).astype(np.float64))
    matched = by_match(calls)
    rest = calls.drop(index=[row for pair in matched for row in pair])
    pairs = matched + by_order(rest, {group.ranks for group in context.ledger.groups})
    sends, receives = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    columns = {name: calls[name].to_numpy() for name in calls.columns}
    places = np.searchsorted(ranks, columns["rank"].astype(np.int64))
    return Messages(
        source=places[sends],
        target=places[receives],
        sent=columns["start"][sends],
        called=columns["start"][receives],
        got=columns["end"][receives],
        thread=columns["thread"][receives].astype(np.int64),
        step=columns["step"][receives].astype(np.int64),
    )


def _calls(context: Context, events: pd.DataFrame, start: Floats) -> pd.DataFrame:
    """Return one row a message's call, in order of time."""
    frame = context.collectives
    place = frame.groupby("rank").cumcount()
    number = pd.MultiIndex.from_arrays([frame["rank"].astype("int64"), place])
    collective = events["collective"].fillna(-1).astype("int64")
    at = number.get_indexer(pd.MultiIndex.from_arrays([events["rank"].astype("int64"), collective]))
    match = frame["match_id"].to_numpy(dtype=np.int64, na_value=-1)
    calls = pd.DataFrame(
        {
            "rank": events["rank"].to_numpy(dtype=np.int64),
            "step": events["step"].to_numpy(dtype=np.int64, na_value=-1),
            "thread": events["thread"].to_numpy(dtype=np.int64, na_value=0),
            "start": start,
            "end": start + events["duration_ns"].to_numpy(dtype=np.float64),
            "message": (events["kind"] == "message").to_numpy(dtype=bool),
            "sends": events["name"].str.contains("send", regex=False).to_numpy(dtype=bool),
            "phase": events["phase"].to_numpy(dtype=object),
            "match": np.where(at >= 0, match[at], -1) if len(match) else np.full(len(at), -1),
        }
    ).sort_values("start", kind="stable")
    # A send carries what its rank launched last, and a receive brings what it launches next.
    launched = calls["phase"].where(~calls["message"] & calls["phase"].isin(_PHASES))
    by = launched.groupby([calls["rank"], calls["thread"]])
    phase = by.ffill().where(calls["sends"], by.bfill())
    calls["forward"] = phase == "forward"
    made: pd.DataFrame = keep(calls, calls["message"] & phase.notna()).reset_index(drop=True)
    return made


def by_match(calls: pd.DataFrame) -> list[tuple[int, int]]:
    """Return the pairs of rows, sender's and receiver's, that the record itself matches."""
    sides = {}
    for is_send in (True, False):
        rows = calls[(calls["sends"] == is_send) & (calls["match"] >= 0)]
        sides[is_send] = dict(zip(rows["match"].tolist(), rows.index.tolist(), strict=True))
    return [(row, sides[False][match]) for match, row in sides[True].items() if match in sides[False]]


def by_order(calls: pd.DataFrame, lines: Collection[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Return the pairs that follow from the order of a pipeline; `lines` are the ranks of each group.

    Calls outside every step pair with nothing. A call that two groups pair differently stays without a pair.
    """
    keys = zip(*(calls[name].tolist() for name in ("rank", "step", "sends", "forward")), strict=True)
    listed: dict[Key, list[int]] = {}
    for row, key in enumerate(keys):
        if key[1] >= 0:
            listed.setdefault(key, []).append(row)
    rows_of = {key: np.array(rows, dtype=np.int64) for key, rows in listed.items()}
    times, label = (calls["start"].to_numpy(), calls["end"].to_numpy()), calls.index.tolist()
    pairs = {pair for line in set(lines) if len(line) > 1 for pair in _along(times, rows_of, line)}
    uses = [Counter(pair[side] for pair in pairs) for side in (0, 1)]
    fit = sorted(pair for pair in pairs if uses[0][pair[0]] == uses[1][pair[1]] == 1)
    return [(label[send], label[receive]) for send, receive in fit]


def _along(
    times: tuple[Floats, Floats], rows_of: dict[Key, Ints], line: tuple[int, ...]
) -> list[tuple[int, int]]:
    """Return the pairs if these ranks are the stages of a pipeline; none if a whole step contradicts."""
    steps = {key[1] for key in rows_of}
    pairs: list[tuple[int, int]] = []
    for step in sorted(steps):
        of_step = _in_step(times, rows_of, line, step)
        # A window of the profiler begins and ends anywhere in a step.
        if of_step is None and {step - 1, step + 1} <= steps:
            return []
        pairs += of_step or []
    return pairs


def _in_step(
    times: tuple[Floats, Floats], rows_of: dict[Key, Ints], line: tuple[int, ...], step: int
) -> list[tuple[int, int]] | None:
    """Return the pairs of one step; None if any of its calls contradicts this order of stages."""
    none = np.zeros(0, dtype=np.int64)
    pairs: list[tuple[int, int]] = []
    for place, rank in enumerate(line):
        # With several stages a rank the last rank sends to the first one's next stage.
        for forward, other in ((True, line[(place + 1) % len(line)]), (False, line[place - 1])):
            sent = rows_of.get((rank, step, True, forward), none)
            got = rows_of.get((other, step, False, forward), none)
            if len(sent) != len(got) or (times[1][got] + SLACK_NS < times[0][sent]).any():
                return None
            pairs += zip(sent.tolist(), got.tolist(), strict=True)
    return pairs
