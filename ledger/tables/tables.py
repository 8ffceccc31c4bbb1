"""The ledger's tables: an Arrow schema for each record type, derived from its annotations."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.records.columns import column
from shardtoll.ledger.records.dry import DryOp, DryStorage, DryWait
from shardtoll.ledger.records.event import DeviceOp, Event
from shardtoll.ledger.records.record import LEVELS, PHASES, Collective, Compute, Count, Notice, Run, Step
from shardtoll.ledger.records.stall import Leadup, Stall
from shardtoll.ledger.records.value import Parameter, Value

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
    "values": Value,
    "parameters": Parameter,
    "device_ops": DeviceOp,
    "dry_ops": DryOp,
    "dry_storages": DryStorage,
    "dry_waits": DryWait,
    "events": Event,
}
"""Table name -> record type. `steps` is written last: a step in it is a step that finished."""

INSTANTS: Final = ("start_ns", "issue_ns", "since_ns")
"""Columns that are points in time, and may lie before the run's epoch."""

_COUNTED: Final = (
    *("rank", "count", "index", "flops", "issued", "recorded", "nth", "numel", "square"),
    *("group_id", "match_id", "late_rank"),
)

DRY: Final = ("dry_ops", "dry_storages", "dry_waits")
"""Tables that only a dry run fills; other runs have no files of them."""

LATER: Final = ("leadups", "stalls", "values", "parameters", "device_ops", "events", *DRY)
"""Tables that files of earlier versions do not have."""

NOT_IN_JSON: Final = ("events",)
"""Tables that a report's JSON leaves out: a row for each launch and kernel would be most of it."""

BEFORE: Final[Mapping[str, str]] = {"level": "survey"}
"""Columns that must be known but that earlier versions did not write -> what all their rows were."""

_TOTAL: Final = 4e18
"""Limit for the sum of a column of amounts: sums and differences of two such still fit 64 bits."""

_AMOUNTS: Final = ("count", "issued", "recorded", "numel")
"""Other columns than times and bytes that are added up in 64 bits. No FLOPs: 20 steps of 8 s on 64 ranks
exceed 64 bits. Code that adds FLOPs up uses floats or Python's numbers."""

_CLOSED: Final[Mapping[str, tuple[str, ...]]] = {"phase": PHASES, "level": LEVELS}
"""Columns that hold one of a few words."""

SCHEMAS: Final[Mapping[str, pa.Schema]] = {name: schema_of(record) for name, record in RECORDS.items()}


_MOST_KEPT: Final = 10_000
"""Rows of a batch whose columns are kept for the next one."""
_UNKNOWN: Final = (None,)


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    kind: pa.DataType
    nullable: bool
    measured: bool
    """Holds floats, which must be finite."""
    text: bool


class _Layout:
    """Facts about a table that are looked up once, because its rows are written while a job waits."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.known = tuple((place, item.name) for place, item in enumerate(schema) if not item.nullable)
        """Columns without null values."""
        self.floats = tuple(
            (place, item.name) for place, item in enumerate(schema) if pa.types.is_floating(item.type)
        )
        self.columns = tuple(
            _Column(
                item.name,
                item.type,
                item.nullable,
                pa.types.is_floating(item.type),
                pa.types.is_string(item.type),
            )
            for item in schema
        )
        self.cells: Callable[[Any], tuple[Any, ...]] = attrgetter(*schema.names)
        self.empty: tuple[tuple[Any, ...], ...] = ((),) * len(schema)
        self.last: dict[str, tuple[tuple[Any, ...], pa.Array]] = {}
        """Column -> its last values and their array: a training step is much like the one before."""


_LAYOUTS: Final[Mapping[str, _Layout]] = {name: _Layout(schema) for name, schema in SCHEMAS.items()}


def to_batch(table: str, records: Iterable[Any]) -> pa.RecordBatch:
    """Return the records as one Arrow batch of that table's schema; ValueError if one is unfit."""
    layout = _LAYOUTS[table]
    cells = list(map(layout.cells, records))
    columns = []
    for item, values in zip(layout.columns, zip(*cells, strict=True) if cells else layout.empty, strict=True):
        if not item.nullable and None in values:
            raise ValueError(f"{table}.{item.name} is missing in {values.count(None)} rows")
        if item.measured and not all(value is None or math.isfinite(value) for value in values):
            raise ValueError(f"{table}.{item.name} holds NaN or infinity: unknown is null")
        last_made = layout.last.get(item.name)
        if last_made is not None and last_made[0] == values:
            columns.append(last_made[1])
            continue
        columns.append(made := column(values, item.kind))
        # Few numbers repeat, except columns with all values unknown.
        if (item.text or values[:1] == _UNKNOWN) and len(values) <= _MOST_KEPT:
            layout.last[item.name] = values, made
    return pa.RecordBatch.from_arrays(columns, schema=layout.schema)


