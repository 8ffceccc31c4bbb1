"""Small exports of Nsight Systems, row by row; times in ns since the session began."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from synthetic.nsys import Export, payload

from shardtoll.profiler.traces.file.sources import find
from shardtoll.profiler.traces.file.trace_columns import Trace
from shardtoll.profiler.traces.nsys.read_nsys import read_nsys

PID = 300
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class Small:
    """An export of one process; `trace` writes and reads it."""

    def __init__(self, folder: Path) -> None:
        self.export = Export()
        self.folder = folder
        self.correlation = 0

    def kernel(
        self, name: str, start: int, end: int, *, pid: int = PID, device: int = 0, called: int = 0
    ) -> None:
        """Add a kernel and the call that launched it."""
        self.correlation += 1
        number = self.export.text(name)
        self.export.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=start,
            end=end,
            deviceId=device,
            streamId=7,
            globalPid=pid << 24,
            correlationId=self.correlation,
            demangledName=number,
            shortName=number,
        )
        at = called or start - 100
        self.export.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=at,
            end=at + 50,
            globalTid=pid << 24 | pid,
            correlationId=self.correlation,
            nameId=self.export.text("cudaLaunchKernel_v7000"),
        )

    def range(
        self, name: str, start: int, end: int | None, *, pid: int = PID, tid: int = 0, **more: Any
    ) -> None:
        """Add a push/pop range; `schema` and `values` make a payload."""
        if "schema" in more:
            schema, values = more.pop("schema"), more.pop("values")
            if not self.export.rows["NVTX_PAYLOAD_SCHEMA_ENTRIES"]:
                self.schemas()
            more["binaryData"] = payload(schema, values)
        row = {
            "start": start,
            "end": end,
            "eventType": 59,
            "globalTid": pid << 24 | (tid or pid),
            "text": name,
        }
        self.export.add("NVTX_EVENTS", **(row | more))

    def schemas(self) -> None:
        from synthetic.nsys import NsysSink
        from synthetic.spec import Spec

        NsysSink(Spec(), 0, None, self.export)._schemas()

    def write(self, name: str = "x.sqlite") -> Path:
        path = self.folder / name
        self.export.write(path)
        return path

    def trace(self, name: str = "x.sqlite", **options: Any) -> Trace:
        return read_nsys(find([str(self.write(name))])[0], **options)


def names(trace: Trace, rows: Any) -> list[str]:
    """Return the names of some rows of a trace."""
    return [trace.names[number] for number in rows.name.tolist()]


def write_rank(folder: Path, rank: int = 0, kernel: str = "gemm") -> Path:
    """Write an export of one step of one rank of two."""
    folder.mkdir(parents=True, exist_ok=True)
    small = Small(folder)
    values = {"NCCL communicator ID": 5, "No. of ranks": 2, "Rank": rank}
    small.range("ncclCommInitRank", 1, 2, schema=1, values=values)
    small.range("step 1", 10, 5000)
    small.kernel(kernel, 1000, 2000)
    values = {"NCCL communicator ID": 5, "Message size [bytes]": 64}
    small.range("ncclAllReduce", 2000, 2300, schema=2, values=values)
    small.kernel(ALL_REDUCE, 2500, 3500 + rank, called=2100)
    return small.write(f"rank{rank}.sqlite")
