"""Puts a function of ours around one that a module or class holds, until it is undone."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any


def replace(
    owners: Sequence[str], name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[], None]:
    """Put `around(original)` in place of `name` in every owner that holds the first one's original.

    Owners are `module` or `module:Class`. Returns what puts the originals back, wherever nobody else
    has replaced ours in the meantime.
    """
    holders = [pkgutil.resolve_name(owner) for owner in owners]
    original = getattr(holders[0], name)
    ours = functools.wraps(original)(around(original))
    held = [holder for holder in holders if getattr(holder, name, None) is original]
    for holder in held:
        setattr(holder, name, ours)

    def undo() -> None:
        for holder in held:
            if getattr(holder, name, None) is ours:
                setattr(holder, name, original)

    return undo
