"""The fields that are read of an event, in three ways: fast, with exact times, and forgiving.

Only these fields are decoded; everything else in an event is skipped by the decoder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

NUMBER_LIMIT: Final = 2**62
"""No number of an event that is kept is as large as this; times are held to it in nanoseconds."""

Mixed = int | float | str | None
"""Types of numbers and ids in files of all ages."""

ABSENT: Final = msgspec.Raw()
"""A list that an event's args do not have."""


class Args(msgspec.Struct, gc=False):
    """The args of an event that say something of its device work or its collective.

    Lists stay as they are written until somebody asks; if absent they are empty.
    """

    external: Mixed = msgspec.field(default=None, name="External id")
    old_external: Mixed = msgspec.field(default=None, name="external id")
    device: Mixed = None
    stream: Mixed = None
    correlation: Mixed = None
    bytes: Mixed = None
    size: Mixed = None
    dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Strides")
    concrete: msgspec.Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    collective: Mixed = msgspec.field(default=None, name="Collective name")
    in_elements: Mixed = msgspec.field(default=None, name="In msg nelems")
    out_elements: Mixed = msgspec.field(default=None, name="Out msg nelems")
    group_size: Mixed = msgspec.field(default=None, name="Group size")
    dtype: Mixed = None
    in_splits: msgspec.Raw = msgspec.field(default=ABSENT, name="In split size")
    out_splits: msgspec.Raw = msgspec.field(default=ABSENT, name="Out split size")
    group: Mixed = msgspec.field(default=None, name="Process Group Name")
    group_description: Mixed = msgspec.field(default=None, name="Process Group Description")
    ranks: msgspec.Raw = msgspec.field(default=ABSENT, name="Process Group Ranks")
    rank_start: Mixed = msgspec.field(default=None, name="Global rank start")
    rank_stride: Mixed = msgspec.field(default=None, name="Global rank stride")
    seq: Mixed = msgspec.field(default=None, name="Seq")
    is_async: Mixed = msgspec.field(default=None, name="Is asynchronized op")
    source_rank: Mixed = msgspec.field(default=None, name="Src Rank")
    target_rank: Mixed = msgspec.field(default=None, name="Dst Rank")
    root: Mixed = msgspec.field(default=None, name="Root Rank")
    rank: Mixed = msgspec.field(default=None, name="Rank")
    wait_stream: Mixed = msgspec.field(default=None, name="wait_on_stream")
    wait_event: Mixed = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


class Event(msgspec.Struct, gc=False):
    """One event as the file has it; times in microseconds."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: Mixed = None
    tid: Mixed = None
    ts: int | float | None = None
    dur: int | float | None = None
    args: Args | None = None
    id: Mixed = None


class ExactEvent(msgspec.Struct, gc=False):
    """An event whose times keep every digit, for files with fractions at or above 2^43 microseconds."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: Mixed = None
    tid: Mixed = None
    ts: Decimal | None = None
    dur: Decimal | None = None
    args: Args | None = None
    id: Mixed = None


decode_fast: Final[Callable[[bytes], list[Event]]] = msgspec.json.Decoder(list[Event]).decode
decode_exact: Final[Callable[[bytes], list[ExactEvent]]] = msgspec.json.Decoder(list[ExactEvent]).decode


_MOST_DIGITS: Final = 400
"""Numbers written with more are damage; reading them would cost time without limit."""


def _whole(text: str) -> int | None:
    return int(text) if len(text) <= _MOST_DIGITS else None


def _fraction(text: str) -> Decimal | None:
    if len(text) > _MOST_DIGITS:
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() and -_MOST_DIGITS < number.adjusted() < 30 else None


def _constant(_text: str) -> None:
    """NaN and the infinities are no numbers of a trace."""
    return


MENDED: Final = ("utf-8", "surrogateescape")
"""How bytes become text for the slow decoder, and back, without loss."""

slow_decoder: Final = json.JSONDecoder(parse_float=_fraction, parse_int=_whole, parse_constant=_constant)
"""Takes what the fast decoders refuse. Its objects go through `forgive`."""

_RAW: Final = frozenset(("dims", "types", "strides", "concrete", "in_splits", "out_splits", "ranks"))
_ARGS: Final = tuple(
    (field.name, field.encode_name, field.name in _RAW) for field in msgspec.structs.fields(Args)
)


def forgive(value: Any) -> ExactEvent | None:
    """Return an event from whatever JSON value stands in its place; None if it is none.

    A field of the wrong type is as good as absent, except for times: then the event is bad.
    """
    if not isinstance(value, dict):
        return None
    event = ExactEvent(
        ph=_text(value.get("ph")),
        cat=_text(value.get("cat")),
        name=_text(value.get("name")),
        pid=_mixed(value.get("pid")),
        tid=_mixed(value.get("tid")),
        ts=_decimal(value.get("ts")),
        dur=_decimal(value.get("dur")),
        id=_mixed(value.get("id")),
    )
    args = value.get("args")
    if isinstance(args, dict):
        event.args = Args(**{name: _arg(args[key], raw) for name, key, raw in _ARGS if key in args})
    return event


def _arg(value: Any, raw: bool) -> Any:
    if not raw:
        return _mixed(value)
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return ABSENT


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _mixed(value: Any) -> Mixed:
    if isinstance(value, Decimal):
        return float(value) if value.is_finite() and abs(value) < NUMBER_LIMIT else None
    return value if isinstance(value, int | float | str) else None


def _decimal(value: Any) -> Decimal | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Decimal(value) if abs(value) < NUMBER_LIMIT else None
    return value if isinstance(value, Decimal) else None


def whole(value: Mixed, missing: int = -1) -> int:
    """Return an id or count as a whole number, `missing` if it is none or absurd."""
    if value.__class__ is int:
        number: Any = value
    elif isinstance(value, str):
        text = value.strip()
        if not (text.isascii() and text.lstrip("-").isdigit() and len(text) <= 20):
            return missing
        number = int(text) if text.count("-") <= 1 else missing
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    else:
        return missing
    return number if -NUMBER_LIMIT < number < NUMBER_LIMIT else missing


def mended(text: str) -> str:
    """Return text that can be written as UTF-8: what cannot becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def unfinished(error: Exception, text: str) -> bool:
    """Whether a decoder failed only because the text ends."""
    return isinstance(error, json.JSONDecodeError) and (
        error.pos >= len(text) - 8 or error.msg.startswith("Unterminated string")
    )