def check(table: str, data: pa.RecordBatch | pa.Table) -> None:
    """Raise ValueError unless the data has the table's schema, what must be known, and no NaN.

    Arrow itself does not look for nulls in columns declared to have none.
    """
    if not data.schema.equals(SCHEMAS[table]):
        raise ValueError(f"table {table} does not have the ledger's schema")
    layout = _LAYOUTS[table]
    for place, name in layout.known:
        if missing := data.column(place).null_count:
            raise ValueError(f"{table}.{name} is missing in {missing} rows")
    for place, name in layout.floats:
        values = data.column(place)
        if values.null_count < len(values) and not pc.all(pc.is_finite(values), min_count=0).as_py():
            raise ValueError(f"{table}.{name} holds NaN or infinity: unknown is null")


def check_values(table: str, data: pa.Table) -> None:
    """Raise ValueError for values that no record would hold; for tables from files, which are not trusted."""
    for item, values in zip(data.schema, data.columns, strict=True):
        if len(values) == values.null_count:
            continue
        if pa.types.is_integer(item.type):
            most = _most(item.name)
            if most is not None and (pc.max(values).as_py() > most or pc.min(values).as_py() < -most):
                raise ValueError(f"{table}.{item.name} holds a number beyond {most:.0e}")
        measured = item.name.endswith(("_ns", "_bytes")) and item.name not in INSTANTS
        if (measured or item.name in _COUNTED) and pc.min(values).as_py() < 0:
            raise ValueError(f"{table}.{item.name} holds {pc.min(values).as_py()}")
        # Added up by every analysis: in 64 bits a larger total comes out as another number.
        summed = pa.types.is_integer(item.type) and (measured or item.name in _AMOUNTS)
        if summed and pc.sum(values.cast(pa.float64(), safe=False)).as_py() > _TOTAL:
            raise ValueError(f"{table}.{item.name} adds up to more than {_TOTAL:.0e}")
        words = _CLOSED.get(item.name)
        if words is not None and not set(pc.unique(values).to_pylist()) <= set(words):
            raise ValueError(f"{table}.{item.name} holds none of {', '.join(words)}")
    if table == "steps" and data.num_rows > 1:
        # A rank's step is one row: every join with steps goes by rank and number. Arrow's own grouping
        # imports pandas, which a kept report and a training job do without.
        rows = len(set(zip(data["rank"].to_pylist(), data["step"].to_pylist(), strict=True)))
        if rows < data.num_rows:
            raise ValueError(f"steps holds {data.num_rows - rows:,} rows of steps that it has already")


def _most(name: str) -> int | None:
    """Return the largest number that a column may hold: sums and differences of such still fit 64 bits."""
    if name in INSTANTS:
        return 4 * 10**18
    if name.endswith("_ns"):
        return 10**17
    return 10**18 if name.endswith("_bytes") or name == "step" else None


def check_ranks(table: str, data: pa.RecordBatch | pa.Table, run: Run) -> None:
    """Raise ValueError for rows of a rank that the run does not have, or has not seen.

    Notices may be of a rank that left nothing else.
    """
    if "rank" not in data.schema.names or not data.num_rows:
        return
    column = data.column(data.schema.get_field_index("rank"))
    ranks = pc.unique(column).to_pylist()
    seen = range(run.world_size) if table == "notices" else set(run.ranks_seen)
    strange = [rank for rank in ranks if rank not in seen]
    if strange:
        raise ValueError(f"{table}.rank holds {strange[0]}, which the run has not seen")


