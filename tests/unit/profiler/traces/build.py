"""Traces built in memory, event by event; times in ns, thread 0 is the training thread."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardtoll.profiler.traces.file.trace_columns import (
    COPY,
    KERNEL,
    SET,
    CommArgs,
    DeviceWork,
    GroupInfo,
    HostWork,
    Meta,
    Trace,
)

_DEVICE = {
    "start_ns": np.int64, "end_ns": np.int64, "name": np.int32, "kind": np.int8, "device": np.int32,
    "stream": np.int32, "correlation": np.int64, "external": np.int64, "bytes": np.int64, "comm": np.int32,
}  # fmt: skip
_HOST = {
    "start_ns": np.int64, "end_ns": np.int64, "name": np.int32, "thread": np.int32,
    "correlation": np.int64, "external": np.int64, "comm": np.int32,
}  # fmt: skip

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "sm90_xmma_gemm_f32f32"


class Build:
    """Collects events; `trace()` gives the columns."""

    def __init__(
        self, rank: int | None = 0, world: int | None = 2, groups: tuple[GroupInfo, ...] = (), **meta: Any
    ):
        self.meta = Meta(
            "made", rank, world, "nccl", meta.pop("device", None), None, None, groups=groups, **meta
        )
        self.names: dict[str, int] = {}
        self.comm: dict[CommArgs, int] = {}
        self.rows: dict[str, list[tuple[Any, ...]]] = {
            k: [] for k in ("device", "calls", "ops", "notes", "frames")
        }
        self.correlation = 0

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def args(self, args: CommArgs | None) -> int:
        return -1 if args is None else self.comm.setdefault(args, len(self.comm))

    def work(
        self,
        name: str,
        start: int,
        end: int,
        *,
        launch: int | None = None,
        stream: int = 7,
        kind: int = KERNEL,
        args: CommArgs | None = None,
        external: int = -1,
        size: int = -1,
        thread: int = 0,
    ) -> Build:
        """Device work, and its launch call of 1 ns at `launch` if given."""
        self.correlation += 1
        self.rows["device"].append(
            (start, end, self.name(name), kind, 0, stream, self.correlation, external, size, self.args(args))
        )
        if launch is not None:
            self.call("cudaLaunchKernel", launch, launch + 1, thread=thread, correlation=self.correlation)
        return self

    def copy(self, name: str, start: int, end: int, size: int = 64, **more: Any) -> Build:
        return self.work(name, start, end, kind=COPY, size=size, **more)

    def memset(self, start: int, end: int, **more: Any) -> Build:
        return self.work("Memset (Device)", start, end, kind=SET, **more)

    def call(self, name: str, start: int, end: int, *, thread: int = 0, correlation: int = 0) -> Build:
        self.rows["calls"].append((start, end, self.name(name), thread, correlation, -1, -1))
        return self

    def _host(
        self, table: str, name: str, start: int, end: int, thread: int, external: int, args: CommArgs | None
    ) -> Build:
        self.rows[table].append((start, end, self.name(name), thread, -1, external, self.args(args)))
        return self

    def op(
        self,
        name: str,
        start: int,
        end: int,
        thread: int = 0,
        external: int = -1,
        args: CommArgs | None = None,
    ) -> Build:
        return self._host("ops", name, start, end, thread, external, args)

    def note(self, name: str, start: int, end: int, thread: int = 0, args: CommArgs | None = None) -> Build:
        return self._host("notes", name, start, end, thread, -1, args)

    def frame(self, name: str, start: int, end: int, thread: int = 0) -> Build:
        return self._host("frames", name, start, end, thread, -1, None)

    def trace(self) -> Trace:
        def columns(table: str, types: dict[str, Any]) -> dict[str, Any]:
            rows = self.rows[table]
            return {
                key: np.array([row[at] for row in rows], kind) for at, (key, kind) in enumerate(types.items())
            }

        hosts = [HostWork(**columns(table, _HOST)) for table in ("calls", "ops", "notes", "frames")]
        times = [time for rows in self.rows.values() for row in rows for time in row[:2]]
        return Trace(
            self.meta,
            list(self.names),
            [("1", str(at)) for at in range(4)],
            DeviceWork(**columns("device", _DEVICE)),
            *hosts,
            list(self.comm),
            min(times, default=0),
            max(times, default=0),
            len(times) // 2,
        )
