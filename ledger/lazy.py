"""Exports of a room, imported when somebody first reads them (PEP 562): a command loads only what it uses.

A room's `__init__.py` imports its exports for type checkers alone, and hands the same names to `exports`:

    if TYPE_CHECKING:
        from shardtoll.ledger.disk.run_reader import read_run as read_run
        from shardtoll.ledger.disk.run_writer import RankWriter as RankWriter
    else:
        __getattr__, __dir__ = exports(
            __name__, {"disk.run_reader": "read_run", "disk.run_writer": "RankWriter"}
        )

`tests/test_rooms.py` holds the two lists against each other. This file imports none of ours, so that every
room may use it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def exports(room: str, names: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a room that exports these names.

    `names` is a module's name inside the room -> what the room exports of it, with spaces between. No name
    may equal a module's in the room: importing that module would replace the export.
    """
    homes = {name: f"{room}.{module}" for module, several in names.items() for name in several.split()}

    def read(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        # Not kept in the room: whoever replaces the module's own, as tests do, replaces the export.
        value: object = getattr(import_module(homes[name]), name)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[room]), *homes})

    return read, listed
