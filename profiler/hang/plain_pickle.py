"""Reads pickles of plain values: containers, numbers, strings. Anything else is refused, and nothing is run.

This is no subclass of Python's unpickler. It knows the operations that build such values and no other. A file
cannot name a class, a function or a module. The number of operations bounds the size of its result.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from typing import Any, Final

MOST_OPERATIONS: Final = 8_000_000
_MOST_DIGITS: Final = 400
_MARK: Final = object()
_VALUES: Final = frozenset(
    (
        *(
            "BINUNICODE",
            "SHORT_BINUNICODE",
            "BINUNICODE8",
            "UNICODE",
            "STRING",
            "BINSTRING",
            "SHORT_BINSTRING",
        ),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1"),
        *("LONG4", "BINFLOAT", "FLOAT"),
    )
)
"""Operations whose argument is the value."""
_CONSTANTS: Final[dict[str, Any]] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}

_KEYS: Final = frozenset((str, bytes, int, float, bool, type(None)))


class _Builder:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def to_mark(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError("a pickle without its mark")
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def make(self, name: str, argument: Any) -> bool:
        """Do an operation that makes a value; False if it is none."""
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            self.stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            items = tuple(self.stack[-count:])
            if len(items) < count:
                raise ValueError("a pickle of too few values")
            del self.stack[-count:]
            self.stack.append(items)
        elif name in ("TUPLE", "LIST"):
            items_to_mark = self.to_mark()
            self.stack.append(tuple(items_to_mark) if name == "TUPLE" else items_to_mark)
        elif name == "DICT":
            self.stack.append(_pairs(self.to_mark()))
        else:
            return False
        return True

    def fill(self, name: str) -> bool:
        """Do an operation that puts values into a container; False if it is none."""
        if name == "APPEND":
            value = self.stack.pop()
            self._top(list).append(value)
        elif name == "APPENDS":
            items = self.to_mark()
            self._top(list).extend(items)
        elif name == "SETITEM":
            value, key = self.stack.pop(), self.stack.pop()
            self._top(dict).update(_pairs([key, value]))
        elif name == "SETITEMS":
            pairs = self.to_mark()
            self._top(dict).update(_pairs(pairs))
        else:
            return False
        return True

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise ValueError("a pickle that fills what is no container")
        return self.stack[-1]

    def remember(self, name: str, argument: Any) -> bool:
        """Do an operation of the memo or the stack; False if it is none."""
        if name == "MARK":
            self.stack.append(_MARK)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[argument] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self.stack.append(self.memo[argument])
        elif name == "POP":
            self.stack.pop()
        elif name == "POP_MARK":
            self.to_mark()
        else:
            return name in ("PROTO", "FRAME")
        return True


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """Return keys and values that alternate as a dict."""
    keys = items[::2]
    # The hash of a tuple of tuples that the memo shares takes 2 to the power of its depth.
    if not all(type(key) in _KEYS for key in keys):
        raise ValueError("a pickle with a key that is neither text nor number")
    return dict(zip(keys, items[1::2], strict=True))


def load_plain(data: bytes, most_operations: int = MOST_OPERATIONS) -> Any:
    """Return the value of a pickle; ValueError if it holds anything but plain values, or too much."""
    builder, count = _Builder(), 0
    steps: Callable[..., Any] = pickletools.genops
    try:
        for operation, argument, _ in steps(io.BytesIO(data)):
            count += 1
            if count > most_operations:
                raise ValueError(f"a pickle of more than {most_operations:,} operations")
            name = operation.name
            if name == "STOP":
                (value,) = builder.stack
                return value
            if type(argument) is int and argument.bit_length() > _MOST_DIGITS:
                raise ValueError("a pickle with a number too large")
            if not (builder.make(name, argument) or builder.fill(name) or builder.remember(name, argument)):
                raise ValueError(f"a pickle with more than plain values: {name}")
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"a damaged pickle ({error})") from error
    raise ValueError("a pickle without an end")
