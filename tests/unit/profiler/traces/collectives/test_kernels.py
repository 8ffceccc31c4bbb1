from __future__ import annotations

import pytest

from shardtoll.ledger.records.errors import UsageError
from shardtoll.profiler.traces.collectives.kernels import Kind, load_table

OURS = load_table()


@pytest.mark.parametrize(
    ("name", "library", "op"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)", "nccl", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...)", "nccl", "reduce_scatter"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", "nccl", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(...)", "nccl", "reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "nccl", None),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_Sum_bf16(...)", "nccl", "all_reduce"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "rccl", None),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "rccl", None),
        ("rcclGenericKernel<1, false>(ncclDevComm*)", "rccl", None),
        ("void deep_ep::internode::dispatch<true, 4, false>(int4*, float*)", "deepep", "all_to_all"),
        ("void dpsk::ep::internode::combine<4>(...)", "deepep", "all_to_all"),
        ("void dpsk::ep::internode::cached_notify<true>(...)", "deepep", None),
        ("void deep_ep::internode_ll::dispatch<true, false, 7168>(...)", "deepep", "all_to_all"),
        ("void deep_ep::intranode::barrier<8>(int**, int)", "deepep", "barrier"),
        ("void deep_ep::intranode::dispatch<deep_ep::layout::Kind>(int4*)", "deepep", "all_to_all"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<float, 16>(...)", "symm_mem", "all_reduce"),
        ("void one_shot_all_reduce_kernel<float, 16, 8, true>(...)", "symm_mem", "all_reduce"),
        ("void two_shot_all_reduce_kernel_inplace<float, 16>(...)", "symm_mem", "all_reduce"),
        ("multimem_all_gather_kernel<16>(char*)", "symm_mem", "all_gather"),
        ("nvshmemi_alltoall_on_stream_kernel", "nvshmem", "all_to_all"),
        ("nvshmemi_barrier_all_kernel", "nvshmem", "barrier"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(...)", "custom_all_reduce", "all_reduce"),
        ("mscclKernel_Sum_half_Simple(ncclDevComm*)", "msccl", None),
        ("void userbuffers_fp16_sum_inplace_gpu_rw_ag<4>(...)", "userbuffers", "all_gather"),
        ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<4>(...)", "userbuffers", "reduce_scatter"),
        ("kuserbuffers_pushsend(int*)", "userbuffers", None),
    ],
)  # fmt: skip
def test_communication(name, library, op):
    assert OURS.classify(name) == Kind("communication", op, library)


@pytest.mark.parametrize(
    "name",
    [
        "my_fused_gemm_allreduce<4>",
        "triton_allgather_ring_0",
        "my_rdma_put",
        "p2p_send_kernel",
        "fooNcclThing",
        "triton_one_sided_allreduce_fused",
    ],
)
def test_what_merely_looks_like_it_is_no_known_communication(name):
    assert OURS.classify(name).what == "lookalike"


@pytest.mark.parametrize(
    "name",
    [
        "sm90_xmma_gemm_f32f32",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
        "void at::native::_scatter_gather_elementwise_kernel<128, 8>",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
        "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*, int*, bool*)",
        "void uccl::internode::get_dispatch_layout<256>(long const*)",
        "triton_red_fused_all_sum_0",
        "triton_poi_fused_all_reduce_add_0",
        "triton_red_fused__to_copy_wait_tensor_all_gather_into_tensor_3",
        "triton_per_fused_reduce_scatter_tensor_1",
        "triton_tem_fused_mm_all_gather_2",
        "void at::native::vectorized_elementwise_kernel<4, FillFunctor<c10::BFloat16>>",
    ],
)
def test_compute(name):
    assert OURS.classify(name).what == "compute"


def test_a_users_table_is_asked_first(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text("[[kernel]]\npattern = '^ncclDevKernel_Generic'\nlibrary = 'mine'\nop = 'all_gather'\n")
    table = load_table(mine)
    assert table.classify("ncclDevKernel_Generic(x)") == Kind("communication", "all_gather", "mine")
    assert table.classify("ncclDevKernel_AllReduce_x").op == "all_reduce"
    assert table.digest != OURS.digest
    assert load_table().digest == OURS.digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pattern = ", "is not TOML"),
        ("[kernels]\na = 1", "holds kernels"),
        ("", "no [[kernel]] entries"),
        ("[[kernel]]\nlibrary = 'x'", "entry 1: pattern is missing"),
        ("[[kernel]]\npattern = '('", "no regular expression"),
        ("[[kernel]]\npattern = 1", "pattern must be text"),
        ("[[kernel]]\npattern = 'a'\nop = 'all_together'", "op = 'all_together' is none of"),
        ("[[kernel]]\npattern = 'a'\nwhat = 'magic'", "what = 'magic' is none of"),
        ("[[kernel]]\npattern = 'a'\nname = 'x'", "unknown key name"),
        ("kernel = 3", "no [[kernel]] entries"),
        ("kernel = " + "[" * 100_000, "is not TOML"),
    ],
    ids=lambda value: value[:20],
)
def test_a_malformed_table_is_one_line(tmp_path, text, said):
    mine = tmp_path / "mine.toml"
    mine.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_table(mine)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert "mine.toml" in caught.value.message


def test_a_missing_table_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        load_table(tmp_path / "none.toml")
