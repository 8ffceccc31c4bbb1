"""How an audit in progress and work that is not the step's own come together.

The gradient check runs collectives and operators inside a step because the user asked for it. They are
not the step's: it runs inside `paused()`, and an open session, having registered, keeps them out of its
records. The check's findings go to the session through `deliver`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, TypeAlias

from shardtoll.ledger import Finding

Hook: TypeAlias = Callable[[], None]
Sink: TypeAlias = Callable[[Sequence[Finding], Collection[str], Collection[str]], None]
"""Takes findings, and of this rank's parameters the names of those found right and of those found wrong."""

_pauses: Final[list[tuple[Hook, Hook]]] = []
_sinks: Final[list[Sink]] = []


def register(pause: Hook, resume: Hook) -> Hook:
    """Have `pause` and `resume` called around every `paused()`; returns what ends that."""
    entry = (pause, resume)
    _pauses.append(entry)
    return lambda: _pauses.remove(entry)


def register_sink(sink: Sink) -> Hook:
    """Have findings delivered to `sink`; returns what ends that."""
    _sinks.append(sink)
    return lambda: _sinks.remove(sink)


@contextmanager
def paused() -> Iterator[None]:
    """Keep what runs inside out of every registered capture. Nests: each block pauses and resumes.

    Whoever was paused is resumed, last first, whatever is raised inside.
    """
    with ExitStack() as stack:
        for pause, resume in list(_pauses):
            pause()
            stack.callback(resume)
        yield


def deliver(findings: Sequence[Finding], right: Collection[str], wrong: Collection[str]) -> None:
    """Hand findings to every registered sink; without one they are the caller's alone."""
    for sink in list(_sinks):
        sink(findings, right, wrong)
