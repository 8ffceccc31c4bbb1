"""Attributes and variables that a dry run replaces, each put back as it stood."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

_MISSING: Final = object()


class Replaced:
    """Replaces attributes; `restore` puts back all of them, the last one first."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []
        self._variables: list[tuple[str, str | None]] = []
        self._afterwards: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, value: Any) -> Any:
        """Have `owner.name` be the value; returns its value before, None if there was nothing."""
        # As it stands in the class: what getattr makes of it is not always the same.
        raw = vars(owner).get(name, _MISSING)
        before = getattr(owner, name, None)
        self._undo.append((owner, name, raw))
        setattr(owner, name, value)
        return before

    def put_where_it_is(self, owner: Any, name: str, value: Any) -> Any:
        """Do so only if this torch has it; returns its value before, None if there is nothing."""
        return self.put(owner, name, value) if hasattr(owner, name) else None

    def environment(self, variables: Mapping[str, str]) -> None:
        """Set variables of the environment."""
        for name, value in variables.items():
            self._variables.append((name, os.environ.get(name)))
            os.environ[name] = value

    def afterwards(self, call: Callable[[], None]) -> None:
        """Have `restore` call it too, which undoes what no attribute holds."""
        self._afterwards.append(call)

    def restore(self) -> None:
        """Put everything back; once more does no harm."""
        while self._undo:
            owner, name, raw = self._undo.pop()
            if raw is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, raw)
        while self._afterwards:
            self._afterwards.pop()()
        while self._variables:
            name, before = self._variables.pop()
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before
