"""Whether a record made from somebody's file holds what its annotations say.

Dataclasses do not look at types; a report from a file is untrusted, and a number where a name should be
must be told when the file is read, not when a renderer trips over it.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


def typed(record: _T) -> _T:
    """Return the dataclass unchanged; TypeError, with the field's name, where a value does not fit."""
    kind = type(record)
    hints = typing.get_type_hints(kind)
    for item in fields(record):  # type: ignore[arg-type]
        value = getattr(record, item.name)
        if not _fits(value, hints[item.name]):
            raise TypeError(f"{kind.__name__}.{item.name} cannot be {type(value).__name__} here")
    return record


def require_finite(name: str, *values: float | None) -> None:
    """Raise ValueError where a number is NaN or infinite."""
    for value in values:
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} is {value}: unknown is None")


def _fits(value: Any, annotation: Any) -> bool:
    origin, arms = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, arm) for arm in arms)
    if origin is typing.Literal:
        return value in arms
    if origin is tuple:
        if arms[0] is int and isinstance(value, tuple):
            # The ranks of a group, by the thousand and in the file of every rank.
            return set(map(type, value)) <= {int} and (
                not value or -(2**63) <= min(value) <= max(value) < 2**63
            )
        return isinstance(value, tuple) and all(_fits(item, arms[0]) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(key, arms[0]) and _fits(item, arms[1]) for key, item in value.items()
        )
    if annotation is float:
        # JSON writes 1.0 as it likes; a bool is no number.
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if is_dataclass(annotation):
        return isinstance(value, typing.cast(type, annotation)) and typed(value) is value
    return isinstance(value, annotation)
