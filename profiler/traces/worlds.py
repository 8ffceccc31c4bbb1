"""How many ranks a job has where its traces do not say, and what is not known then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.ledger import Ledger
from shardtoll.ledger.record import MOST_RANKS, Notice
from shardtoll.ledger.tables import to_table
from shardtoll.profiler.traces.comms import UNKNOWN, ranks_in
from shardtoll.profiler.traces.groups import ASSUMED, DEFAULT
from shardtoll.profiler.traces.link import Linked
from shardtoll.profiler.traces.trace import Trace


def least_world(trace: Trace, rank: int, rows: Sequence[Linked]) -> int:
    """Return the least number of ranks that a job with this trace's groups and collectives can have.

    A device communicates with another: a collective whose group is unknown has two ranks at least.
    """
    meta = trace.meta
    alone = all(row.args.group_size is not None for row in rows)
    most = max(rank + 1, 1 if alone else 2)
    for group in meta.groups:
        most = max(most, group.size or 0, *(each + 1 for each in group.ranks))
    for args in trace.comm_args:
        most = max(most, args.group_size or 0, *(each + 1 for each in ranks_in(args)))
    return min(most, max(MOST_RANKS, rank + 1))


def without_assumed(ledger: Ledger) -> Ledger:
    """Return the ledger with its assumed groups unknown: who is in them is not known without the job's size.

    What rests on a group's members goes with them: the bytes on the wire. The size stays that of one rank.
    """
    notices = ledger.tables["notices"]
    assumed = pc.ends_with(notices.column("text"), ASSUMED)
    if not pc.any(assumed).as_py():
        return ledger
    rows = ledger.tables["collectives"]
    here = pc.equal(rows.column("group"), DEFAULT)
    count = pc.sum(here).as_py() or 0
    columns = {
        "group": pa.scalar(UNKNOWN, rows.schema.field("group").type),
        "group_size": pa.scalar(1, rows.schema.field("group_size").type),
        "wire_bytes": pa.scalar(None, rows.schema.field("wire_bytes").type),
    }
    for name, value in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(name), pc.if_else(here, value, rows.column(name)))
    text = f"the group of {count} of {rows.num_rows} collectives is unknown, as is the job's size"
    first = ledger.run.ranks_seen[0]
    told = to_table("notices", [Notice(first, "groups-unknown", text)])
    tables = {
        **ledger.tables,
        "collectives": rows,
        "notices": pa.concat_tables([notices.filter(pc.invert(assumed)), told]),
    }
    groups = tuple(group for group in ledger.groups if group.name != DEFAULT)
    return replace(ledger, groups=groups, tables=tables)
