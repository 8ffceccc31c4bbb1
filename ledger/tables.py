"""The ledger's tables: an Arrow schema for each record type, derived from its annotations."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.columns import column
from shardtoll.ledger.record import PHASES, Collective, Compute, Count, Notice, Step
from shardtoll.ledger.stall import Leadup, Stall

if typing.TYPE_CHECKING:
    import pandas as pd

_ARROW: Final[dict[type, pa.DataType]] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
}


def _arrow_field(name: str, annotation: Any) -> pa.Field:
    nullable = False
    if isinstance(annotation, types.UnionType):
        arms = [arm for arm in annotation.__args__ if arm is not type(None)]
        nullable = len(arms) < len(annotation.__args__)
        (annotation,) = arms
    return pa.field(name, _ARROW[annotation], nullable=nullable)


def schema_of(record: type) -> pa.Schema:
    """Return the Arrow schema of a record dataclass: one column a field, null for None."""
    hints = typing.get_type_hints(record)
    return pa.schema([_arrow_field(f.name, hints[f.name]) for f in fields(record)])


RECORDS: Final[Mapping[str, type]] = {
    "steps": Step,
    "collectives": Collective,
    "computes": Compute,
    "counts": Count,
    "notices": Notice,
    "leadups": Leadup,
    "stalls": Stall,
}
"""Table name -> record type. `steps` is written last: a step in it is a step that finished."""

INSTANTS: Final = ("start_ns", "issue_ns", "since_ns")
"""Columns that are points in time, and may lie before the run's epoch."""

_COUNTED: Final = ("rank", "count", "index", "flops", "issued", "recorded")

LATER: Final = ("leadups", "stalls")
"""Tables that files of earlier versions do not have."""

SCHEMAS: Final[Mapping[str, pa.Schema]] = {name: schema_of(record) for name, record in RECORDS.items()}


def to_batch(table: str, records: Iterable[Any]) -> pa.RecordBatch:
    """Return the records as one Arrow batch of that table's schema; ValueError where one is unfit."""
    schema = SCHEMAS[table]
    rows = list(records)
    columns = [column([getattr(row, f.name) for row in rows], f.type) for f in schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    check(table, batch)
    return batch


def check(table: str, data: pa.RecordBatch | pa.Table) -> None:
    """Raise ValueError unless the data has the table's schema, what must be known, and no NaN.

    Arrow itself does not look for nulls in columns declared to have none.
    """
    if not data.schema.equals(SCHEMAS[table]):
        raise ValueError(f"table {table} does not have the ledger's schema")
    for item, values in zip(data.schema, data.columns, strict=True):
        if values.null_count and not item.nullable:
            raise ValueError(f"{table}.{item.name} is missing in {values.null_count} rows")
        if pa.types.is_floating(item.type) and not pc.all(pc.is_finite(values), min_count=0).as_py():
            raise ValueError(f"{table}.{item.name} holds NaN or infinity: unknown is null")


def check_values(table: str, data: pa.Table) -> None:
    """Raise ValueError for values that no record would hold; for tables from files, which are not trusted."""
    for item, values in zip(data.schema, data.columns, strict=True):
        if len(values) == values.null_count:
            continue
        measured = item.name.endswith(("_ns", "_bytes")) and item.name not in INSTANTS
        if (measured or item.name in _COUNTED) and pc.min(values).as_py() < 0:
            raise ValueError(f"{table}.{item.name} holds {pc.min(values).as_py()}")
        if item.name == "phase" and not set(pc.unique(values).to_pylist()) <= set(PHASES):
            raise ValueError(f"{table}.phase holds none of {', '.join(PHASES)}")


def to_table(table: str, records: Iterable[Any]) -> pa.Table:
    """Return the records as an Arrow table."""
    return pa.Table.from_batches([to_batch(table, records)])


def to_records(table: str, data: pa.Table) -> list[Any]:
    """Return the rows of a table as records, each checked as when first made."""
    record = RECORDS[table]
    return [record(**row) for row in data.to_pylist()]


def completed(table: str, data: pa.Table) -> pa.Table:
    """Return data written by an older version with the columns it lacks as unknown.

    Raises KeyError where a column that must be known is missing, an Arrow error where one does not fit.
    """
    schema = SCHEMAS[table]
    for item in schema:
        if item.nullable and item.name not in data.schema.names:
            data = data.append_column(item, pa.nulls(data.num_rows, item.type))
    return data.select(schema.names).cast(schema)


def to_frame(data: pa.Table) -> pd.DataFrame:
    """Return the table as a pandas frame in which unknown stays unknown.

    Whole numbers become pandas' nullable Int64, never floats: nanoseconds since 1970 do not fit a
    float64 and a missing one must not become NaN.
    """
    import pandas as pd

    kinds = {
        pa.int64(): pd.Int64Dtype(),
        pa.float64(): pd.Float64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
        pa.string(): pd.StringDtype(),
    }
    frame: pd.DataFrame = data.to_pandas(types_mapper=kinds.get)
    return frame
