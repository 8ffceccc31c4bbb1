"""Content of NCCL's NVTX ranges: numbers with names, as binary data with a schema, or as JSON.

NCCL since 2.16 gives message size, root and peer; since 2.23 the communicator too. Newer exports of
Nsight Systems hold the binary data and describe its layout in two tables; older ones hold JSON.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from typing import Any, Final

from shardtoll.profiler.traces.nsys.database import Database

Payload = dict[str, int]
"""Name of an entry -> its value."""

_HEADER: Final = struct.Struct("<QQQQ")
"""Domain, schema, bytes of the payload, and where the next payload begins."""
_FORMATS: Final = {
    1: "b",
    2: "B",
    3: "h",
    4: "H",
    5: "i",
    6: "I",
    7: "q",
    8: "Q",
    9: "q",
    10: "Q",
    11: "b",
    12: "B",
    13: "h",
    14: "H",
    15: "i",
    16: "I",
    17: "q",
    18: "Q",
    22: "Q",
    23: "Q",
}
"""Whole numbers among NVTX_PAYLOAD_ENTRY_TYPE_*; a C int is 5, uint64_t 18, size_t 22."""
_ID_BITS: Final = 0xFFFFFFFF
"""Exports keep no more of a schema's number in the data."""
_MOST_ENTRIES: Final = 100_000
_LONGEST_JSON: Final = 1 << 16
_DEEPEST: Final = 4

Entry = tuple[str, int, str]
"""Name, offset and format of one number."""


class Schemas:
    """The layouts that a file describes."""

    def __init__(self, database: Database) -> None:
        self._entries: defaultdict[tuple[int, int], list[Entry]] = defaultdict(list)
        columns = ("domainId", "schemaId", "name", "type", "offset")
        rows = database.rows("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns, most=_MOST_ENTRIES)
        for domain, schema, name, kind, offset in (row for chunk in rows for row in chunk):
            form = _FORMATS.get(kind) if isinstance(kind, int) else None
            place = 0 if offset is None else offset
            if not isinstance(place, int) or place < 0 or form is None:
                continue
            if isinstance(name, str) and isinstance(schema, int):
                key = (domain & _ID_BITS if isinstance(domain, int) else 0, schema & _ID_BITS)
                self._entries[key].append((name, place, form))

    def decoded(self, data: bytes) -> Payload:
        """Return the numbers of the payloads that follow each other; empty if none is described."""
        numbers: Payload = {}
        begin = 0
        while begin + _HEADER.size <= len(data):
            domain, schema, size, step = _HEADER.unpack_from(data, begin)
            start, end = begin + _HEADER.size, begin + _HEADER.size + size
            if end > len(data):
                break
            for name, offset, form in self._entries.get((domain & _ID_BITS, schema & _ID_BITS), ()):
                if start + offset + struct.calcsize(f"<{form}") <= end:
                    numbers.setdefault(name, struct.unpack_from(f"<{form}", data, start + offset)[0])
            # The header's last number is its own size in some versions, the whole size in others.
            begin = max(end, begin + step)
        return numbers


def from_json(text: str) -> Payload:
    """Return the whole numbers with names in a JSON text, at any depth; empty if it is none."""
    if len(text) > _LONGEST_JSON:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    numbers: Payload = {}
    _collect(value, numbers, _DEEPEST)
    return numbers


def _collect(value: Any, numbers: Payload, deeper: int) -> None:
    if deeper == 0 or not isinstance(value, dict | list):
        return
    pairs = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for name, each in pairs:
        number = _number(each)
        if isinstance(name, str) and number is not None:
            numbers.setdefault(name, number)
        else:
            _collect(each, numbers, deeper - 1)


def _number(value: Any) -> int | None:
    """Return a whole number, also one written as text; None for anything else."""
    if isinstance(value, str):
        text = value.strip()
        base = 16 if text[:2].lower() == "0x" else 10
        try:
            return int(text, base) if len(text) <= 20 and text.isascii() else None
        except ValueError:
            return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
