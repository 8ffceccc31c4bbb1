"""One rank's ledger as bytes, to send to another rank: a JSON head, then one Parquet blob a table.

The blob of a table without rows has no bytes: most tables of most runs are empty, and take as long as others.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa

from shardtoll.ledger.foreign.plain import from_plain, to_plain
from shardtoll.ledger.records.finding import Finding
from shardtoll.ledger.records.record import Group, Run
from shardtoll.ledger.tables.ledger import Ledger
from shardtoll.ledger.tables.parquet import from_parquet, to_parquet
from shardtoll.ledger.tables.tables import SCHEMAS, empty_table
from shardtoll.ledger.tables.validated import validated

_HEAD_BYTES: Final = 8


def pack(ledger: Ledger) -> bytes:
    """Return the ledger as bytes."""
    tables = [ledger.tables[table] for table in SCHEMAS]
    blobs = [to_parquet(table).to_pybytes() if table.num_rows else b"" for table in tables]
    head = json.dumps(
        {
            "run": to_plain(ledger.run),
            "groups": to_plain(ledger.groups),
            "findings": to_plain(ledger.findings),
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
    offset = _HEAD_BYTES + int.from_bytes(data[:_HEAD_BYTES], "little")
    head = json.loads(data[_HEAD_BYTES:offset])
    tables = {}
    for table, size in zip(SCHEMAS, head["sizes"], strict=True):
        if size == 0:
            tables[table] = empty_table(table)
            continue
        packed = from_parquet(pa.py_buffer(data[offset : offset + size]))
        tables[table] = validated(table, packed.cast(SCHEMAS[table]))
        offset += size
    if offset > len(data):
        raise ValueError(f"{len(data)} bytes where {offset} were packed")
    return Ledger(
        run=from_plain(Run, head["run"]),
        groups=from_plain(tuple[Group, ...], head["groups"]),
        tables=tables,
        findings=from_plain(tuple[Finding, ...], head["findings"]),
    )
