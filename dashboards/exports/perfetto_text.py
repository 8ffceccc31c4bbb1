"""Trace events as text, made column by column: a long run has millions of them.

The format is Chrome's trace events, which ui.perfetto.dev, chrome://tracing and speedscope open:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards.facts.row_codes import Ints
from shardtoll.dashboards.words.text import clip

Arg: TypeAlias = tuple[str, Any]
"""Name of an argument and its JSON texts, an Arrow array with null for unknown."""

LONGEST: Final = 300
"""Characters of a name that are written; a long run says each of its names many times."""


def quoted(value: object, most: int = LONGEST) -> str:
    """Return text as a JSON string in ASCII, without characters that have no glyph."""
    return json.dumps(clip(value, most))


def quoted_column(column: Any, most: int = LONGEST) -> pa.Array:
    """Return each text of an Arrow array or column as a JSON string; null stays null."""
    encoded = _one(column).dictionary_encode()
    words = pa.array([quoted(word, most) for word in encoded.dictionary.to_pylist()], pa.string())
    return words.take(encoded.indices)


def quoted_words(column: pa.ChunkedArray, most: int = LONGEST) -> pa.Array:
    """Return texts as codes in a dictionary of JSON strings, in one piece: rows of it are taken often."""
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = pa.concat_arrays(encoded.chunks)
    words = pa.array([quoted(word, most) for word in encoded.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(encoded.indices, words)


def spelled(column: Any) -> pa.Array:
    """Return the JSON strings of such codes; null stays null."""
    codes = _one(column)
    return codes.dictionary.take(codes.indices)


def number_column(column: Any) -> pa.Array:
    """Return each number or truth value as JSON; null stays null. Floats are finite (`tables.check`)."""
    values = _one(column)
    if pa.types.is_floating(values.type):
        return pa.array([None if value is None else repr(value) for value in values.to_pylist()], pa.string())
    return values.cast(pa.string())


def _one(column: Any) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def microseconds(ns: Ints) -> pa.Array:
    """Return times in ns as decimals of µs, which the format counts in.

    Perfetto's reader takes a double times 1000 and drops the decimals. 1.001 can become 1000 ns, and slices
    that touch overlap. In such a case a tenth of a ns is added.
    """
    whole = pa.array(ns // 1000).cast(pa.string())
    rest = pc.utf8_lpad(pa.array(ns % 1000).cast(pa.string()), 3, "0")
    read = np.floor(ns / 1000.0 * 1000.0).astype(np.int64)
    nudge = pc.if_else(pa.array(read != ns), "1", "")
    return pc.binary_join_element_wise(whole, ".", rest, nudge, "")


def slices(
    pid: int,
    tid: Ints,
    ts: pa.Array,
    dur: pa.Array,
    name: Any,
    category: str,
    args: Sequence[Arg],
    more: str = "",
) -> pa.Array:
    """Return complete events (`X`); `ts` and `dur` from `microseconds`, `name` JSON text or texts.

    `more` is JSON of arguments that all of them share, as `"rank":3`; it may not be empty if `args` are.
    """
    pieces: list[Any] = [f'{{"ph":"X","pid":{pid},"tid":', pa.array(tid).cast(pa.string())]
    pieces += [',"ts":', ts, ',"dur":', dur, f',"cat":"{category}","name":', name, f',"args":{{{more}']
    pieces += [_optional(key, texts) for key, texts in args]
    return pc.binary_join_element_wise(*pieces, "}}", "")


def _optional(key: str, texts: pa.Array) -> pa.Array:
    """Return the argument after a comma; empty if it is unknown."""
    return pc.fill_null(pc.binary_join_element_wise(f",{json.dumps(key)}:", texts, ""), "")


def flows(pid: int, tid: Ints, ts: pa.Array, phase: pa.Array, number: Ints) -> pa.Array:
    """Return a flow event for each row whose `phase` is `s`, `t` or `f`, after a comma; else nothing.

    It stands right behind its slice and at the same time: Perfetto binds it to the slice of the track that
    was opened last.
    """
    pieces: list[Any] = [',\n{"ph":"', phase, '","bp":"e","cat":"collective","name":"same collective","id":']
    pieces += [pa.array(number).cast(pa.string()), f',"pid":{pid},"tid":', pa.array(tid).cast(pa.string())]
    return pc.fill_null(pc.binary_join_element_wise(*pieces, ',"ts":', ts, "}", ""), "")


def metadata(name: str, pid: int, tid: int | None, value: str | int) -> str:
    """Return what names or sorts a process or a track."""
    key = "sort_index" if name.endswith("sort_index") else "name"
    of = "" if tid is None else f',"tid":{tid}'
    text = quoted(value, 120) if isinstance(value, str) else str(value)
    return f'{{"ph":"M","ts":0,"pid":{pid}{of},"name":"{name}","args":{{"{key}":{text}}}}}'
