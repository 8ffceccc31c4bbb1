"""A rank or a host that slows whatever it takes part in, by comparing its groups with their siblings."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.findings.slow.nodes import Nodes, nodes_of
from shardtoll.analyzers.findings.slow.reasons import LEAST_EACH, Reason, Slow, contrast
from shardtoll.ledger import Run
from shardtoll.ledger.words.human import ranks as ranks_words

APART: Final = 1.5
"""A group is slow if its median factor is this many times that of its siblings."""

NOT_ONE: Final = 0.95
"""Factor on the score if several ranks, or several hosts, could be the one."""


class _Suspect(Struct, frozen=True):
    """Who may be slow."""

    name: str
    """Name of the reason."""
    who: str
    sure: float


def slow_rank(of: Slow) -> Reason | None:
    """Groups with one rank, or one host, are slow and their siblings are not: its card, its links, itself."""
    slow, against = _slow_groups(of.each)
    if not slow or not against:
        return None
    groups = of.each["group_id"].to_numpy(dtype=np.float64, na_value=np.nan)
    difference = contrast(of, np.isin(groups, slow), np.isin(groups, against))
    if difference is None:
        return None
    suspect = _suspect(of, slow, against)
    who = suspect.who
    return Reason(
        name=suspect.name,
        score=suspect.sure * difference.score,
        why=f"groups with {who} take {difference.having:.1f} times the prediction, their siblings "
        f"{difference.lacking:.1f} times",
        text=f"Check the host and the network card of {who}. Look for link errors, a card that fell "
        "back to a lower rate, and clocks held down by heat. Exclude it, and see whether its groups are as "
        "fast as others.",
        code="# on the host of that rank\n"
        "# nvidia-smi -q -d PERFORMANCE,CLOCK; nvidia-smi nvlink -e; ibstat; ethtool eth0\n"
        'subprocess.run(["nvidia-smi", "-q", "-d", "PERFORMANCE,CLOCK"])',
        evidence=difference.evidence(f"of groups with {who}", "of their siblings"),
    )


def _suspect(of: Slow, slow: list[int], against: list[int]) -> _Suspect:
    """Return what the slow groups have in common: a rank, one of several, a host, or nothing."""
    members = of.context.matches.members
    elsewhere, sound = _elsewhere(of)
    suspects = set.intersection(*(set(members[group]) for group in slow))
    counted = Counter(rank for rank in suspects for other in elsewhere if rank in members[other])
    if counted:
        most = max(counted.values())
        suspects = {rank for rank in counted if counted[rank] == most}
    if len(suspects) == 1:
        who = ranks_words(suspects)
        return _Suspect(f"one slow rank ({who})", who, 1.0)
    nodes, run = nodes_of(of.context), of.context.ledger.run
    if nodes is not None and nodes.count > 1:
        hosts = _hosts(nodes, [members[group] for group in {*slow, *elsewhere}])
        hosts -= _whole(nodes, [members[group] for group in {*against, *sound}])
        # Some ranks of a host, or of several, are fewer suspects than a host.
        if hosts and (not suspects or any(_ranks(nodes, host) <= suspects for host in hosts)):
            return _host(nodes, hosts, run)
    if suspects:
        who = f"one of {ranks_words(suspects)}"
        return _Suspect(f"one slow rank ({who})", who, NOT_ONE)
    who = ranks_words(sorted({rank for group in slow for rank in members[group]}))
    return _Suspect(f"slow ranks ({who})", who, NOT_ONE)


def _hosts(nodes: Nodes, groups: list[tuple[int, ...]]) -> set[int]:
    """Return the hosts that all these groups have ranks on."""
    return set.intersection(*({nodes.of[rank] for rank in group} for group in groups))


def _whole(nodes: Nodes, groups: list[tuple[int, ...]]) -> set[int]:
    """Return the hosts that any of these groups has a rank on."""
    return {nodes.of[rank] for group in groups for rank in group}


def _ranks(nodes: Nodes, host: int) -> set[int]:
    return {rank for rank, node in enumerate(nodes.of) if node == host}


def _host(nodes: Nodes, hosts: set[int], run: Run) -> _Suspect:
    """Return the host that all slow groups touch and no sound one does; it may be one of several."""
    names = [_named(nodes, host, run) for host in sorted(hosts)]
    if len(names) == 1:
        return _Suspect(f"one slow host ({names[0]})", names[0], 1.0)
    who = f"one of {' and '.join(names)}"
    return _Suspect(f"one slow host ({who})", who, NOT_ONE)


def _named(nodes: Nodes, host: int, run: Run) -> str:
    ranks = _ranks(nodes, host)
    names = {name for rank, name in zip(run.ranks_seen, run.rank_hosts, strict=False) if rank in ranks}
    name = names.pop() if len(names) == 1 else None
    return f"host {name}, {ranks_words(ranks)}" if name else f"the host of {ranks_words(ranks)}"


def _slow_groups(each: pd.DataFrame) -> tuple[list[int], list[int]]:
    """Return the numbers of the groups that are slower than their siblings, and of those that are not."""
    grouped = each[each["group_id"].notna()]
    by_group = grouped.groupby(grouped["group_id"].astype("int64"))["factor"]
    middle = by_group.median()[by_group.size() >= LEAST_EACH]
    if len(middle) < 2:
        return [], []
    # Most of the groups may be slow, if each of them has the slow rank: the best show what is possible.
    line = APART * max(1.0, float(middle.min()))
    return middle[middle >= line].index.to_list(), middle[middle < line].index.to_list()


def _elsewhere(of: Slow) -> tuple[list[int], list[int]]:
    """Return the slow groups of all nets and ops, and their siblings that are not slow.

    A net and op without slow groups gives none: all of them may be slow, or none would show it.
    """
    slow: list[int] = []
    sound: list[int] = []
    for _, each in of.run.groupby(["net", "op"], sort=False):
        slow_here, others = _slow_groups(each)
        slow += slow_here
        sound += others if slow_here else []
    return slow, sound
