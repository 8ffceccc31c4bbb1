"""How many groups send over a node's network cards at once.

All groups of a mesh dimension run the same collective at about the same time. Example: 8 data parallel groups
with a rank on each node. Each group has its own card if a node has 8 cards, and half a card if it has 4.
Groups are of one dimension where their ranks are the same stride apart (see `mesh_layouts.dim_of`). If times
are on record, they decide how many of the groups that may run at once do so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from msgspec import Struct, field

from shardtoll.analyzers.context.active import Intervals, mean_active
from shardtoll.analyzers.context.mesh_layouts import Dim, dim_of
from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.shared.tally import keep, numbered
from shardtoll.ledger import Run

Members = Sequence[tuple[int, ...]]


class Alike(Struct, frozen=True):
    """Which groups of a job do what, and where their ranks stand: `per_host` consecutive ones a node."""

    members: Members
    """Ranks of each group, by its number."""
    world_size: int
    per_host: int
    seen: frozenset[int]
    """Ranks whose records are at hand; what the others do is taken to be the same."""
    doing: Mapping[str, frozenset[int]]
    """op -> numbers of the groups that have it on record."""
    messaging: Mapping[tuple[str, int], frozenset[int]]
    """op and node -> ranks of the node that exchange such messages with another node."""
    known: dict[tuple[int, str], int] = field(default_factory=dict)

    def groups(self, number: int, op: str) -> int:
        """Return how many groups like this one, itself counted, have ranks on one of its nodes."""
        if (number, op) not in self.known:
            self.known[number, op] = self._groups(number, op)
        return self.known[number, op]

    def _groups(self, number: int, op: str) -> int:
        dim = dim_of(self.members[number])
        if dim is None or self.world_size % (dim.size * dim.stride):
            return 1
        # A group of a dimension is known by its first rank: no group of thousands of ranks is listed here.
        doing = {
            group[0]
            for group in map(self.members.__getitem__, self.doing.get(op, ()))
            if dim_of(group) == dim
        }
        seen = {_first(rank, dim) for rank in self.seen}
        nodes = {rank // self.per_host for rank in self.members[number]}
        return max(1, *(self._on_node(dim, node, doing, seen) for node in nodes))

    def _on_node(self, dim: Dim, node: int, doing: set[int], seen: set[int]) -> int:
        ranks = range(node * self.per_host, min((node + 1) * self.per_host, self.world_size))
        return sum(first in doing or first not in seen for first in {_first(rank, dim) for rank in ranks})

    def messages(self, rank: int, op: str) -> float:
        """Return how many ranks of the rank's node exchange messages with other nodes, itself counted.

        Not a whole number where the ranks of a node that were not seen are taken to do as the others.
        """
        node = rank // self.per_host
        ranks = range(node * self.per_host, min((node + 1) * self.per_host, self.world_size))
        seen = sum(each in self.seen for each in ranks)
        talking = len(self.messaging.get((op, node), ()))
        return max(1.0, talking * len(ranks) / seen) if seen else 1.0


def _first(rank: int, dim: Dim) -> int:
    """Return the first rank of the dimension's group that the rank is in."""
    block = dim.size * dim.stride
    return rank // block * block + rank % dim.stride


def alike(frame: pd.DataFrame, members: Members, run: Run, per_host: int) -> Alike:
    """Return which groups do what; `frame` has op, rank, root and group_id."""
    pairs = frame[["op", "group_id"]].drop_duplicates().dropna()
    doing: dict[str, set[int]] = {}
    for op, number in pairs.itertuples(index=False):
        doing.setdefault(str(op), set()).add(int(number))
    messages = keep(frame, frame["op"].isin(PEER_OPS) & frame["root"].notna())
    talking: dict[tuple[str, int], set[int]] = {}
    for op, rank, peer in messages[["op", "rank", "root"]].drop_duplicates().itertuples(index=False):
        if int(rank) // per_host != int(peer) // per_host:
            talking.setdefault((str(op), int(rank) // per_host), set()).add(int(rank))
    return Alike(
        members=members,
        world_size=run.world_size,
        per_host=per_host,
        seen=frozenset(run.ranks_seen),
        doing={op: frozenset(numbers) for op, numbers in doing.items()},
        messaging={key: frozenset(ranks) for key, ranks in talking.items()},
    )


def at_once(frame: pd.DataFrame, members: Members, per_host: int) -> pd.Series[float]:
    """Return, by `kind`, how many transfers of one sort a node's cards carried at once, in the median.

    `frame` has the rows that cross nodes: kind, rank, op, group_id, match_id, message_bytes, arrival_ns,
    duration_ns, transfer_ns. Transfers are of one sort if op, size and dimension agree. A statement about
    them holds for each, so a slow one, which ends alone, has company too. A kind without times is left out.
    """
    frame = keep(frame, (frame["transfer_ns"] > 0) & frame["match_id"].notna() & frame["arrival_ns"].notna())
    if frame.empty:
        return pd.Series(dtype="float64")
    dims = [dim_of(ranks) for ranks in members]
    numbers = {dim: number for number, dim in enumerate(dict.fromkeys(dims))}
    of_group = np.array([numbers[dim] for dim in dims] or [0], dtype=np.int64)
    rank = frame["rank"].to_numpy(dtype=np.int64)
    end = (frame["arrival_ns"] + frame["duration_ns"]).to_numpy(dtype=np.int64)
    rows = pd.DataFrame(
        {
            "kind": frame["kind"].to_numpy(),
            "match": frame["match_id"].to_numpy(dtype=np.int64),
            "node": rank // per_host,
            "op": frame["op"].to_numpy(),
            "size": frame["message_bytes"].to_numpy(dtype=np.int64, na_value=-1),
            "dim": of_group[frame["group_id"].fillna(0).to_numpy(dtype=np.int64)],
            "begin": end - frame["transfer_ns"].to_numpy(dtype=np.int64),
            "end": end,
        }
    ).drop_duplicates(["match", "node", "op"])
    lane = numbered(rows, ("node", "op", "dim"))
    transfers = Intervals(lane, rows["begin"].to_numpy(dtype=np.int64), rows["end"].to_numpy(dtype=np.int64))
    sort = numbered(rows, ("op", "dim", "size"))
    middle = pd.Series(mean_active(transfers, transfers)).groupby(sort).median()
    kinds = pd.DataFrame({"kind": rows["kind"].to_numpy(), "sort": sort}).drop_duplicates("kind")
    together: pd.Series[float] = kinds.set_index("kind")["sort"].map(middle)
    return together
