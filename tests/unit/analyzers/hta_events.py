"""Events of a trace file as the table that the HTA analyses take, read in the plainest way."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

TEXTS = ("cat", "name", "pid", "tid")


def events_of(path: Path) -> pa.Table:
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    return table_of(document["traceEvents"])


def table_of(events: list[dict[str, Any]]) -> pa.Table:
    rows = []
    for at, event in enumerate(events):
        if event.get("ph") != "X" or event.get("cat") in (None, "Trace"):
            continue
        args = event.get("args", {})
        rows.append(
            {
                "index": at,
                **{name: str(event[name]) for name in TEXTS},
                "ts_ns": int(event["ts"] * 1000),
                "dur_ns": int(event["dur"] * 1000),
                "stream": _whole(args.get("stream")),
                "correlation": _whole(args.get("correlation")),
                "external_id": _whole(args.get("External id")),
                "wait_on_stream": _whole(args.get("wait_on_stream")),
                "wait_on_cuda_event_record_corr_id": _whole(args.get("wait_on_cuda_event_record_corr_id")),
            }
        )
    return pa.Table.from_pylist(rows)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else -1
