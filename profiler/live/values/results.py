"""Use of a collective's result: its fingerprint once it is there, and which of its bytes are read.

A result is followed through its memory. Views read nothing; what reads a view reads the view's bytes, the
bytes of several reads are counted together. A copy of the whole result stands for it and is followed instead.
A gather along another dimension than the first makes such a copy. Nothing is kept alive: storages are known
by weak references. While such a reference is held no other storage can be taken for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shardtoll.profiler.live.cause.call import Tensors
from shardtoll.profiler.live.cause.pending import PendingCollective, Surveyed
from shardtoll.profiler.live.values.extents import Extent, covered_bytes, extent_of, is_dense
from shardtoll.profiler.live.values.fingerprint import Fingerprints
from shardtoll.profiler.live.values.logits import Logits
from shardtoll.profiler.live.values.owned import Box, box_within, placed, read_dimension

FOLLOWED: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")

WRAPPERS: Final = ("DistributedDataParallel", "FSDP", "DeepSpeed")
"""Causes whose results are buffers of the wrapper's own, read in C++ or kept over steps."""

_OUTPUTS: Final = ("output_tensors", "output_lists", "output_tensor", "outputs", "output", "out", "tensors")
"""How operators name the memory that they fill."""

_VIEW: Final = 0
_COPY: Final = 1
_OVERWRITE: Final = 2
_READ: Final = 3
_NOTHING: Final = 4
_UNMARKED_VIEWS: Final = (
    *("aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_chunk", "aten::unsafe_split_with_sizes"),
)
"""Views whose schemas do not say so."""
_COPIES: Final = ("aten::clone", "aten::_to_copy", "aten::copy_", "aten::cat", "aten::stack")
_OVERWRITES: Final = ("aten::zero_", "aten::fill_", "aten::normal_", "aten::uniform_")
_NO_READS: Final = (
    *("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"),
    *("aten::resize_", "aten::set_", "aten::record_stream", "aten::empty_like"),
    *("aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::new_empty", "aten::new_zeros"),
    *("aten::new_ones", "aten::new_full", "aten::new_empty_strided", "aten::is_same_size"),
)


@dataclass(slots=True, eq=False)
class _Result:
    """One collective's result: one or several pieces of memory."""

    pending: PendingCollective
    pieces: list[_Piece] = field(default_factory=list)
    gone: int = 0
    """Pieces freed or overwritten."""
    printed: bool = False
    first: str | None = None


@dataclass(slots=True, eq=False)
class _Piece:
    """A piece of memory that holds a result or a part of one."""

    result: _Result
    storage: Any
    """A StorageWeakRef."""
    begin: int
    end: int
    offset: int
    """Position of its first element in its storage, in elements."""
    numel: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    reads: dict[Extent, None] = field(default_factory=dict)
    """In the order in which they were read first."""
    whole: bool = False
    """All of it was read."""
    mine: Extent | None = None
    """The place of this rank's own input in it, element by element; None: not in it, or unknown."""

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.begin


_Hit = tuple[_Piece, torch.Tensor]


def outputs_of(arguments: dict[str, Any], result: Any) -> list[torch.Tensor]:
    """Return the tensors that a collective's operator fills: arguments of its, or what it returns."""
    for name in _OUTPUTS:
        if name in arguments:
            return list(_tensors((arguments[name],)))
    return list(_tensors((result,)))


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _use_of(func: Any) -> int:
    schema = func._schema
    if schema.name in _NO_READS:
        return _NOTHING
    if schema.name in _COPIES:
        return _COPY
    if schema.name in _OVERWRITES:
        return _OVERWRITE
    aliases = [argument.alias_info for argument in schema.arguments if argument.alias_info is not None]
    if schema.name in _UNMARKED_VIEWS or (aliases and not any(alias.is_write for alias in aliases)):
        return _VIEW
    return _READ


