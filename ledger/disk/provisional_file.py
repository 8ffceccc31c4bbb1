"""Rows of watched steps that a rank has yet to append to its journals: all that a kill would leave of them.

One file holds them: a JSON head, then a stream of Arrow for each table. The head names the run, so that a
file which an earlier run left in the folder is ignored. The rows of steps that are in the journals by now do
not count either: those are complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.records.step_rows import StepRows
from shardtoll.ledger.tables.tables import SCHEMAS, to_batch
from shardtoll.ledger.tables.validated import validated

TABLES: Final = ("collectives", "counts", "stalls", "values", "steps")
"""Tables that a watched step has rows of."""
_HEAD_BYTES: Final = 8


def packed(made: Iterable[Mapping[str, pa.RecordBatch] | StepRows], run_id: str) -> bytes:
    """Return the rows of steps of a run as bytes."""
    batches: dict[str, list[pa.RecordBatch]] = {table: [] for table in TABLES}
    for rows in made:
        for table in TABLES:
            if isinstance(rows, StepRows):
                records = _records(rows, table)
                if records:
                    batches[table].append(to_batch(table, records))
            elif table in rows:
                batches[table].append(rows[table])
    blobs = {table: _stream(table, each) for table, each in batches.items() if each}
    sizes = {table: len(blob) for table, blob in blobs.items()}
    head = json.dumps({"run_id": run_id, "bytes": sizes}).encode()
    return b"".join([len(head).to_bytes(_HEAD_BYTES, "little"), head, *blobs.values()])


def _records(rows: StepRows, table: str) -> tuple[Any, ...]:
    if table == "steps":
        return () if rows.step is None else (rows.step,)
    records: tuple[Any, ...] = getattr(rows, table)
    return records


def _stream(table: str, batches: Iterable[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMAS[table]) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue())


def unpacked(data: bytes, run_id: str | None) -> dict[str, pa.Table]:
    """Return the tables, none if they are of another run than `run_id` (None: not known).

    Raises ValueError or pa.ArrowException if the bytes are damaged.
    """
    begin = _HEAD_BYTES + int.from_bytes(data[:_HEAD_BYTES], "little")
    head = json.loads(data[_HEAD_BYTES:begin])
    sizes = head.get("bytes") if isinstance(head, dict) else None
    if not isinstance(sizes, dict) or not sizes.keys() <= set(TABLES):
        raise ValueError("its head names no tables")
    if not isinstance(head.get("run_id"), str):
        raise ValueError("its head names no run")
    if head["run_id"] != run_id:
        return {}
    tables = {}
    for table, size in sizes.items():
        if type(size) is not int or not 0 <= size <= len(data) - begin:
            raise ValueError(f"{table} has {size!r:.20} bytes by its head")
        with pa.ipc.open_stream(pa.py_buffer(data[begin : begin + size])) as stream:
            tables[table] = validated(table, stream.read_all())
        begin += size
    return tables


def with_provisional(
    tables: dict[str, pa.Table], later: Mapping[str, pa.Table]
) -> tuple[dict[str, pa.Table], int]:
    """Return the tables with those later rows whose steps they do not have, and the number of these steps."""
    if "steps" not in later:
        return tables, 0
    known = tables["steps"].column("step")
    missing = set(later["steps"].column("step").to_pylist()) - set(known.to_pylist())
    if not missing:
        return tables, 0
    wanted = pa.array(sorted(missing), known.type)
    both = dict(tables)
    for table, rows in later.items():
        kept = rows.filter(pc.is_in(rows.column("step"), value_set=wanted))
        both[table] = pa.concat_tables([tables[table], kept])
    return both, len(missing)
