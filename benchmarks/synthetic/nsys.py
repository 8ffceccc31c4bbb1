"""One rank's export of Nsight Systems, as `nsys export --type sqlite` writes it: tables, texts and payloads.

`schema` of the job chooses the age: `old` has no payloads, no processes and no device properties; `sizes` is
NCCL before 2.23, which names no communicator; `groups` keeps payloads as JSON; `seq` as binary data.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
from ast import literal_eval
from pathlib import Path
from typing import Any, Final

from synthetic.spec import Spec
from synthetic.words import BYTES

SESSION_NS: Final = 5_000_000_000
"""A session begins that long before the job."""
_DOMAIN: Final = 3
_ENTRIES: Final = {
    1: (("NCCL communicator ID", 18, 0), ("No. of ranks", 5, 8), ("Rank", 5, 12), ("CUDA device", 5, 16)),
    2: (("NCCL communicator ID", 18, 0), ("Message size [bytes]", 22, 8), ("Reduction operation", 99, 16)),
    3: (("NCCL communicator ID", 18, 0), ("Message size [bytes]", 22, 8), ("Peer rank", 5, 16)),
}
"""Schema -> (name, type, offset) of its entries; 24 bytes each."""
_INIT, _COLLECTIVE, _PEER = _ENTRIES
_CALLS: Final = {
    "allreduce": "ncclAllReduce",
    "_allgather_base": "ncclAllGather",
    "_reduce_scatter_base": "ncclReduceScatter",
    "send": "ncclSend",
    "recv": "ncclRecv",
}
_KINDS: Final = {1: ("Pageable", 0), 2: ("Pinned", 1), 3: ("Device", 2)}
_WAYS: Final = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
TABLES: Final = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT",
    "TARGET_INFO_GPU": "vmId INTEGER, id INTEGER, name TEXT, busLocation TEXT, totalMemory INTEGER, "
    "smCount INTEGER, computeMajor INTEGER, computeMinor INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT",
    "ENUM_CUDA_MEM_KIND": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, "
    "globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, "
    "gridX INTEGER NOT NULL, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, "
    "returnValue INTEGER NOT NULL, callchainId INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, "
    "category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, "
    "domainId INTEGER, uint64Value INTEGER, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT",
    "NVTX_PAYLOAD_SCHEMAS": "domainId INTEGER, schemaId INTEGER, name TEXT, payloadSize INTEGER",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, "
    "idx INTEGER NOT NULL, flags INTEGER, type INTEGER, name TEXT, description TEXT, "
    "arrayOrUnionDetail INTEGER, offset INTEGER",
}
_OLD_LACKS: Final = {
    "NVTX_EVENTS": ("jsonTextId", "jsonText", "binaryData"),
    "CUPTI_ACTIVITY_KIND_KERNEL": ("globalPid", "greenContextId", "mangledName", "graphNodeId"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("globalPid", "srcKind", "dstKind"),
}
_OLD_TABLES: Final = (
    *("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"),
    *("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"),
)


class Export:
    """Rows for one export, written at the end; several ranks may share it, as the processes of one host."""

    def __init__(self, old: bool = False) -> None:
        self.old = old
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in (_OLD_TABLES if old else TABLES)}
        self.lacks: dict[str, tuple[str, ...]] = dict(_OLD_LACKS) if old else {}
        """Columns that a table does not have."""
        self.extra: dict[str, str] = {}
        """Columns of more tables."""
        self._texts: dict[str, int] = {}

    def add(self, table: str, **row: Any) -> None:
        """Add a row; what a version does not have is left out."""
        if table in self.extra:
            self.rows.setdefault(table, [])
        if table in self.rows:
            self.rows[table].append(row)

    def text(self, value: str) -> int:
        """Return the number of a text."""
        number = self._texts.get(value)
        if number is None:
            number = self._texts[value] = len(self._texts) + 1
            self.add("StringIds", id=number, value=value)
        return number

    def write(self, path: Path) -> None:
        """Write the database; one that is there is replaced."""
        path.unlink(missing_ok=True)
        database = sqlite3.connect(path)
        for name, rows in self.rows.items():
            columns = [each.strip() for each in (TABLES | self.extra)[name].split(",")]
            columns = [each for each in columns if each.split()[0] not in self.lacks.get(name, ())]
            database.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
            names = [each.split()[0] for each in columns]
            marks = ", ".join("?" * len(names))
            # Columns that no test looks at hold 0 where they may not be empty.
            must = {each.split()[0] for each in columns if "NOT NULL" in each}
            database.executemany(
                f"INSERT INTO {name} ({', '.join(names)}) VALUES ({marks})",
                [[row.get(each, 0 if each in must else None) for each in names] for row in rows],
            )
        database.commit()
        database.close()


class NsysSink:
    """Takes the events of one rank, as `synthetic.write.Sink` does."""

    def __init__(self, spec: Spec, rank: int, path: Path | None, export: Export | None = None) -> None:
        self.spec = spec
        self.rank = rank
        self.path = path
        self.pid = 4000 + rank
        self.window: tuple[int, int] | None = None
        self.export = Export(old=spec.schema == "old") if export is None else export
        self._shared = export is not None
        offset, drift = spec.clock(rank)
        self._offset, self._drift = offset, drift * 1e-6
        self._process = (1 << 56) | (self.pid << 24)
        self._began_ns = spec.epoch_ns - SESSION_NS

    def begin(self, metadata: dict[str, Any]) -> None:
        """Write what the file says of its machine and process."""
        export, spec = self.export, self.spec
        device = self.rank % 8
        for place in () if export.rows.get("TARGET_INFO_GPU") else range(8):
            name, memory, sms = "NVIDIA H100 80GB HBM3", 85_029_158_912, 132
            row = {"id": place, "name": name, "totalMemory": memory, "smCount": sms}
            export.add("TARGET_INFO_GPU", **row, computeMajor=9, computeMinor=0)
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=device, cudaId=device, pid=self.pid)
        export.add("PROCESSES", globalPid=self._process, pid=self.pid, name="python3")
        if not export.rows.get("TARGET_INFO_SESSION_START_TIME"):
            export.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.24.14")
            export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=self._began_ns)
            export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value=f"node{spec.host_of(self.rank)}")
            for label, number in _KINDS.values():
                export.add("ENUM_CUDA_MEM_KIND", id=number, label=label)
            self._schemas()
        if not self._shared and (self.rank, "no-rank") not in spec.damage:
            value = f"HOME=/root\nSECRET=hunter2\nRANK={self.rank}\nWORLD_SIZE={spec.ranks}\n"
            export.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value=value)
        groups = metadata.get("distributedInfo", {}).get("pg_config", [])
        for group in groups or [{"pg_name": "0", "ranks": list(range(spec.ranks))}]:
            self._communicator(str(group["pg_name"]), group["ranks"])

    def _schemas(self) -> None:
        for schema, entries in _ENTRIES.items():
            ids = {"domainId": _DOMAIN, "schemaId": schema}
            self.export.add("NVTX_PAYLOAD_SCHEMAS", **ids, payloadSize=24)
            for idx, (name, kind, offset) in enumerate(entries):
                # The first offset is left empty, as exports do.
                row = {"idx": idx, "type": kind, "name": name, "offset": offset or None}
                self.export.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", **ids, **row)

    def _communicator(self, name: str, ranks: list[int]) -> None:
        """Write the range in which a process joined a communicator."""
        values = {"NCCL communicator ID": identity(name, ranks), "No. of ranks": len(ranks)}
        values |= {"Rank": ranks.index(self.rank), "CUDA device": self.rank % 8}
        at = self.spec.epoch_ns - SESSION_NS // 2
        self._range("ncclCommInitRankConfig", self.pid, at, at + 1000, _INIT, values)

    def end(self) -> None:
        """Write the file, unless others share it."""
        if self.path is not None and not self._shared:
            self.export.write(self.path)

    def host(self, cat: str, name: str, tid: int, start: int, end: int, args: dict[str, Any]) -> None:
        """Write an event of a host thread."""
        if self._outside(start) or cat == "python_function":
            return
        if cat == "cuda_runtime":
            times = {"start": self._time(start), "end": self._time(end), "globalTid": self._process | tid}
            number = self.export.text(f"{name}_v7000")
            self.export.add(
                "CUPTI_ACTIVITY_KIND_RUNTIME", **times, correlationId=args["correlation"], nameId=number
            )
        elif name == "record_param_comms":
            self._collective(tid, start, end, args)
        elif name.startswith("nccl:"):
            return
        elif cat == "user_annotation":
            self._range(name.replace("ProfilerStep#", "step "), tid, start, end)
        else:
            number = args.get("External id", 0)
            self._range(f"{name}, op_id = {number}", tid, start, end, registered=False)

    def _collective(self, tid: int, start: int, end: int, args: dict[str, Any]) -> None:
        """Write NCCL's own range of a call."""
        if self.spec.schema == "old":
            return
        op = str(args["Collective name"])
        ranks = literal_eval(args["Process Group Ranks"])
        width = BYTES[args["dtype"]]
        elements = min(args["In msg nelems"], args["Out msg nelems"])
        values = {"Message size [bytes]": elements * width, "Reduction operation": 0}
        schema = _COLLECTIVE
        if op in ("send", "recv"):
            schema = _PEER
            other = args.get("Dst Rank" if op == "send" else "Src Rank", 0)
            values = {"Message size [bytes]": elements * width, "Peer rank": ranks.index(other)}
        if self.spec.schema != "sizes":
            values["NCCL communicator ID"] = identity(str(args["Process Group Name"]), ranks)
        self._range(_CALLS[op], tid, start, end, schema, values)

    def _range(
        self,
        name: str,
        tid: int,
        start: int,
        end: int,
        schema: int | None = None,
        values: dict[str, int] | None = None,
        registered: bool = True,
    ) -> None:
        row: dict[str, Any] = {"start": self._time(start), "end": self._time(end), "eventType": 59}
        row |= {"globalTid": self._process | tid, "domainId": 0 if schema is None else _DOMAIN}
        row |= {"textId": self.export.text(name)} if registered else {"text": name}
        if schema is not None and values:
            if self.spec.schema == "seq":
                row["binaryData"] = payload(schema, values)
            else:
                row["jsonText"] = json.dumps(values)
        self.export.add("NVTX_EVENTS", **row)

    def device(
        self,
        cat: str,
        name: str,
        stream: int,
        start: int,
        end: int,
        correlation: int,
        external: int | None,  # noqa: ARG002 - exports name no operator
        more: Any,
    ) -> None:
        """Write device work."""
        if self._outside(start):
            return
        row: dict[str, Any] = {"start": self._time(start), "end": self._time(end), "streamId": stream}
        row |= {"deviceId": self.rank % 8, "contextId": 1, "correlationId": correlation}
        row |= {"globalPid": self._process}
        if cat == "kernel":
            number = self.export.text(name)
            short = self.export.text(name.split("(")[0])
            self.export.add(
                "CUPTI_ACTIVITY_KIND_KERNEL", **row, demangledName=number, shortName=short, gridX=16
            )
        else:
            way = name.split()[1]
            self.export.add(
                "CUPTI_ACTIVITY_KIND_MEMCPY",
                **row,
                bytes=more["bytes"],
                copyKind=_WAYS[way],
                srcKind=1 if "Pinned" in name else 0,
                dstKind=2,
            )

    def arrow(self, end: str, correlation: int, pid: int, tid: int, at: int) -> None:
        """Write nothing: launches are linked by their number."""

    def instant(self, name: str, at: int) -> None:
        """Write nothing: the profiler leaves no marks."""

    def meta(self, name: str, pid: int | str, args: dict[str, Any]) -> None:
        """Write nothing: processes are in a table."""

    def _outside(self, at: int) -> bool:
        return self.path is None or bool(self.window and not self.window[0] <= at < self.window[1])

    def _time(self, true_ns: int) -> int:
        local = true_ns + self._offset + round(self._drift * (true_ns - self.spec.epoch_ns))
        return local - self._began_ns


def identity(name: str, ranks: list[int] | tuple[int, ...]) -> int:
    """Return the id of the communicator of a group; with its highest bit set, as half of them have."""
    digest = hashlib.sha256(f"{name} {list(ranks)}".encode()).digest()
    return int.from_bytes(digest[:8], "little") | 1 << 63


def payload(schema: int, values: dict[str, int]) -> bytes:
    """Return an extended payload: its header of 32 bytes and the numbers at their places."""
    data = bytearray(24)
    for name, kind, offset in _ENTRIES[schema]:
        if name in values:
            struct.pack_into("<Q" if kind in (18, 22) else "<i", data, offset, values[name])
    return struct.pack("<QQQQ", _DOMAIN, schema, len(data), 32 + len(data)) + bytes(data)
