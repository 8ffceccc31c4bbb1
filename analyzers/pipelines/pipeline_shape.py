"""What a pipeline's messages say of its schedule: micro-batches, and stages a rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.pipelines.stage_lines import lines
from shardtoll.analyzers.pipelines.stage_messages import Lanes, lanes, messages, perhaps
from shardtoll.analyzers.shared.tally import keep


@dataclass(frozen=True, slots=True)
class Shape:
    """What the messages of a step say of the pipelines, all of one shape."""

    ranks: int
    micro_batches: int
    stages_per_rank: int = 1

    @property
    def ideal_share(self) -> float:
        """The bubble of interleaved 1F1B, of 1F1B and GPipe where ranks have one stage each."""
        idle = self.ranks - 1
        return idle / (self.stages_per_rank * self.micro_batches + idle)


def shape(context: Context) -> Shape | None:
    """Return the shape of the pipelines; None where messages do not tell, or pipelines differ.

    With m micro-batches and v stages a rank, laid in turn, the first rank sends m v messages to the second
    in forward and the last rank m (v - 1) to the first. Laid as a V, ranks send m up and m down.
    """
    pipes = lines(context)
    if not pipes or len({len(line) for line in pipes}) > 1:
        return None
    rows = messages(context)
    forward = lanes(keep(rows, rows["phase"] == "forward"))
    backward = lanes(keep(rows, rows["phase"] == "backward"))
    # Backward sends the same numbers the other way: it tells where forward's ends were not seen.
    shapes = [
        each
        for line in pipes
        for each in (_shape(forward, line), _shape({(b, a): n for (a, b), n in backward.items()}, line))
        if each is not None
    ]
    if shapes:
        # A tensor without a gradient, as a mask, goes one way only: the fewest are the micro-batches.
        return min(shapes, key=lambda each: each.micro_batches)
    unphased = [_wrapped(lanes(rows), line) for line in pipes]
    told = [each for each in unphased if each is not None]
    if told:
        return min(told, key=lambda each: each.micro_batches)
    batches = _by_ends(context, pipes)
    return None if batches is None else Shape(len(pipes[0]), batches)


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
    return Shape(len(line), round(batches), 2 if as_v else round(up / batches))


def _wrapped(lanes: Lanes, line: tuple[int, ...]) -> Shape | None:
    """Return the shape where phases are unknown, by the messages from the last rank back to the first.

    Between neighbours go m v messages each way, from the last rank to the first m (v - 1) in forward, and as
    many back. Of two ranks neighbours and ends are the same, so that nothing tells them apart.
    """
    first, second, last = line[0], line[1], line[-1]
    up, down = lanes.get((first, second), 0.0), lanes.get((second, first), 0.0)
    ahead, back = lanes.get((last, first), 0.0), lanes.get((first, last), 0.0)
    if len(line) < 3 or up != down or ahead != back or not ahead:
        return None
    batches = up - ahead
    if batches <= 0 or batches != round(batches) or up % batches:
        return None
    return Shape(len(line), round(batches), round(up / batches))


def _by_ends(context: Context, pipes: list[tuple[int, ...]]) -> int | None:
    """Return the micro-batches where phases are unknown: the sends per step of a pipeline's ends.

    The first stage sends each micro-batch forward once, the last one's gradients once. Ranks with several
    stages send more than that: see `_wrapped`.
    """
    ends = {rank for line in pipes for rank in (line[0], line[-1])}
    rows = perhaps(context.in_steps)
    sends = keep(rows, (rows["op"] == "send") & rows["rank"].isin(sorted(ends)))
    per_rank = sends.groupby("rank").size()
    if per_rank.empty:
        return None
    return round(float(np.median(per_rank.to_numpy())) / len(context.steps)) or None
