"""Functions of other packages that the ledger calls by name, typed, and imported when they are first called.

The ledger imports none of its users, and the profiler must not import the analyzers. Yet `session.report()`
runs the analyses and `report.show()` prints. A constant in `report` names the function and its type.
The function itself stands under `@CONSTANT.entry`, by which mypy checks its signature.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

_Entry = TypeVar("_Entry", bound=Callable[..., object])


# No slots: a generic class with them cannot be made in Python 3.11.
@dataclass(frozen=True)
class EntryPoint(Generic[_Entry]):
    """A function by its name, as `package.module:function`."""

    name: str

    def load(self) -> _Entry:
        """Return the function; its module is imported now."""
        function: _Entry = pkgutil.resolve_name(self.name)
        return function

    def entry(self, function: _Entry) -> _Entry:
        """Mark the function that is meant; ValueError if the name is another one's."""
        if self.name != f"{function.__module__}:{function.__qualname__}":
            raise ValueError(f"{function.__module__}:{function.__qualname__} is not {self.name}")
        return function
