"""What becomes of a collective's result: its fingerprint once it is there, and which of its bytes are read.

A result is followed through its memory. Views read nothing; what reads a view reads the view's bytes, the
bytes of several reads are counted together. A copy of the whole result, as a gather along another dimension
than the first makes, stands for it and is followed instead. Nothing is kept alive: storages are known by weak
references, and while such a reference is held no other storage can be taken for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shardtoll.profiler.live.call import Tensors
from shardtoll.profiler.live.extents import Extent, covered_bytes, extent_of, is_dense
from shardtoll.profiler.live.fingerprint import Fingerprints
from shardtoll.profiler.live.pending import Outcome, PendingCollective

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
    """Of its first element in its storage, in elements."""
    numel: int
    dtype: torch.dtype
    reads: set[Extent] = field(default_factory=set)
    whole: bool = False
    """All of it was read."""
    own: Extent | None = None
    """What lies in it of this rank's own input, where an all_gather's layout tells."""

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
        """Of which not all is read yet, by address; empty most of the time."""
        self._begins: list[int] = []
        self._uses: dict[int, tuple[int, Any]] = {}

    def clear(self) -> None:
        """Forget all results."""
        self._results, self.pieces, self._begins = [], [], []

    def follow(self, pending: PendingCollective, tensors: Sequence[torch.Tensor]) -> None:
        """Follow the tensors that a collective, just issued, is filling."""
        if pending.op not in FOLLOWED or (pending.place.caused_by_op or "").startswith(WRAPPERS):
            return
        if not tensors or not all(_plain(tensor) for tensor in tensors):
            return
        result = _Result(pending)
        pieces = [_piece(result, tensor) for tensor in tensors]
        _mark_own(pieces, tensors, pending)
        self._results.append(result)
        for piece in pieces:
            self._add(piece)

    def _add(self, piece: _Piece) -> None:
        at = bisect_right(self._begins, piece.begin)
        # What lay in this memory before has been overwritten, or was freed.
        first = at - 1 if at and self.pieces[at - 1].end > piece.begin else at
        last = at
        while last < len(self.pieces) and self._begins[last] < piece.end:
            last += 1
        for old in self.pieces[first:last]:
            old.result.gone += 1
        self.pieces[first:last] = [piece]
        self._begins[first:last] = [piece.begin]
        piece.result.pieces.append(piece)

    def _remove(self, piece: _Piece) -> None:
        at = bisect_right(self._begins, piece.begin) - 1
        if at >= 0 and self.pieces[at] is piece:
            del self.pieces[at], self._begins[at]

    def touched(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> list[_Hit] | None:
        """Return what an operator about to run touches of results; what it reads is noted now."""
        hits = self._hits(_tensors((*args, *kwargs.values()) if kwargs else args))
        if not hits:
            return None
        known = self._uses.get(id(func))
        if known is None:
            self._uses[id(func)] = known = (_use_of(func), func)
        use = known[0]
        if use == _NOTHING:
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
        for piece, tensor in self._hits(tensors):
            self._read(piece, tensor, func)

    def _hits(self, tensors: Iterable[torch.Tensor]) -> list[_Hit]:
        hits: list[_Hit] = []
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                continue
            try:
                address = tensor.data_ptr()
            except RuntimeError:
                # It has no memory of its own, as what torch.func wraps.
                continue
            at = bisect_right(self._begins, address) - 1
            if at < 0 or address >= self.pieces[at].end:
                continue
            piece = self.pieces[at]
            if tensor.untyped_storage()._cdata == piece.storage.cdata:
                hits.append((piece, tensor))
            else:
                # Its memory has been freed and belongs to somebody else now.
                piece.result.gone += 1
                self._remove(piece)
        return hits

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
        if len(made) == 1 and self._stands_for(hits, made[0], _dimension(func, args)):
            return
        for piece, tensor in hits:
            self._read(piece, tensor, func)

    def _stands_for(self, hits: list[_Hit], copy: torch.Tensor, dim: int) -> bool:
        """Follow a copy of a whole result in its place; False where it is none."""
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
        for piece in result.pieces:
            self._remove(piece)
        # What was taken apart to be laid out anew is no use of it.
        result.pieces, result.first = [], None
        piece = _piece(result, copy)
        _mark_own([piece], [copy], result.pending, dim)
        self._add(piece)
        return True

    def _overwritten(self, hits: list[_Hit], args: Sequence[Any]) -> None:
        for piece, tensor in hits:
            if piece.result.pending.op == "reduce_scatter" and not piece.result.printed:
                # Gloo reduces elsewhere and copies the result here when it is waited for.
                continue
            if tensor is args[0] and tensor.numel() * tensor.element_size() >= piece.size:
                piece.result.gone += 1
                self._remove(piece)

    def _read(self, piece: _Piece, tensor: torch.Tensor, func: Any) -> None:
        result = piece.result
        if not result.printed:
            result.printed = True
            self._print(result, piece, tensor)
        if result.first is None:
            result.first = str(func)
        if piece.whole:
            return
        if tensor.numel() * tensor.element_size() >= piece.size and is_dense(tensor):
            piece.whole = True
            self._remove(piece)
        else:
            piece.reads.add(extent_of(tensor, piece.begin))

    def _print(self, result: _Result, piece: _Piece, tensor: torch.Tensor) -> None:
        """Take the fingerprint of a result of one piece, by a view into the same storage."""
        outcome = outcome_of(result.pending)
        if len(result.pieces) != 1 or tensor.dtype != piece.dtype:
            return
        # The user's modes have no part in it.
        with torch._C._DisableTorchDispatch():
            whole = tensor.detach().as_strided((piece.numel,), (1,), piece.offset)
            outcome.ticket = self._fingerprints.take(whole)

    def finish(self, *, unseen_reads: bool) -> None:
        """Write down what was read of each result. `unseen_reads`: compiled code may have read some too."""
        for result in self._results:
            outcome = outcome_of(result.pending)
            outcome.used_bytes = _used(result, unseen_reads=unseen_reads)
            outcome.used_by = None if outcome.used_bytes is None else result.first
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
        # Of what is kept over the step, what reads it is still to come.
        return None
    if result.pending.op == "all_gather" and _reads_of_others(result):
        return None
    return total


def _reads_of_others(result: _Result) -> bool:
    """Whether more was read than this rank's own part, so that the gather was of use, or that is unknown."""
    for piece in result.pieces:
        if not piece.whole and not piece.reads:
            continue
        if piece.own is None:
            return True
        if piece.whole:
            own = covered_bytes([piece.own])
            if own is None or own < piece.size:
                return True
            continue
        both, own = covered_bytes([*piece.reads, piece.own]), covered_bytes([piece.own])
        if both is None or own is None or both > own:
            return True
    return False


