"""Which calls are of one sort: where ranks, or steps, are compared with each other."""

from __future__ import annotations

from typing import Final

from shardtoll.ledger.records.flight import FlightCall

OTHER_SIDE: Final = {"send": "recv", "recv": "send"}

Sort = tuple[str, str | None, str | None]
Sized = tuple[Sort, int | None]


def sort_of(call: FlightCall) -> Sort:
    """Tell collectives of a group apart, by operation, line and module.

    One line of a loop calls many modules, as the layers of a model.
    """
    return call.op, call.source, call.module


def sized(call: FlightCall) -> Sized:
    """Tell calls of one sort apart by their size too."""
    return sort_of(call), call.message_bytes
