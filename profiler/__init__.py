"""Everything that makes records. `audit` is what a user imports; it needs torch and pyarrow only.

Reading trace files needs no torch, so what captures inside a job is imported when it is first used.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shardtoll.profiler.live.gradients import check_gradients
    from shardtoll.profiler.live.session import Session, audit

__all__ = ["Session", "audit", "check_gradients"]

_FROM: Final = {
    "Session": "shardtoll.profiler.live.session:Session",
    "audit": "shardtoll.profiler.live.session:audit",
    "check_gradients": "shardtoll.profiler.live.gradients:check_gradients",
}


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return pkgutil.resolve_name(_FROM[name])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
