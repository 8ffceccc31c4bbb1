"""The query for NVTX ranges of any version, and where their texts and payloads are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from shardtoll.profiler.traces.file.event import mended
from shardtoll.profiler.traces.file.interned import LONGEST_NAME
from shardtoll.profiler.traces.nsys.payload import Payload, Schemas, from_json
from shardtoll.profiler.traces.nsys.state import Read
from shardtoll.profiler.traces.nsys.strings import TABLE as STRINGS
from shardtoll.profiler.traces.nsys.strings import texts_of

RANGES: Final = "NVTX_EVENTS"

Text = Callable[[Any, Any, Any], str | None]


def texts_by_number(read: Read) -> Text:
    """Return what gives a range's text: its own, else that of its number.

    If a number may stand for several texts, all of them are read before.
    """
    database = read.database
    loaded: dict[int, str] = {}
    if database.keys.get(STRINGS) != "id":
        loaded = texts_of(database, [(RANGES, "textId"), (RANGES, "jsonTextId")], read.where)

    def text(direct: Any, named: Any, number: Any) -> str | None:
        for value in (direct, named, loaded.get(number) if number.__class__ is int else None):
            if isinstance(value, str) and value:
                return mended(value if len(value) <= LONGEST_NAME else value[:LONGEST_NAME])
        return None

    return text


def query(read: Read) -> str:
    """Return the query for all ranges with their texts."""
    database = read.database
    there = database.tables[RANGES]

    def column(name: str) -> str:
        return f'n."{name}"' if name in there else "NULL"

    joined = database.has(STRINGS, "value") and database.keys.get(STRINGS) == "id"
    shown, json_shown, join = "NULL", column("jsonTextId"), ""
    if joined and "textId" in there:
        shown, join = "s.value", f' LEFT JOIN "{STRINGS}" AS s ON s.id = n."textId"'
    if joined and "jsonTextId" in there:
        json_shown = "j.value"
        join += f' LEFT JOIN "{STRINGS}" AS j ON j.id = n."jsonTextId"'
    plain = [column(name) for name in ("start", "end", "eventType", "globalTid", "text")]
    binary = "CAST(n.binaryData AS BLOB)" if "binaryData" in there else "NULL"
    texts = f"{', '.join(plain)}, {shown}, {column('textId')}, {binary}, {column('jsonText')}, {json_shown}"
    return f'SELECT {texts} FROM "{RANGES}" AS n{join}'


def payload_of(schemas: Schemas, binary: Any, text: str | None) -> Payload:
    """Return what an NCCL range carries, from whichever column this version fills."""
    if isinstance(binary, bytes) and (said := schemas.decoded(binary)):
        return said
    return {} if text is None else from_json(text)
