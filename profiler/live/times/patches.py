"""Methods of torch's that are replaced while a session is open, and put back as they stood."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, Final

_INHERITED: Final = object()


class Patches:
    """Attributes that were replaced; `patched` below sees to it that they are put back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def around(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace `owner.name` by the result of `make`; nothing is done if this torch has no such thing."""
        original = None if owner is None else getattr(owner, name, None)
        if original is None:
            return
        self._put(owner, name, functools.wraps(original)(make(original)))

    def everywhere(self, owners: Sequence[str], name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Do so once for all owners, `module` or `module:Class`, that hold what the first one holds."""
        holders = [pkgutil.resolve_name(owner) for owner in owners]
        original = getattr(holders[0], name)
        wrapper = functools.wraps(original)(make(original))
        for holder in holders:
            if getattr(holder, name, None) is original:
                self._put(holder, name, wrapper)

    def _put(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        # As it stands in the class: what getattr makes of it is not always the same.
        raw = vars(owner).get(name, _INHERITED)
        self._replaced.append((owner, name, raw, wrapper))
        setattr(owner, name, wrapper)

    def restore(self) -> None:
        """Put back the originals, except where somebody else has replaced ours since; a second call does no
        harm."""
        while self._replaced:
            owner, name, raw, wrapper = self._replaced[-1]
            if vars(owner).get(name) is wrapper:
                if raw is _INHERITED:
                    delattr(owner, name)
                else:
                    setattr(owner, name, raw)
            self._replaced.pop()


def patched(install: Callable[[Patches], object]) -> Callable[[], None]:
    """Have `install` replace what it wants; returns what puts all of it back.

    An interrupt of the user's may come between any two lines of it: nobody else would know what to undo. (A
    context manager would not do: between its body and its exit Python itself has no guard.)
    """
    patches = Patches()
    try:
        install(patches)
        return patches.restore
    except BaseException:
        patches.restore()
        raise
