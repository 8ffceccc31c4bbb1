"""A table's rows as JSON text, made column by column: a long run has millions of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.records.columns import column, literal

ROWS: Final = 1 << 16
"""Rows made into text at a time."""


def rows_json(table: pa.Table) -> Iterator[str]:
    """Yield the text of a JSON list with an object a row, piece by piece; unknown is null.

    The table holds no NaN or infinity, which JSON has no words for: `tables.check` sees to that.
    """
    yield "["
    before = ""
    for batch in table.to_batches(max_chunksize=ROWS):
        if batch.num_rows:
            yield f"{before}{','.join(_objects(batch))}"
            before = ","
    yield "]"


def _objects(batch: pa.RecordBatch) -> list[str]:
    pieces: list[pa.Scalar | pa.Array] = []
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        pieces += [literal(f"{',' if pieces else '{'}{json.dumps(name)}:"), _texts(values)]
    joined: list[str] = pc.binary_join_element_wise(*pieces, literal("}"), literal("")).to_pylist()
    return joined


def _texts(values: pa.Array) -> pa.Array:
    """Return each value as JSON."""
    if pa.types.is_string(values.type):
        encoded = values.dictionary_encode()
        words = column([json.dumps(word) for word in encoded.dictionary.to_pylist()], pa.string())
        texts = words.take(encoded.indices)
    elif pa.types.is_floating(values.type):
        # Arrow may write other digits than Python does.
        texts = column([None if value is None else repr(value) for value in values.to_pylist()], pa.string())
    else:
        texts = values.cast(pa.string())
    return pc.fill_null(texts, literal("null"))