def _mark_own(
    pieces: Sequence[_Piece], tensors: Sequence[torch.Tensor], pending: PendingCollective, dim: int = 0
) -> None:
    """Note where an all_gather's result has this rank's own part: a piece of several, or one along `dim`."""
    rank, ranks = pending.group_rank, pending.group_size
    if pending.op != "all_gather" or rank is None:
        return
    if len(pieces) == ranks:
        pieces[rank].own = extent_of(tensors[rank], pieces[rank].begin)
    elif len(pieces) == 1 and tensors[0].dim() > 0:
        # The user's modes have no part in it.
        with torch._C._DisableTorchDispatch():
            whole = tensors[0].detach()
            if whole.size(dim) % ranks == 0:
                part = whole.size(dim) // ranks
                pieces[0].own = extent_of(whole.narrow(dim, rank * part, part), pieces[0].begin)


def _dimension(func: Any, args: Sequence[Any]) -> int:
    """Return the dimension along which pieces are put together; a copy of one keeps the first."""
    if func._schema.name != "aten::cat" or len(args) < 2:
        return 0
    return int(args[1])


def outcome_of(pending: PendingCollective) -> Outcome:
    """Return where to write down what became of a collective."""
    if pending.outcome is None:
        pending.outcome = Outcome()
    return pending.outcome


def _plain(tensor: torch.Tensor) -> bool:
    # What wraps another tensor has no memory of its own.
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    return tensor.numel() > 0 and not tensor.is_meta and is_dense(tensor)


def _piece(result: _Result, tensor: torch.Tensor) -> _Piece:
    begin, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    storage: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    offset = int(tensor.storage_offset())
    return _Piece(result, storage, begin, begin + size, offset, tensor.numel(), tensor.dtype)