def empty_table(table: str) -> pa.Table:
    """Return a table without rows, without importing pandas as Arrow's `empty_table` does."""
    return pa.Table.from_batches([], SCHEMAS[table])


def to_table(table: str, records: Iterable[Any]) -> pa.Table:
    """Return the records as an Arrow table."""
    return pa.Table.from_batches([to_batch(table, records)])


def to_records(table: str, data: pa.Table) -> list[Any]:
    """Return the rows of a table as records, each checked as when first made."""
    record = RECORDS[table]
    return [record(**row) for row in data.to_pylist()]


def completed(table: str, data: pa.Table) -> pa.Table:
    """Return data written by an older version with its missing columns added: unknown, or the value that then
    held.

    Raises KeyError if a column that must be known is missing, an Arrow error if one does not fit.
    """
    schema = SCHEMAS[table]
    for item in schema:
        if item.name in data.schema.names:
            continue
        if item.nullable:
            data = data.append_column(item, pa.nulls(data.num_rows, item.type))
        elif item.name in BEFORE:
            data = data.append_column(item, pa.repeat(BEFORE[item.name], data.num_rows))
    return data.select(schema.names).cast(schema)


def to_frame(data: pa.Table) -> pd.DataFrame:
    """Return the table as a pandas frame in which unknown stays unknown.

    Whole numbers become pandas' nullable Int64, never floats. Nanoseconds since 1970 do not fit a float64,
    and a missing one must not become NaN.
    """
    # An empty one costs as much to make as a short one, and most jobs leave most tables empty.
    return _frame(data) if data.num_rows else _empty_frame(data.schema).copy(deep=False)


@lru_cache(maxsize=64)
def _empty_frame(schema: pa.Schema) -> pd.DataFrame:
    return _frame(schema.empty_table())


def _frame(data: pa.Table) -> pd.DataFrame:
    import pandas as pd

    kinds: dict[pa.DataType, tuple[Any, Any]] = {
        pa.int64(): (pd.arrays.IntegerArray, np.int64),
        pa.float64(): (pd.arrays.FloatingArray, np.float64),
        pa.bool_(): (pd.arrays.BooleanArray, np.bool_),
    }
    # Column by column: Table.to_pandas takes twice as long for a short table of many columns.
    frame: pd.DataFrame = pd.DataFrame(
        {
            item.name: _words(values)
            if pa.types.is_string(item.type)
            else _numbers(values, *kinds[item.type])
            for item, values in zip(data.schema, data.columns, strict=True)
        },
        copy=False,
    )
    return frame


def _numbers(values: pa.ChunkedArray, made: Any, dtype: Any) -> pd.api.extensions.ExtensionArray:
    """Return a column of numbers; pandas' own way from arrow takes twice as long for a short one."""
    unknown = values.null_count
    if unknown == len(values):
        column = made(np.zeros(len(values), dtype), np.ones(len(values), np.bool_))
    elif unknown:
        column = made(values.fill_null(dtype(0).item()).to_numpy().astype(dtype), values.is_null().to_numpy())
    else:
        column = made(values.to_numpy().astype(dtype), np.zeros(len(values), np.bool_))
    numbers: pd.api.extensions.ExtensionArray = column
    return numbers


def _words(values: pa.ChunkedArray) -> pd.api.extensions.ExtensionArray:
    """Return a column of text in which equal words are one object.

    A long run repeats few words: an object a row would be most of the frame's memory.
    """
    import pandas as pd

    if values.null_count == len(values):
        different, places = np.array([pd.NA], dtype=object), np.zeros(len(values), np.int64)
    else:
        encoded = values.dictionary_encode().unify_dictionaries().combine_chunks()
        different = np.array([*encoded.dictionary.to_pylist(), pd.NA], dtype=object)
        places = encoded.indices.fill_null(len(different) - 1).to_numpy()
    words: pd.api.extensions.ExtensionArray = pd.arrays.StringArray(different[places])
    return words