class Results:
    """Follows the results of one region's collectives."""

    def __init__(self, fingerprints: Fingerprints) -> None:
        self._fingerprints = fingerprints
        self._results: list[_Result] = []
        self.pieces: list[_Piece] = []
        """Pieces that are not yet read whole, by address; empty most of the time."""
        self._begins: list[int] = []
        self._uses: dict[int, tuple[int, Any]] = {}
        self.logits = Logits()

    def clear(self) -> None:
        """Forget all results."""
        self._results, self.pieces, self._begins = [], [], []
        self.logits.clear()

    def follow(self, pending: PendingCollective, tensors: Sequence[torch.Tensor]) -> None:
        """Follow the tensors that a collective, just issued, is filling."""
        if pending.message.op not in FOLLOWED or (pending.place.caused_by_op or "").startswith(WRAPPERS):
            return
        if not tensors or not all(_plain(tensor) for tensor in tensors):
            return
        result = _Result(pending)
        pieces = [_piece(result, tensor) for tensor in tensors]
        _mark_own(pieces, pending)
        self._results.append(result)
        for piece in pieces:
            self._add(piece)

    def _add(self, piece: _Piece) -> None:
        index = bisect_right(self._begins, piece.begin)
        # Earlier contents of this memory have been overwritten, or were freed.
        first = index - 1 if index and self.pieces[index - 1].end > piece.begin else index
        last = index
        while last < len(self.pieces) and self._begins[last] < piece.end:
            last += 1
        for old in self.pieces[first:last]:
            old.result.gone += 1
        self.pieces[first:last] = [piece]
        self._begins[first:last] = [piece.begin]
        piece.result.pieces.append(piece)

    def _remove(self, piece: _Piece) -> None:
        index = bisect_right(self._begins, piece.begin) - 1
        if index >= 0 and self.pieces[index] is piece:
            del self.pieces[index], self._begins[index]

    def touched(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> list[_Hit] | None:
        """Return what an operator about to run touches of results; what it reads is noted now."""
        use_of = self._uses.get(id(func))
        if use_of is None:
            self._uses[id(func)] = use_of = (_use_of(func), func)
        use = use_of[0]
        if use == _NOTHING:
            return None
        if self.logits.wholes and use in (_READ, _COPY):
            self.logits.read_otherwise(func, (*args, *kwargs.values()) if kwargs else args)
        if not self.pieces:
            return None
        hits = self._hits((*args, *kwargs.values()) if kwargs else args)
        if not hits:
            return None
        if use == _OVERWRITE and args:
            self._overwritten(hits, args)
            return None
        if use == _READ:
            for piece, tensor in hits:
                self._read(piece, tensor, func)
            return None
        if func._schema.name == "aten::copy_" and args:
            self._overwritten([hit for hit in hits if hit[1] is args[0]], args)
            hits = [hit for hit in hits if hit[1] is not args[0]]
        return hits

    def read_by_collective(self, func: Any, tensors: Tensors) -> None:
        """Note that a collective reads these tensors."""
        self.logits.read_otherwise(func, tensors)
        for piece, tensor in self._hits(tensors):
            self._read(piece, tensor, func)

    def _hits(self, values: Iterable[Any]) -> list[_Hit]:
        """Return what the tensors among the values, and in lists among them, have of results."""
        hits: list[_Hit] = []
        for value in values:
            if isinstance(value, torch.Tensor):
                self._hit(value, hits)
            elif isinstance(value, (list, tuple)):
                for each in _tensors(value):
                    self._hit(each, hits)
        return hits

    def _hit(self, tensor: torch.Tensor, hits: list[_Hit]) -> None:
        if tensor.layout is not torch.strided or not self.pieces:
            return
        try:
            address = tensor.data_ptr()
        except RuntimeError:
            # It has no memory of its own, as what torch.func wraps.
            return
        index = bisect_right(self._begins, address) - 1
        if index < 0 or address >= self.pieces[index].end:
            return
        piece = self.pieces[index]
        if tensor.untyped_storage()._cdata == piece.storage.cdata:
            hits.append((piece, tensor))
        else:
            # Its memory has been freed and belongs to somebody else now.
            piece.result.gone += 1
            self._remove(piece)

    def ran(self, func: Any, hits: list[_Hit], result: Any, args: Sequence[Any] = ()) -> None:
        """Note what a view or copy of results has made; `hits` is what `touched` returned.

        `args` are the operator's: they say along which dimension pieces were put together.
        """
        made = [tensor for tensor in _tensors((result,)) if tensor.layout is torch.strided]
        if not made:
            return
        if all(
            tensor.untyped_storage()._cdata == hits[0][0].storage.cdata for tensor in made
        ) and not func._schema.name.startswith("aten::copy_"):
            narrower = made[0].numel() < hits[0][1].numel()
            for piece, _ in hits:
                if narrower and piece.result.first is None:
                    piece.result.first = str(func)
            return
        if len(made) == 1 and self._stands_for(hits, made[0], func, args):
            return
        if func._schema.name == "aten::_to_copy" and len(hits) == 1:
            self.logits.cast(hits[0][1], made[0])
        for piece, tensor in hits:
            self._read(piece, tensor, func)

    def _stands_for(self, hits: list[_Hit], copy: torch.Tensor, func: Any, args: Sequence[Any]) -> bool:
        """Follow a copy of a whole result in its place; False if it is none."""
        result = hits[0][0].result
        if any(piece.result is not result for piece, _ in hits):
            return False
        if any(piece.reads or piece.whole for piece in result.pieces):
            return False
        size = sum(piece.size for piece in result.pieces)
        views = sum(tensor.numel() * tensor.element_size() for _, tensor in hits)
        if copy.numel() * copy.element_size() != size or views != size or copy.dtype != hits[0][0].dtype:
            return False
        extents: dict[int, list[Extent]] = {}
        for piece, tensor in hits:
            extents.setdefault(id(piece), []).append(extent_of(tensor, piece.begin))
        if len(extents) != len(result.pieces) or not _plain(copy):
            return False
        if sum(covered_bytes(part) or 0 for part in extents.values()) != size:
            return False
        mine = _own_of_copy(hits, copy, func, args)
        for piece in result.pieces:
            self._remove(piece)
        # Taking a result apart to lay it out anew is no use of it.
        result.pieces, result.first = [], None
        piece = _piece(result, copy)
        piece.mine = mine
        self._add(piece)
        if mine is not None:
            self.logits.gathered(result.pending, copy, mine)
        return True

    def _overwritten(self, hits: list[_Hit], args: Sequence[Any]) -> None:
        for piece, tensor in hits:
            if piece.result.pending.message.op == "reduce_scatter" and not piece.result.printed:
                # Gloo reduces elsewhere and copies the result here when it is waited for.
                continue
            if tensor is args[0] and tensor.numel() * tensor.element_size() >= piece.size:
                piece.result.gone += 1
                self._remove(piece)

    def _read(self, piece: _Piece, tensor: torch.Tensor, func: Any) -> None:
        result = piece.result
        if not result.printed:
            result.printed = True
            surveyed_of(result.pending).read_carries_gradient = tensor.requires_grad
            self._print(result, piece, tensor)
        if result.first is None:
            result.first = str(func)
        if piece.whole:
            return
        if not any(other.reads or other.whole for other in result.pieces):
            self._print_read(result, tensor)
        if tensor.numel() * tensor.element_size() >= piece.size and is_dense(tensor):
            piece.whole = True
            self._remove(piece)
        else:
            piece.reads[extent_of(tensor, piece.begin)] = None

    def _print_read(self, result: _Result, tensor: torch.Tensor) -> None:
        """Take the fingerprint of a part of a gather that is read first, in the order of its elements."""
        message = result.pending.message
        size = tensor.numel() * tensor.element_size() * message.group_size
        if message.op != "all_gather" or size != message.message_bytes:
            return
        surveyed = surveyed_of(result.pending)
        with torch._C._DisableTorchDispatch():
            surveyed.read_ticket = self._fingerprints.take_in_order(tensor.detach())

    def _print(self, result: _Result, piece: _Piece, tensor: torch.Tensor) -> None:
        """Take the fingerprint of a result of one piece, by a view into the same storage."""
        if len(result.pieces) != 1 or tensor.dtype != piece.dtype:
            return
        # The user's modes have no part in it.
        with torch._C._DisableTorchDispatch():
            whole = tensor.detach().as_strided((piece.numel,), (1,), piece.offset)
            surveyed_of(result.pending).output_ticket = self._fingerprints.take(whole)

    def finish(self, *, unseen_reads: bool) -> None:
        """Write down what was read of each result. `unseen_reads`: compiled code may have read some too."""
        for result in self._results:
            surveyed = surveyed_of(result.pending)
            surveyed.used_bytes = _used(result, unseen_reads=unseen_reads)
            surveyed.used_by = None if surveyed.used_bytes is None else result.first
            surveyed.read_dimension = None if surveyed.used_bytes is None else _read_dimension(result)
        self.clear()


def _used(result: _Result, *, unseen_reads: bool) -> int | None:
    total = 0
    for piece in result.pieces:
        covered = piece.size if piece.whole else covered_bytes(piece.reads)
        if covered is None:
            return None
        total += covered
    size = sum(piece.size for piece in result.pieces)
    if total == size:
        return total
    if unseen_reads or not all(piece.storage.expired() for piece in result.pieces):
        # Memory that is kept over the step may still be read later.
        return None
    if result.pending.message.op == "all_gather" and _reads_of_others(result):
        return None
    return total


def _reads_of_others(result: _Result) -> bool:
    """Whether more was read than this rank's own part, so that the gather was of use, or that is unknown."""
    for piece in result.pieces:
        if not piece.whole and not piece.reads:
            continue
        if piece.mine is None:
            return True
        if piece.whole:
            own_bytes = covered_bytes([piece.mine])
            if own_bytes is None or own_bytes < piece.size:
                return True
            continue
        both, own_bytes = covered_bytes([*piece.reads, piece.mine]), covered_bytes([piece.mine])
        if both is None or own_bytes is None or both > own_bytes:
            return True
    return False


def _mark_own(pieces: Sequence[_Piece], pending: PendingCollective) -> None:
    """Note where an all_gather's result has this rank's own part: one of several pieces, or a part of one."""
    rank, ranks = pending.message.group_rank, pending.message.group_size
    if pending.message.op != "all_gather" or rank is None:
        return
    if len(pieces) == ranks:
        whole = pieces[rank]
        whole.mine = Extent(0, (whole.numel,), (whole.size // whole.numel,), whole.size // whole.numel)
    elif len(pieces) == 1 and pieces[0].numel % ranks == 0:
        whole, part = pieces[0], pieces[0].numel // ranks
        itemsize = whole.size // whole.numel
        whole.mine = Extent(rank * part * itemsize, (part,), (itemsize,), itemsize)


def _own_of_copy(hits: Sequence[_Hit], copy: torch.Tensor, func: Any, args: Sequence[Any]) -> Extent | None:
    """Return where the rank's own part lies in a copy of a whole result; None if that is unknown.

    The copy was made of views of the result, `hits`, in the order in which the operator was given them.
    """
    boxes: list[Box | None] = []
    for piece, tensor in hits:
        if piece.mine is None:
            boxes.append(None)
            continue
        box = box_within(extent_of(tensor, piece.begin), piece.mine)
        if box is None:
            return None
        boxes.append(box)
    shapes = [tuple(tensor.shape) for _, tensor in hits]
    return placed(func._schema.name, args, shapes, boxes, extent_of(copy, copy.data_ptr()))


def _read_dimension(result: _Result) -> int | None:
    """Return along which dimension the rank read its own even part of the result, and nothing else."""
    rank, ranks = result.pending.message.group_rank, result.pending.message.group_size
    touched = [piece for piece in result.pieces if piece.whole or piece.reads]
    if rank is None or len(touched) != 1:
        return None
    (piece,) = touched
    if len(result.pieces) > 1:
        # One of a list: an even part along the first dimension, wherever it is put.
        return 0 if piece.whole and len(result.pieces) == ranks and piece is result.pieces[rank] else None
    # The result of a gather needs no cutting: which elements they are is all that counts.
    shape = None if result.pending.message.op == "all_gather" else piece.shape
    return read_dimension(piece.reads, piece.size, rank, ranks, shape)


def surveyed_of(pending: PendingCollective) -> Surveyed:
    """Return where to write down what became of a collective."""
    if pending.surveyed is None:
        pending.surveyed = Surveyed()
    return pending.surveyed


def _plain(tensor: torch.Tensor) -> bool:
    # A tensor that wraps another one has no memory of its own.
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    return tensor.numel() > 0 and not tensor.is_meta and is_dense(tensor)


def _piece(result: _Result, tensor: torch.Tensor) -> _Piece:
    begin, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    storage: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    offset = int(tensor.storage_offset())
    return _Piece(
        result, storage, begin, begin + size, offset, tensor.numel(), tensor.dtype, tuple(tensor.shape)
    )
