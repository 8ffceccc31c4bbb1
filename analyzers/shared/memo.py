"""Intermediate results that several analyses need, made once a report."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar, cast

Key = Hashable
Memo = dict[Key, Any]
"""Function, or function and what else it was given -> what it made of the context that holds this."""


class HasMemo(Protocol):
    """A context: the one argument of a function that is run once."""

    @property
    def memo(self) -> Memo:
        """Values made so far, by key."""


C = TypeVar("C", bound=HasMemo)
R = TypeVar("R")


def once(function: Callable[[C], R]) -> Callable[[C], R]:
    """Decorate a function of the context alone: a second call with the same context returns the same object.

    So no caller may change what it gets.
    """

    @functools.wraps(function)
    def remembered(context: C) -> R:
        if function not in context.memo:
            context.memo[function] = function(context)
        return cast(R, context.memo[function])

    return remembered
