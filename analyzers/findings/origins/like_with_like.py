"""Which ranks do the same work, so that what one of them has more of is its own and not its role's."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.pipelines.stage_lines import lines
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep


class Alike(Struct, frozen=True):
    """Ranks that do the same work as each other."""

    peers: Mapping[int, tuple[int, ...]]
    """rank -> the other ranks with the same work; a rank without an equal is left out."""
    stages: Mapping[int, int]
    """rank -> its stage, in pipelines; empty without any."""
    words: str
    """Words for the others in a sentence: `the same stage of other replicas`."""


@once
def alike_ranks(context: Context) -> Alike:
    """Return the ranks that do the same work.

    In pipelines those of one stage, in the replicas of the pipeline. Else those that issue the same
    collectives on groups of the same sizes, as often.
    """
    pipes = lines(context)
    if pipes:
        stages = {rank: stage for line in pipes for stage, rank in enumerate(line)}
        by_stage: dict[int, list[int]] = {}
        for rank, stage in sorted(stages.items()):
            by_stage.setdefault(stage, []).append(rank)
        several = len({len(line) for line in pipes}) == 1
        roles = list(by_stage.values()) if several else []
        return Alike(_peers(roles), stages, "the same stage of other replicas")
    return Alike(_peers(_by_calls(context.in_alike)), {}, "the ranks that do the same work")


def _peers(roles: list[list[int]]) -> dict[int, tuple[int, ...]]:
    return {
        rank: tuple(other for other in role if other != rank)
        for role in roles
        if len(role) > 1
        for rank in role
    }


def _by_calls(frame: pd.DataFrame) -> list[list[int]]:
    """Return the ranks in parts that issue the same."""
    calls = keep(frame, frame["step"].notna())[["rank", "op", "group_size", "mesh_dim"]].fillna("")
    counts = calls.groupby(["rank", "op", "group_size", "mesh_dim"]).size()
    stories: dict[int, list[tuple[object, ...]]] = {}
    for (rank, *kind), count in counts.items():
        stories.setdefault(int(rank), []).append((*kind, int(count)))
    parts: dict[tuple[tuple[object, ...], ...], list[int]] = {}
    for rank, story in stories.items():
        parts.setdefault(tuple(sorted(story, key=str)), []).append(rank)
    return list(parts.values())
