"""FSDP2's shards and comparisons of meshes in a dry run are those that torch's own functions give."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shardtoll.profiler.dryrun.run import dry
from shardtoll.profiler.dryrun.shims.sharding import Chunks
from tests.dry_runs import options

common = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_common")


@pytest.mark.parametrize("size", [(0,), (1,), (3, 4), (7, 2), (8, 3), (9, 5)])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 11])
def test_each_shard_is_a_view_of_the_same_numbers(size: tuple[int, ...], count: int) -> None:
    whole = torch.arange(torch.Size(size).numel()).reshape(size)
    for dim in range(len(size)):
        wanted = common._chunk_with_empty(whole, count, dim=dim)
        chunks = Chunks(whole, count, dim=dim)
        assert len(chunks) == len(wanted) == count
        for place in (*range(count), -1):
            made, want = chunks[place], wanted[place]
            assert (made.shape, made.stride()) == (want.shape, want.stride()), place
            assert made.tolist() == want.tolist(), place
            assert made.untyped_storage().data_ptr() == want.untyped_storage().data_ptr(), place
        assert [chunk.shape for chunk in chunks[1:3]] == [chunk.shape for chunk in wanted[1:3]]
        with pytest.raises(IndexError):
            chunks[count]


@pytest.mark.filterwarnings("ignore")
def test_meshes_of_a_dry_run_are_equal_where_their_ranks_and_names_are() -> None:
    before = DeviceMesh.__eq__, DeviceMesh.__init__
    with dry(options(16)):
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (4, 4), mesh_dim_names=("dp", "tp"))
        same = init_device_mesh("cuda", (4, 4), mesh_dim_names=("dp", "tp"))
        renamed = init_device_mesh("cuda", (4, 4), mesh_dim_names=("dp", "cp"))
        for _ in range(2):
            assert mesh == same
            assert mesh != renamed
            assert mesh["dp"] != mesh["tp"]
            assert mesh != "mesh"
        assert hash(mesh) == hash(same)
        ranks = getattr(mesh, "_flatten_rank_map", None)
        assert ranks is getattr(same, "_flatten_rank_map", None)
        assert ranks in (None, tuple(range(16)))
    assert (DeviceMesh.__eq__, DeviceMesh.__init__) == before
