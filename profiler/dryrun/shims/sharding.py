"""Work of FSDP2 and meshes rank by rank while a model is sharded; here one rank computes only its own part.

Results are those of torch's functions; on 16,384 ranks theirs take longer than the rest of the dry run.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any, overload

import torch

from shardtoll.profiler.dryrun.shims.playing import Playing
from shardtoll.profiler.dryrun.shims.replaced import Replaced


def replace_sharding(_: Playing, replaced: Replaced) -> None:
    """Have FSDP2 make the shards it asks for, and meshes compare their ranks once."""
    for name in ("_fsdp_common", "_fsdp_param"):
        try:
            owner = importlib.import_module(f"torch.distributed.fsdp._fully_shard.{name}")
        except ImportError:
            continue
        replaced.put_where_it_is(owner, "_chunk_with_empty", Chunks)
    _ranks_held_once(replaced)
    _compared_once(replaced)


class Chunks(Sequence[torch.Tensor]):
    """Result of `torch.chunk`, filled up with empty tensors; each is made when it is asked for."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor = tensor
        self._count = num_chunks
        self._dim = dim

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | list[torch.Tensor]:
        """Return one, or a list of several."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._count))]
        place = range(self._count)[index]
        size = self._tensor.size(self._dim)
        share = -(-size // self._count)
        begin = place * share
        if begin >= size and size:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, begin, min(share, size - begin))


def _ranks_held_once(replaced: Replaced) -> None:
    """Have meshes of the same ranks hold one list of them: with TP, FSDP2 makes one mesh a parameter."""
    from torch.distributed.device_mesh import DeviceMesh

    original: Any = DeviceMesh.__init__
    held: dict[Any, Any] = {}

    @functools.wraps(original)
    def __init__(mesh: Any, *args: Any, **kwargs: Any) -> None:
        original(mesh, *args, **kwargs)
        ranks = getattr(mesh, "_flatten_rank_map", None)
        if isinstance(ranks, tuple):
            mesh._flatten_rank_map = held.setdefault(ranks, ranks)

    replaced.put(DeviceMesh, "__init__", __init__)


def _compared_once(replaced: Replaced) -> None:
    """Have two meshes be compared rank by rank only the first time: DTensor does for each operator."""
    from torch.distributed.device_mesh import DeviceMesh

    original: Any = DeviceMesh.__eq__
    compared: dict[tuple[int, int], tuple[Any, Any, bool]] = {}

    def __eq__(mesh: Any, other: Any) -> Any:
        if mesh is other:
            return True
        if type(other) is not DeviceMesh:
            return original(mesh, other)
        # The meshes are kept: no other one gets their ids.
        answer = compared.get((id(mesh), id(other)))
        if answer is None:
            answer = compared[id(mesh), id(other)] = mesh, other, original(mesh, other)
        return answer[2]

    replaced.put(DeviceMesh, "__eq__", __eq__)
