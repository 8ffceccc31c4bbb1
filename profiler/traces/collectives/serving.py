"""Traces of inference: the steps that engines annotate, what each serves, and whether a job trains at all."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct

from shardtoll.ledger.records.record import SERVES, Workload
from shardtoll.profiler.traces.file.trace_columns import Trace

PREFILL, DECODE, MIXED = SERVES


class Served(Struct, frozen=True):
    """Work of one step of an inference engine."""

    kind: str | None
    """One of `SERVES`; None if unknown."""
    requests: int | None


class Mark(Struct, frozen=True):
    """One annotated step."""

    start_ns: int
    end_ns: int
    served: Served


_BATCH: Final = re.compile(r"\bbs=(\d+)")
_MODES: Final = (
    (re.compile(r"mixed", re.I), MIXED),
    (re.compile(r"draft_extend|verify|decode", re.I), DECODE),
    (re.compile(r"extend|prefill|prompt", re.I), PREFILL),
)


def _by_mode(found: re.Match[str]) -> Served:
    """SGLang's `step[DECODE bs=32]`, `step[EXTEND bs=2 toks=4096]`; ATOM's `prefill[bs=2 tok=16384]`."""
    batch = _BATCH.search(found[0])
    kind = next((kind for mode, kind in _MODES if mode.search(found[1])), None)
    return Served(kind, None if batch is None else int(batch[1]))


def _by_counts(found: re.Match[str]) -> Served:
    """vLLM's `execute_context_3(107)_generation_2(2)`: requests with prompts, and those that generate."""
    prompts, generating = int(found[1]), int(found[2])
    kind = MIXED if prompts and generating else PREFILL if prompts else DECODE if generating else None
    return Served(kind, prompts + generating)


def _by_sum(found: re.Match[str]) -> Served:
    """Older vLLM's `execute_new_1_cached_7`: cached ones may still be at their prompts."""
    return Served(None, int(found[1]) + int(found[2]))


_FAMILIES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Served]], ...]] = (
    (re.compile(r"^step\[\s*(\w*)[^\]]*\]"), _by_mode),
    (re.compile(r"^((?:prefill|decode|mixed))\[[^\]]*\]"), _by_mode),
    (re.compile(r"^execute_(?:\d+_)?context_(\d+)\([^)]*\)_generation_(\d+)\("), _by_counts),
    (re.compile(r"^execute_new_(\d+)_cached_(\d+)"), _by_sum),
    (re.compile(r"_forward_step \d+: (\d+) ctx reqs,(?: \d+ ctx tokens,)? (\d+) gen reqs"), _by_counts),
)
"""Annotations of one engine each: SGLang, ATOM, vLLM (new and old), TensorRT-LLM. If a trace has as many of
two families, one lies inside the other: the first here is the inner one."""

_TRAINS: Final = re.compile(
    r"^autograd::engine|AccumulateGrad|^Optimizer\.(step|zero_grad)#|backward|_bwd|bwd_|fused_?adam", re.I
)
_SERVES: Final = re.compile(
    r"paged_?attention|paged_?kv|reshape_and_cache|store_kv_?cache|process_?request|predictor_?executor", re.I
)
"""Kernels that read or write a cache of keys and values by pages, and annotations of a request's handling."""

MOST_APART: Final = 3.0
"""A step lasts until the next one begins. If that is more than this many usual periods later, the engine had
nothing to serve meanwhile."""


def workload(trace: Trace) -> Workload | None:
    """Return what the job does; None if neither training nor inference shows in the trace."""
    names = _names(trace)
    if any(_TRAINS.search(name) for name in names):
        return "training"
    marked = any(pattern.search(name) for name in names for pattern, _ in _FAMILIES)
    return "inference" if marked or any(_SERVES.search(name) for name in names) else None


def marks(trace: Trace) -> list[Mark]:
    """Return the steps that an inference engine annotated, in order; none in a trace that trains.

    Each lasts until the next one begins: sampling and scheduling between two passes are part of a step.
    """
    if workload(trace) != "inference":
        return []
    families = [_family(trace, pattern, served) for pattern, served in _FAMILIES]
    best = max(families, key=len)
    others = [mark for family in families if family is not best for mark in family]
    return _joined(_widened(best, others))


def _family(trace: Trace, pattern: re.Pattern[str], served: Callable[[re.Match[str]], Served]) -> list[Mark]:
    """Return the annotations that fit, in order of their start."""
    notes = trace.annotations
    found = {nth: match for nth, name in enumerate(trace.names) if (match := pattern.search(name))}
    rows = np.flatnonzero(np.isin(notes.name, list(found)))
    return [
        Mark(int(notes.start_ns[row]), int(notes.end_ns[row]), served(found[int(notes.name[row])]))
        for row in rows[np.argsort(notes.start_ns[rows], kind="stable")]
        if notes.end_ns[row] > notes.start_ns[row]
    ]


def _widened(found: list[Mark], others: list[Mark]) -> list[Mark]:
    """Return the marks, each as wide as the annotation of another layer around it alone.

    The outer annotation also holds the preparations for the pass.
    """
    made = list(found)
    starts = np.array([mark.start_ns for mark in found], np.int64)
    for outer in others:
        first, end = np.searchsorted(starts, (outer.start_ns, outer.end_ns)).tolist()
        if end - first == 1 and found[first].end_ns <= outer.end_ns:
            made[first] = Mark(outer.start_ns, outer.end_ns, found[first].served)
    return made


def _joined(found: list[Mark]) -> list[Mark]:
    """Return the marks, each as long as until the next one, if that follows soon."""
    starts = np.array([mark.start_ns for mark in found], np.int64)
    periods = np.diff(starts)
    if not len(periods):
        return found
    most = MOST_APART * float(np.median(periods))
    ends = [
        max(mark.end_ns, mark.start_ns + int(period)) if period <= most else mark.end_ns
        for mark, period in zip(found, periods.tolist(), strict=False)
    ]
    return [
        Mark(mark.start_ns, end, mark.served)
        for mark, end in zip(found, [*ends, found[-1].end_ns], strict=True)
    ]


def _names(trace: Trace) -> list[str]:
    """Return the names of kernels, operators and annotations, without Python's frames."""
    used = [np.unique(work.name) for work in (trace.device, trace.ops, trace.annotations) if len(work.name)]
    return [trace.names[int(nth)] for nth in np.unique(np.concatenate(used))] if used else []
