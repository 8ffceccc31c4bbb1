"""Which thread trains: the one that opened the session, and those on which autograd runs its backward.

Autograd runs an accelerator's backward on threads of its own, with the state that the thread had that asked
for it. A mark left in that state tells such a backward from one that a thread of the user's own runs.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any, Final

import torch

_KEY: Final = "shardtoll: the thread that trains"


class TrainingThread:
    """Knows the thread that it is made on."""

    def __init__(self) -> None:
        self.ident: Final = get_ident()
        self._mark = object()
        kept: Any = torch._C
        self._marks = all(hasattr(kept, name) for name in ("_is_key_in_tls", "_get_obj_in_tls"))
        self._marks = self._marks and hasattr(kept, "_stash_obj_in_tls")

    def mark(self) -> None:
        """Have backwards known that this thread, the training's, begins from now on."""
        if self._marks:
            _keep(self._mark)

    def unmark(self) -> None:
        """Take the mark back."""
        if self._marks:
            _keep(None)

    def is_here(self) -> bool:
        """Whether the code that asks runs on the training's thread, or in a backward that one has begun."""
        if get_ident() == self.ident:
            return True
        kept: Any = torch._C
        if kept._current_graph_task_id() == -1:
            return False
        if not self._marks:
            # Whose backward it is cannot be told.
            return True
        return kept._is_key_in_tls(_KEY) and kept._get_obj_in_tls(_KEY) is self._mark


def _keep(mark: object) -> None:
    keep: Any = torch._C._stash_obj_in_tls
    keep(_KEY, mark)
