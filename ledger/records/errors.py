"""The few exceptions that reach a user: what is wrong, where, and what to do next."""

from __future__ import annotations

from typing import Final

from shardtoll.ledger.records.one_line import shortened

_LONGEST: Final = 288
"""Characters of an error's text: with `shardtoll: ` before it a line of at most 300."""
_HINT_LEAST: Final = 110
"""Characters of the line that a hint may take, however long the message is."""
_BETWEEN: Final = ": "


class ShardtollError(Exception):
    """A mistake a user can fix.

    `message` says what and where in one line, `hint` what to do next. The command line prints
    both as one line and exits with `exit_code`; no traceback is shown.

    Both often hold names and values from files. They are cleaned and shortened here: the line has at most
    300 characters and none without a glyph, whatever a file holds.
    """

    exit_code = 2

    def __init__(self, message: str, hint: str) -> None:
        room = _LONGEST - len(_BETWEEN)
        self.message = shortened(message, room - min(len(hint), _HINT_LEAST))
        self.hint = shortened(hint, room - len(self.message))
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}{_BETWEEN}{self.hint}"


class UsageError(ShardtollError):
    """An argument cannot be used as given."""


class RunFolderError(ShardtollError):
    """A run folder, or a file in it, cannot be read."""


class TraceError(ShardtollError):
    """A trace file, or a place where traces should be, cannot be read."""


class SchemaError(ShardtollError):
    """A file has a schema that this version does not read."""


class FabricError(ShardtollError):
    """A fabric is unknown, or its file is malformed."""


class CheckFailed(ShardtollError):
    """A budget or check is over its limit; nothing is wrong with the input."""

    exit_code = 1


class Interrupted(ShardtollError):
    """A signal ended a command, as Ctrl-C sends one; its exit code is that of shells."""

    def __init__(self, message: str, hint: str, number: int) -> None:
        super().__init__(message, hint)
        self.exit_code = 128 + number


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its type's name if it says nothing."""
    return shortened(next(iter(str(error).splitlines()), "") or type(error).__name__, _LONGEST)


def reason(error: BaseException) -> str:
    """Return an error's kind and the first line of its text, if it has any."""
    text = next(iter(str(error).splitlines()), "")
    return shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__, _LONGEST)
