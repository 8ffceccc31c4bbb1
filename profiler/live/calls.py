"""What a call said the last time it was made with arguments like these.

Decoding a call costs more than all else that watching does with it, and a training step makes the same calls
over and over: with tensors of the same shapes and types for the same group. What was decoded once is kept,
without the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.distributed as dist

from shardtoll.profiler.live.call import Call, resolve_group
from shardtoll.profiler.live.methods import MethodDecoder
from shardtoll.profiler.live.pending import NOWHERE, PendingCollective
from shardtoll.profiler.live.recorder import Recorder

_MOST: Final = 4096
"""Kinds of calls that are kept; uneven exchanges make new ones all the time."""


_PLAIN: Final[frozenset[type]] = frozenset((str, int, bool, float, type(None)))


class _Unlike(Exception):
    """An argument that says nothing by which to know it again."""


@dataclass(frozen=True, slots=True)
class Said:
    """A call without its tensors, and the record that it makes."""

    call: Call
    record: PendingCollective
    count: Callable[[], int | None]
    """Returns the group's own count."""

    def pending(self) -> PendingCollective:
        """Return a new record of this call, its `seq` the group's count as it is now."""
        r = self.record
        return PendingCollective(
            r.op,
            r.group,
            r.group_size,
            r.dtype,
            r.message_bytes,
            r.wire_bytes,
            r.reduce_op,
            r.root,
            NOWHERE,
            0,
            self.count(),
        )


class Calls:
    """Decodes calls, each kind once for as long as the process's groups stay the same."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: dict[Any, tuple[Said, ...]] = {}
        self._changes = 0

    def forget(self) -> None:
        """Forget all calls, and let go of their groups."""
        self._known.clear()

    def bare(self, call: Call) -> Said:
        """Return what a call says."""
        record = self._recorder.bare(call)
        count = _unknown if record.seq is None else call.group._get_sequence_number_for_group
        return Said(replace(call, inputs=()), record, count)

    def said(
        self, decode: MethodDecoder, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Said, ...] | None:
        """Return what a call issues; None where its arguments do not say."""
        if self._changes != self._recorder.groups.changes:
            # Groups are kept alive by what is known of their calls: not longer than the process keeps them.
            self._known.clear()
            self._changes = self._recorder.groups.changes
        likes: list[Any] = [decode]
        try:
            for value in args:
                # Most arguments are of these kinds: a call for each would be half of what this takes.
                kind = type(value)
                if kind in _PLAIN:
                    likes.append(value)
                elif kind is torch.Tensor and value.layout is torch.strided:
                    likes += (value.shape, value.dtype)
                else:
                    likes.append(_like(value))
            if kwargs:
                likes += [(name, _like(value)) for name, value in kwargs.items()]
        except _Unlike:
            return self._decoded(decode, args, kwargs)
        key = tuple(likes)
        known = self._known.get(key)
        if known is None or not _still(known, args):
            known = self._decoded(decode, args, kwargs)
            if known is not None and len(self._known) < _MOST:
                self._known[key] = known
        return known

    def _decoded(
        self, decode: MethodDecoder, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Said, ...] | None:
        calls = decode(args, kwargs)
        return None if calls is None else tuple(map(self.bare, calls))


def _still(known: tuple[Said, ...], args: Sequence[Any]) -> bool:
    """Whether the group that an operator was given by name is the one that had it then."""
    name = args[-1] if args else None
    if type(name) is not str or not known or known[0].record.group != name:
        return True
    return bool(resolve_group(name) is known[0].call.group)


def _unknown() -> None:
    return None


def _like(value: Any) -> Any:
    """Return what an argument has in common with others that say the same of a call."""
    kind = type(value)
    return (_LIKES.get(kind) or _likeness(kind))(value)


def _shape_and_type(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided:
        # Its shape does not say its size.
        raise _Unlike
    return tensor.shape, tensor.dtype


def _itself(value: Any) -> Any:
    return value


def _of_each(values: Sequence[Any]) -> Any:
    return tuple(map(_like, values))


def _nothing_known(_: Any) -> Any:
    raise _Unlike


_LIKES: Final[dict[type, Callable[[Any], Any]]] = {
    torch.Tensor: _shape_and_type,
    torch.nn.Parameter: _shape_and_type,
    **dict.fromkeys(_PLAIN, _itself),
    **dict.fromkeys((list, tuple), _of_each),
}
"""Type of an argument -> what it has in common with others that say the same of a call."""


def _likeness(kind: type) -> Callable[[Any], Any]:
    """Find out how arguments of a type are told apart, and remember it."""
    like: Callable[[Any], Any] = _nothing_known
    if issubclass(kind, dist.ProcessGroup):
        like = id
    elif hasattr(kind, "asyncOp"):
        like = _options(reduces=hasattr(kind, "reduceOp"), rooted=hasattr(kind, "rootRank"))
    _LIKES[kind] = like
    return like


def _options(*, reduces: bool, rooted: bool) -> Callable[[Any], Any]:
    """Return what tells the options of one kind of method apart."""

    def like(options: Any) -> Any:
        op = options.reduceOp if reduces else None
        # Its hash is the number of the operation, which is dear to ask for in any other way.
        return None if op is None else hash(op), options.rootRank if rooted else None

    return like
