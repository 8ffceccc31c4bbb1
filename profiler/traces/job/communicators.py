"""Who is in an NCCL communicator: each trace shows that its own rank is, all together show the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from shardtoll.profiler.traces.file.trace_columns import GroupInfo
from shardtoll.profiler.traces.job.entry import Entry


def communicators(entries: Sequence[Entry]) -> list[GroupInfo]:
    """Return the communicators all of whose ranks have a trace here, with their ranks in order.

    If no trace says how large one is, those that use it are taken for all, if they are several.
    """
    ranks: defaultdict[str, set[int]] = defaultdict(set)
    sizes: dict[str, int] = {}
    for entry in entries:
        if entry.unsized is None:
            continue
        for args in entry.unsized.args:
            if args.group is not None and args.communicator is not None and not args.ranks:
                ranks[args.group].add(entry.rank)
                if args.group_size is not None:
                    sizes[args.group] = args.group_size
    return [
        GroupInfo(name, tuple(sorted(members)), len(members), backend="nccl")
        for name, members in ranks.items()
        if len(members) > 1 and len(members) == sizes.get(name, len(members))
    ]
