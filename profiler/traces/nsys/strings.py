"""Texts of a database that rows name by number: only those that rows use are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.file.event import mended
from shardtoll.profiler.traces.file.interned import LONGEST_NAME, NAMES_LIMIT_BYTES
from shardtoll.profiler.traces.nsys.database import Database

TABLE: Final = "StringIds"


def texts_of(database: Database, used: Sequence[tuple[str, str]], where: str) -> dict[int, str]:
    """Return the texts that the (table, column) pairs name. Raises TraceError past the limit on names."""
    if not database.has(TABLE, "id", "value"):
        return {}
    asked = [f'SELECT "{column}" FROM "{table}"' for table, column in used if database.has(table, column)]
    if not asked:
        return {}
    texts: dict[int, str] = {}
    held = 0
    query = f'SELECT id, value FROM "{TABLE}" WHERE id IN ({" UNION ".join(asked)})'
    for chunk in database.select(query):
        for number, value in chunk:
            if isinstance(number, int) and isinstance(value, str):
                texts[number] = mended(value[:LONGEST_NAME])
                held += len(texts[number]) + 64
        if held > NAMES_LIMIT_BYTES:
            raise TraceError(
                f"{where} holds more than {NAMES_LIMIT_BYTES >> 20} MiB of different names",
                "this is no trace of a training job; leave it out",
            )
    return texts
