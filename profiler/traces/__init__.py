"""Readers of trace files: torch profiler (Kineto) traces become the same ledger as live runs. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardtoll.profiler.traces.job import Job, read_traces

__all__ = ["Job", "read_traces"]


def __getattr__(name: str) -> Any:
    # Found when used: the reader of one file needs none of it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shardtoll.profiler.traces import job

    return getattr(job, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
