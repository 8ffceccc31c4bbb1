"""One rank's ledger as bytes, to send to another rank: a JSON head, then one Parquet blob a table."""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from shardtoll.ledger.codec import (
    finding_from_json,
    finding_to_json,
    group_from_json,
    group_to_json,
    run_from_json,
    run_to_json,
)
from shardtoll.ledger.ledger import Ledger
from shardtoll.ledger.tables import SCHEMAS

_HEAD_BYTES: Final = 8


def pack(ledger: Ledger) -> bytes:
    """Return the ledger as bytes."""
    blobs = []
    for table in SCHEMAS:
        sink = pa.BufferOutputStream()
        pq.write_table(ledger.tables[table], sink, compression="zstd")
        blobs.append(sink.getvalue().to_pybytes())
    head = json.dumps(
        {
            "run": run_to_json(ledger.run),
            "groups": [group_to_json(group) for group in ledger.groups],
            "findings": [finding_to_json(finding) for finding in ledger.findings],
            "sizes": [len(blob) for blob in blobs],
        },
        allow_nan=False,
    ).encode()
    return b"".join([len(head).to_bytes(_HEAD_BYTES, "little"), head, *blobs])


def unpack(data: bytes) -> Ledger:
    """Return the ledger; ValueError when the bytes are none, or cut."""
    try:
        return _unpack(data)
    except (KeyError, TypeError, OSError, pa.ArrowException) as error:
        raise ValueError(f"no packed ledger ({error})") from error


def _unpack(data: bytes) -> Ledger:
    at = _HEAD_BYTES + int.from_bytes(data[:_HEAD_BYTES], "little")
    head = json.loads(data[_HEAD_BYTES:at])
    tables = {}
    for table, size in zip(SCHEMAS, head["sizes"], strict=True):
        tables[table] = pq.read_table(pa.BufferReader(data[at : at + size])).cast(SCHEMAS[table])
        at += size
    if at > len(data):
        raise ValueError(f"{len(data)} bytes where {at} were packed")
    return Ledger(
        run=run_from_json(head["run"]),
        groups=tuple(group_from_json(group) for group in head["groups"]),
        tables=tables,
        findings=tuple(finding_from_json(finding) for finding in head["findings"]),
    )
