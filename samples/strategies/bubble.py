"""The bubble of a pipeline: at best, from the schedule's own order, and as measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from shardtoll.ledger import Report

Schedule: TypeAlias = PipelineScheduleSingle | PipelineScheduleMulti
Action: TypeAlias = tuple[str, int, int]
"""What is computed (F, B: a whole backward, I: the inputs', W: the weights'), its stage and micro-batch."""

COSTS: Final[Mapping[str, int]] = {"F": 1, "B": 2, "I": 1, "W": 1}
"""How long each takes, in forwards."""
_WORDS: Final = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


def actions_of(schedule: Schedule) -> list[list[Action]]:
    """Return what each rank computes, in order."""
    if isinstance(schedule, PipelineScheduleMulti):
        return _in_order(schedule.pipeline_order)
    # Of the last rank, torch (2.13) numbers the forwards of 1F1B from 1; they run in order, from 0.
    return [_renumbered(mine) for mine in _in_order(schedule._get_pipeline_order())]


def _in_order(order: Any) -> list[list[Action]]:
    return [
        [
            (_WORDS[action.computation_type.name], action.stage_index, action.microbatch_index)
            for action in order[rank]
            if action is not None and action.computation_type.name in _WORDS
        ]
        for rank in sorted(order)
    ]


def _renumbered(actions: Sequence[Action]) -> list[Action]:
    """Number the micro-batches of a rank with one stage, which takes them in turn."""
    seen: Counter[str] = Counter()
    renumbered = []
    for word, stage, _ in actions:
        renumbered.append((word, stage, seen[word]))
        seen[word] += 1
    return renumbered


def ideal_bubble(actions: Sequence[Sequence[Action]]) -> float:
    """Return the share of a step in which the average rank waits, if messages took no time.

    Each rank does its actions in order, each as soon as what it needs is there. Raises ValueError where
    actions wait for each other.
    """
    last = max(stage for mine in actions for _, stage, _ in mine)
    ended: dict[Action, int] = {}
    free = [0] * len(actions)
    done = [0] * len(actions)
    while any(count < len(mine) for count, mine in zip(done, actions, strict=True)):
        before = sum(done)
        for rank, mine in enumerate(actions):
            while done[rank] < len(mine):
                word, stage, batch = mine[done[rank]]
                needs = _needs(word, stage, batch, last)
                if not all(need in ended for need in needs):
                    break
                begins = max([free[rank], *(ended[need] for need in needs)])
                free[rank] = begins + COSTS[word]
                # Whoever needs a gradient of inputs does not care whether the weights' came with it.
                ended["I" if word == "B" else word, stage, batch] = free[rank]
                done[rank] += 1
        if sum(done) == before:
            raise ValueError("the actions of the schedule wait for each other")
    busy = sum(COSTS[word] for mine in actions for word, _, _ in mine)
    return 1 - busy / (max(free) * len(actions))


def _needs(word: str, stage: int, batch: int, last: int) -> list[Action]:
    if word == "F":
        return [("F", stage - 1, batch)] if stage > 0 else []
    if word == "W":
        return [("I", stage, batch)]
    return [("F", stage, batch), *([("I", stage + 1, batch)] if stage < last else [])]


def measured_bubble(report: Report) -> dict[int, float]:
    """Return for each rank which share of its last step it stood waiting for messages."""
    steps, rows = report.steps, report.collectives
    last = steps["step"].max()
    waited = (
        rows[(rows["step"] == last) & rows["op"].isin(["send", "recv"])].groupby("rank")["exposed_ns"].sum()
    )
    lengths = steps[steps["step"] == last].set_index("rank")["duration_ns"]
    return {int(rank): float(waited.get(rank, 0) / length_ns) for rank, length_ns in lengths.items()}
