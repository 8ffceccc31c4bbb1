"""Decoded calls, kept for later calls with arguments like these.

Decoding a call costs more than all other work of watching on it. A training step repeats its calls, with
tensors of the same shapes and types for the same group. A decoded call is kept, without the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist

from shardtoll.profiler.live.cause.call import Call, resolve_group
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.methods import MethodDecoder
from shardtoll.profiler.live.cause.pending import Message, PendingCollective
from shardtoll.profiler.live.flight.kinds import is_plain

_MOST: Final = 4096
"""Kinds of calls that are kept; uneven exchanges make new ones all the time."""


_PLAIN: Final[frozenset[type]] = frozenset((str, int, bool, float, type(None)))


Issued: TypeAlias = Sequence[tuple[PendingCollective, Call]]
"""The collectives of one operator, in the order in which it issues them."""


_group_of: Final[Callable[[str], Any]] = getattr(
    getattr(torch._C, "_distributed_c10d", None), "_resolve_process_group", resolve_group
)


class _Unlike(Exception):
    """An argument that says nothing by which to know it again."""


@dataclass(frozen=True, slots=True)
class Said:
    """A call without its tensors, and its message in the ledger's words."""

    call: Call
    message: Message
    count: Callable[[], int | None]
    """Returns the group's own count."""
    plain: bool
    """As `is_plain` of the flight file says: it needs no more than its number there."""


def message_of(call: Call, groups: Groups, rank: int) -> Message:
    """Return a call's message in the ledger's words, as this rank makes it."""
    group = groups.used(call.group)
    size = group.size
    group_rank = group.ranks.index(rank) if rank in group.ranks else -1
    return Message(
        op=call.op,
        group=group.name,
        group_size=size,
        dtype=call.dtype,
        message_bytes=call.message_bytes,
        wire_bytes=call.wire_bytes(size, group_rank),
        reduce_op=call.reduce_op,
        root=None if call.root is None or not 0 <= call.root < size else group.ranks[call.root],
        group_rank=None if group_rank < 0 else group_rank,
        received_bytes=call.received_bytes,
    )


def give_numbers(calls: Issued, after: int | None) -> None:
    """Give the collectives of one operator their sequence numbers, unless another one cut in.

    The `seq` of each is its group's count of before; `after` is the count now, None if there is none.
    """
    before = calls[0][0].seq
    grown = 0 if before is None or after is None else after - before
    counted = sum(call.counted for _, call in calls)
    # A batch takes a number for each of its calls, or (coalesced) one for all of them, if any.
    each = len(calls) > 1 and grown >= counted
    for later, (pending, call) in zip(reversed(range(len(calls))), calls, strict=True):
        pending.growth = call.counted if each else min(grown, counted) if later == 0 else 0
        number = after - later if each and after is not None else after
        pending.seq = number if grown <= counted and not call.unnumbered else None


class Calls:
    """Decodes calls, each kind once for as long as the process's groups stay the same."""

    def __init__(self, groups: Groups, rank: int) -> None:
        self._groups = groups
        self._rank = rank
        self._said: dict[Any, tuple[Said, ...]] = {}
        self._changes = 0

    def forget(self) -> None:
        """Forget all calls, and let go of their groups."""
        self._said.clear()

    def bare(self, call: Call) -> Said:
        """Return a call's message."""
        message = message_of(call, self._groups, self._rank)
        counts = self._groups.sequence_number(call.group) is not None
        count = call.group._get_sequence_number_for_group if counts else _unknown
        return Said(replace(call, inputs=()), message, count, is_plain(call))

    def said(
        self, decode: MethodDecoder, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Said, ...] | None:
        """Return the collectives of a call; None if its arguments do not show them."""
        if self._changes != self._groups.changes:
            # Groups are kept alive by the facts about their calls: not longer than the process keeps them.
            self._said.clear()
            self._changes = self._groups.changes
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
        said = self._said.get(key)
        if said:
            first = said[0]
            name = args[-1] if args else None
            # The group that an operator was given by name may be another one than had that name then.
            if type(name) is not str or name != first.message.group or _group_of(name) is first.call.group:
                return said
        said = self._decoded(decode, args, kwargs)
        if said is not None and len(self._said) < _MOST:
            self._said[key] = said
        return said

    def _decoded(
        self, decode: MethodDecoder, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Said, ...] | None:
        calls = decode(args, kwargs)
        return None if calls is None else tuple(map(self.bare, calls))


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
"""Type of an argument -> function that returns equal values for arguments that mean the same for a call."""


def _likeness(kind: type) -> Callable[[Any], Any]:
    """Find out how to compare arguments of a type, and remember it."""
    like: Callable[[Any], Any] = _nothing_known
    if issubclass(kind, dist.ProcessGroup):
        like = id
    elif hasattr(kind, "asyncOp"):
        like = _options(reduces=hasattr(kind, "reduceOp"), rooted=hasattr(kind, "rootRank"))
    _LIKES[kind] = like
    return like


def _options(*, reduces: bool, rooted: bool) -> Callable[[Any], Any]:
    """Return what distinguishes the options of one kind of method."""

    def like(options: Any) -> Any:
        op = options.reduceOp if reduces else None
        # Its hash is the number of the operation, and every other way to ask for that is expensive.
        return None if op is None else hash(op), options.rootRank if rooted else None

    return like
