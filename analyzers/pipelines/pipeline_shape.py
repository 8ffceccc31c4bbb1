"""A pipeline's schedule as its messages show it: micro-batches, and stages a rank."""

from __future__ import annotations

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.pipelines.stage_lines import lines
from shardtoll.analyzers.pipelines.stage_messages import messages, perhaps
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Evidence

Lanes = dict[tuple[int, int], float]
"""Sender and receiver -> messages between them, per step."""


class Shape(Struct, frozen=True):
    """The shape that the pipelines of a step share, by their messages."""

    ranks: int
    micro_batches: int | None
    """None if the layout is unknown, so that only `passes` is known."""
    stages_per_rank: int | None = 1
    passes: int | None = None
    """Forward passes of a rank, per step: micro-batches times its stages."""

    @property
    def ideal_share(self) -> float:
        """The bubble of interleaved 1F1B, of 1F1B and GPipe if ranks have one stage each."""
        idle = self.ranks - 1
        passes = self.passes or (self.micro_batches or 0) * (self.stages_per_rank or 1)
        return idle / (passes + idle)

    @property
    def words(self) -> str:
        """Return `8 stages on 4 ranks and 16 micro-batches`, or what of that is known."""
        if self.micro_batches is None or self.stages_per_rank is None:
            return f"{self.ranks} ranks and {self.passes} passes of each"
        on_ranks = "" if self.stages_per_rank == 1 else f" on {self.ranks} ranks"
        return f"{self.ranks * self.stages_per_rank} stages{on_ranks} and {self.micro_batches} micro-batches"

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Stages and micro-batches; where the layout is unknown, the ranks and the passes of each."""
        if self.micro_batches is None or self.stages_per_rank is None:
            passes = Evidence("forward passes of a rank", self.passes)
            return Evidence("ranks of a pipeline", self.ranks), passes
        stages = Evidence("stages", self.ranks * self.stages_per_rank)
        return stages, Evidence("micro-batches", self.micro_batches)


@once
def shape(context: Context) -> Shape | None:
    """Return the shape of the pipelines; None if messages do not show it, or pipelines differ.

    Example: m micro-batches and v stages a rank, laid in turn. In forward the first rank sends m v messages
    to the second, and the last rank m (v - 1) to the first. Laid as a V, ranks send m up and m down.
    """
    pipes = lines(context)
    if not pipes or len({len(line) for line in pipes}) > 1:
        return None
    frame = sends(context)
    told = keep(frame, frame["backward"].notna())
    back = told["backward"].to_numpy(dtype=bool)
    forward, backward = _lanes(keep(told, ~back)), _mirrored(_lanes(keep(told, back)))
    shapes = [each for line in pipes if (each := _of_phases(forward, backward, line)) is not None]
    shapes = [each for each in shapes if not (_as_v(each) and _from_both_ends(told, pipes))]
    if shapes:
        # A tensor without a gradient, as a mask, goes one way only: the fewest are the micro-batches.
        return min(shapes, key=lambda each: each.micro_batches or 0)
    if frame.empty:
        return _by_ends(context, pipes)
    unphased = [each for line in pipes if (each := _without_phases(_lanes(frame), line)) is not None]
    return min(unphased, key=lambda each: each.ideal_share, default=None)


def _lanes(rows: pd.DataFrame) -> Lanes:
    per_step = rows.groupby(["sender", "receiver", "step"]).size()
    middle = per_step.groupby(level=["sender", "receiver"]).median().reset_index(name="count")
    return {
        (int(sender), int(receiver)): float(count)
        for sender, receiver, count in middle.itertuples(index=False, name=None)
    }


def _mirrored(lanes: Lanes) -> Lanes:
    return {(receiver, sender): count for (sender, receiver), count in lanes.items()}


def _of_phases(forward: Lanes, backward: Lanes, line: tuple[int, ...]) -> Shape | None:
    """Return the shape by forward's messages and by backward's, which go the same ways turned round.

    If both were seen, both must show one layout: phases that were mistaken show two, or a V.
    """
    shapes = [each for lanes in (forward, backward) if (each := _shape(lanes, line)) is not None]
    if not shapes:
        return None
    if len({each.stages_per_rank for each in shapes}) > 1 or (len(shapes) == 1 and _as_v(shapes[0])):
        return None
    return min(shapes, key=lambda each: each.micro_batches or 0)


def _as_v(form: Shape) -> bool:
    return form.passes is not None


def _shape(lanes: Lanes, line: tuple[int, ...]) -> Shape | None:
    first, second, last = line[0], line[1], line[-1]
    up, wrapped = lanes.get((first, second), 0.0), lanes.get((last, first), 0.0)
    down = lanes.get((second, first), 0.0)
    if not up:
        return None
    as_v = down == up
    batches = up if as_v else up - wrapped
    # Numbers that fit neither layout say nothing.
    if batches <= 0 or batches != round(batches) or up % batches:
        return None
    if as_v:
        return Shape(len(line), round(batches), 2, 2 * round(batches))
    return Shape(len(line), round(batches), round(up / batches))


def _from_both_ends(told: pd.DataFrame, pipes: list[tuple[int, ...]]) -> bool:
    """Whether micro-batches enter at both ends of a pipeline, which counts as a V does.

    Then its last rank sends forward before anything has come to it.
    """
    ahead = keep(told, ~told["backward"].to_numpy(dtype=bool))
    for line in pipes:
        from_last = ahead.loc[ahead["sender"] == line[-1]].groupby("step")["start_ns"].min()
        to_last = ahead.loc[ahead["receiver"] == line[-1]].groupby("step")["start_ns"].min()
        both = pd.concat([from_last, to_last], axis=1, join="inner")
        if len(both) and bool((both.iloc[:, 0] < both.iloc[:, 1]).all()):
            return True
    return False


def _without_phases(lanes: Lanes, line: tuple[int, ...]) -> Shape | None:
    """Return the shape if phases are unknown, by the messages from the last rank back to the first.

    Neighbours send m v messages each way. The last rank sends m (v - 1) to the first in forward, and gets as
    many back. A V of m micro-batches sends what one stage a rank with 2 m sends: then only the passes are
    known. With two ranks, neighbours and ends are the same, so nothing distinguishes the layouts.
    """
    first, second, last = line[0], line[1], line[-1]
    up, down = lanes.get((first, second), 0.0), lanes.get((second, first), 0.0)
    ahead, back = lanes.get((last, first), 0.0), lanes.get((first, last), 0.0)
    if bool(up) != bool(down):
        # All go one way, as the others were not seen: layouts with several stages a rank go both ways.
        one_way = up or down
        return Shape(len(line), round(one_way)) if one_way == round(one_way) else None
    if len(line) < 3 or up != down or ahead != back or not up or up != round(up):
        return None
    if not ahead:
        return _one_stage_or_v(len(line), round(up))
    batches = up - ahead
    if batches <= 0 or batches != round(batches) or up % batches:
        return None
    return Shape(len(line), round(batches), round(up / batches))


def _one_stage_or_v(ranks: int, passes: int) -> Shape:
    return Shape(ranks, passes) if passes % 2 else Shape(ranks, None, None, passes)


def _by_ends(context: Context, pipes: list[tuple[int, ...]]) -> Shape | None:
    """Return the shape if peers are unknown too: by the sends per step of ends and of ranks between.

    Laid in turn, ends send (2 v - 1) m messages and ranks between 2 v m. Laid as a V, they send 2 m and 4 m.
    """
    ends = {rank for line in pipes for rank in (line[0], line[-1])}
    between = {rank for line in pipes for rank in line} - ends
    rows = perhaps(context.in_steps)
    per_rank = keep(rows, rows["op"] == "send").groupby("rank").size() / max(1, len(context.steps))
    of_ends, of_between = (per_rank.reindex(sorted(part)).dropna() for part in (ends, between))
    if of_ends.empty or of_between.empty:
        return None
    end, inner = float(np.median(of_ends)), float(np.median(of_between))
    if inner == 2 * end and end == round(end):
        return _one_stage_or_v(len(pipes[0]), round(end))
    batches = inner - end
    if batches <= 0 or batches != round(batches) or (inner / 2) % batches:
        return None
    return Shape(len(pipes[0]), round(batches), round(inner / 2 / batches))


@once
def sends(context: Context) -> pd.DataFrame:
    """Return the messages by their sends: step, sender, receiver, start_ns, and whether they go backward.

    `backward` is unknown if the phase is. If no send between two ranks was seen, receives stand for the
    messages. A send knows better which way it goes, as it follows the compute that made it.
    """
    frame = messages(context)
    backward = frame["phase"].map({"forward": False, "backward": True}).astype("boolean")
    frame = frame.assign(backward=backward)
    sent = (frame["op"] == "send").to_numpy(dtype=bool)
    outgoing = keep(frame, sent).rename(columns={"rank": "sender", "root": "receiver"})
    incoming = keep(frame, ~sent).rename(columns={"rank": "receiver", "root": "sender"})
    lanes = set(zip(outgoing["sender"], outgoing["receiver"], strict=True))
    unseen = [lane not in lanes for lane in zip(incoming["sender"], incoming["receiver"], strict=True)]
    columns = ["step", "sender", "receiver", "start_ns", "backward"]
    parts = [outgoing[columns], keep(incoming, np.array(unseen, dtype=bool))[columns]]
    both: pd.DataFrame = pd.concat([part for part in parts if len(part)] or parts[:1])
    return both
