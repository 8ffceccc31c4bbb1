"""The part of one file that was read so far: names, processes and threads, collectives, and counts of
rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.profiler.traces.file.columns import check_rows
from shardtoll.profiler.traces.file.interned import Names
from shardtoll.profiler.traces.file.trace_columns import CommArgs
from shardtoll.profiler.traces.nsys.columns import Threads
from shardtoll.profiler.traces.nsys.database import Database

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
DEVICE_TABLES: Final = (KERNELS, COPIES, SETS, GRAPHS)
CALLS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Read:
    """The part of one file that was read so far."""

    database: Database
    where: str
    row_limit: int
    names: Names = field(init=False)
    threads: Threads = field(default_factory=Threads)
    comm_args: dict[CommArgs, int] = field(default_factory=dict)
    events: int = 0
    """Rows seen, kept or not."""
    bad: int = 0
    """Rows whose times are no usable numbers."""
    kept: int = 0

    def __post_init__(self) -> None:
        self.names = Names(self.where)

    def comm(self, args: CommArgs) -> int:
        """Return the number of a collective's facts."""
        return self.comm_args.setdefault(args, len(self.comm_args))

    def count(self, usable: Mask, kept: Mask) -> None:
        """Count the rows of a chunk. Raises TraceError past the limit on rows."""
        self.events += len(usable)
        self.bad += len(usable) - int(usable.sum())
        self.kept += int(kept.sum())
        check_rows(self.kept, self.where, self.row_limit)

    def knows_processes(self) -> bool:
        """Whether launches and what they launched name their process in every table that is there."""
        there = [name for name in DEVICE_TABLES if name in self.database.tables]
        calls = [name for name in CALLS if name in self.database.tables]
        return all(self.database.has(name, "globalPid") for name in there) and all(
            self.database.has(name, "globalTid") for name in calls
        )
