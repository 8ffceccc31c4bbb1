"""Programs of the kinds that people write for GPUs: each is recorded as the rank that is played."""

from __future__ import annotations

import copy
import itertools
import logging
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional as functional
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from shardtoll.ledger import Ledger, UsageError
from shardtoll.profiler.dryrun.device import values
from shardtoll.profiler.dryrun.run import dry
from tests.dry_runs import options, recorded

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


def bytes_of(ledger: Ledger, category: str) -> int:
    rows = ledger.tables["dry_storages"].to_pylist()
    return sum(row["bytes"] for row in rows if row["category"] == category and row["freed"] is None)


def sent(ledger: Ledger) -> Counter[str]:
    return Counter(row["op"] for row in ledger.tables["collectives"].to_pylist())


def trained(model: nn.Module, steps: int = 2, **optimizer: Any) -> None:
    adam = torch.optim.AdamW(model.parameters(), **optimizer)
    for _ in range(steps):
        model(torch.randn(4, 16, device="cuda")).square().mean().backward()
        adam.step()
        adam.zero_grad()


class Buffered(nn.Module):
    """A linear layer with a buffer, both made on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16, bias=False)
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


def test_a_model_of_the_host_moves_when_fsdp2_shards_it() -> None:
    def train() -> None:
        dist.init_process_group("nccl")
        model = Buffered()
        fully_shard(model)
        trained(model)

    ledger = recorded(train, world=4)
    assert sent(ledger) == {"all_gather": 1, "reduce_scatter": 1}
    # A quarter of 16 x 16 floats, and Adam's two moments of it; each moment has a counter of steps.
    assert bytes_of(ledger, "parameter") == 256
    assert 512 <= bytes_of(ledger, "optimizer") <= 512 + 8
    assert not [text for text in ledger.tables["notices"]["text"].to_pylist() if "on the host" in text]


def test_parameters_that_stay_on_the_host_are_listed() -> None:
    def train() -> None:
        model = nn.Linear(16, 16)
        adam = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(4, 16)).square().mean().backward()
            adam.step()

    texts = recorded(train).tables["notices"]["text"].to_pylist()
    assert "2 of 2 parameters that the optimizer updates are on the host: their work has no price" in texts


@pytest.mark.parametrize("where", ["cuda", 0, torch.device("cuda", 0)], ids=str)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_a_module_moves_to_a_device_given_by_name(where: Any, dtype: torch.dtype | None) -> None:
    def train() -> None:
        model = nn.Linear(16, 16, bias=False).to(device=where, dtype=dtype)
        assert model.weight.device == torch.device("cuda", 0)
        assert model.weight.dtype == (dtype or torch.float32)
        adam = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(4, 16, device="cuda", dtype=dtype)).square().mean().backward()
            adam.step()
            adam.zero_grad()

    ledger = recorded(train)
    assert bytes_of(ledger, "parameter") == (512 if dtype else 1024)
    assert not [text for text in ledger.tables["notices"]["text"].to_pylist() if "on the host" in text]


@pytest.mark.parametrize(
    "moved",
    [
        lambda model, on_device: model.to(on_device),
        lambda model, on_device: model.to(tensor=on_device),
        lambda model, _: model.to_empty(device="cuda"),
        lambda model, _: model.to_empty(device=0),
    ],
    ids=["to a tensor", "to a tensor by name", "to_empty by name", "to_empty by number"],
)
def test_a_module_moves_to_the_device_of_a_tensor_and_as_an_empty_one(moved: Callable[..., Any]) -> None:
    def train() -> None:
        model = nn.Linear(16, 16, bias=False)
        model.register_buffer("kept", torch.zeros(2))
        model = moved(model, torch.zeros(1, device="cuda"))
        assert {each.device for each in (model.weight, model.kept)} == {torch.device("cuda", 0)}
        assert torch.zeros_like(nn.Linear(2, 2).weight, device="cuda").device.type == "cuda"
        assert torch.zeros_like(nn.Linear(2, 2).weight).device.type == "cpu"
        adam = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(4, 16, device="cuda")).square().mean().backward()
            adam.step()
            adam.zero_grad()

    ledger = recorded(train)
    assert bytes_of(ledger, "parameter") == 1024
    assert not [text for text in ledger.tables["notices"]["text"].to_pylist() if "on the host" in text]


def test_a_step_without_work_on_the_gpu_is_refused_in_one_line() -> None:
    def train() -> None:
        weight = torch.ones(16, requires_grad=True)
        sgd = torch.optim.SGD([weight], lr=0.1)
        for _ in range(2):
            weight.square().mean().backward()
            sgd.step()

    with dry(options()) as run:
        train()
        run.settle()
        with pytest.raises(UsageError, match="the program does nothing on a GPU in the recorded step"):
            run.refuse_idle("the program")


def test_sharded_parameters_are_drawn_and_told_apart_by_address() -> None:
    addresses: list[int] = []

    def train() -> None:
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        model.to_empty(device="cuda")
        for layer in (model[0], model[2]):
            layer.reset_parameters()
        parameters = list(model.parameters())
        assert all(isinstance(each, DTensor) for each in parameters)
        addresses.extend(each.data_ptr() for each in parameters)
        trained(model)

    ledger = recorded(train, world=4)
    assert len(set(addresses)) == 4
    assert 0 not in addresses
    assert sent(ledger)["all_reduce"] == 1


def test_tensors_of_different_storages_share_no_address() -> None:
    ranges: list[tuple[int, int]] = []

    def train() -> None:
        many = [torch.empty(1 << 20, device="cuda") for _ in range(40)]
        here = torch.ones(4)
        ranges.append((here.data_ptr(), here.data_ptr() + here.nbytes))
        for tensor in many:
            first, after = tensor.data_ptr(), tensor[1 << 19 :].data_ptr()
            assert after - first == 4 << 19
            assert tensor.view(4, -1).data_ptr() == tensor.detach().data_ptr() == first
            ranges.append((first, first + tensor.nbytes))
        gone = many.pop().data_ptr()
        del tensor
        assert torch.empty(1 << 20, device="cuda").data_ptr() not in (gone, 0)
        trained(nn.Linear(16, 16).cuda())

    recorded(train)
    ranges.sort()
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))


@pytest.mark.parametrize("views", [False, True])
def test_memory_of_ddp_is_that_of_modules_and_lines(views: bool) -> None:
    def train() -> None:
        dist.init_process_group("nccl")
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(3))).cuda()
        wrapped = DDP(model, gradient_as_bucket_view=views)
        adam = torch.optim.AdamW(wrapped.parameters())
        for _ in range(2):
            wrapped(torch.randn(4, 64, device="cuda")).square().mean().backward()
            adam.step()

    rows = recorded(train, world=4).tables["dry_storages"].to_pylist()
    large = [row for row in rows if row["bytes"] >= 4 * 64 * 64 and row["freed"] is None]
    assert all("test_dryrun_programs.py:" in row["source"] for row in large)
    weights = [f"{place}.weight" for place in range(3)]
    for category, times in (("parameter", 1), ("optimizer", 2), ("gradient", 0 if views else 1)):
        those = [row for row in large if row["category"] == category and row["bytes"] == 4 * 64 * 64]
        assert sorted(row["parameter"] for row in those) == sorted(weights * times)
        assert all(row["module"] == row["parameter"][0] for row in those)
    # One bucket of all three; the one before it is gone, as DDP has ordered its buckets.
    (bucket,) = [row for row in large if row["bytes"] == 3 * 4 * 64 * 64]
    assert (bucket["category"], bucket["module"]) == ("gradient" if views else "communication", "")
    assert bucket["parameter"].endswith(".weight, ... (3 parameters)")


def _spawned(rank: int, world: int, ranks: list[int]) -> None:
    ranks.append(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.cuda.set_device(rank)
    trained(DDP(nn.Linear(16, 16).to(rank), device_ids=[rank]))


def test_of_processes_that_would_be_spawned_one_runs_here() -> None:
    ranks: list[int] = []

    def started() -> None:
        context = mp.spawn(_spawned, args=(4, ranks), nprocs=4, join=False)
        while not context.join():
            pass

    ledger = recorded(started, world=4, rank=2)
    assert ranks == [2]
    assert sent(ledger) == {"all_reduce": 1}


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"world_size": 8, "rank": 0}, r"init_process_group\(world_size=8\), but --world is 4"),
        ({"world_size": 4, "rank": 3}, r"init_process_group\(rank=3\), but --rank is 0"),
    ],
)
def test_a_job_of_another_size_is_refused(asked: dict[str, int], pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern), dry(options(4)):
        dist.init_process_group("nccl", **asked)


def test_amp_checkpointing_and_a_scaler_in_compiled_blocks() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(lambda y: self.linear(y).relu(), x, use_reentrant=False)

    def train() -> None:
        dist.init_process_group("nccl")
        model = DDP(torch.compile(nn.Sequential(Block(), Block()).cuda()))
        adam = torch.optim.AdamW(model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(2):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(4, 16, device="cuda")).float().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(adam)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(adam)
            scaler.update()

    ledger = recorded(train, world=2)
    ops = ledger.tables["dry_ops"].to_pylist()
    products = Counter((op["phase"], op["dtype"]) for op in ops if op["kind"] == "gemm")
    # Two blocks: forward and again in backward, and two products each to go back, one less for the input.
    assert products == {("forward", "float16"): 2, ("recompute", "float16"): 2, ("backward", "float16"): 3}
    assert any(op["fused"] is not None for op in ops)
    assert sent(ledger) == {"all_reduce": 1}


def test_experts_get_an_even_share_of_the_tokens() -> None:
    class Experts(nn.Module):
        def __init__(self, ranks: int) -> None:
            super().__init__()
            self.ranks = ranks
            self.gate = nn.Linear(16, ranks, bias=False)
            self.expert = nn.Linear(16, 16, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            chosen = self.gate(x).argmax(-1)
            counts = torch.bincount(chosen, minlength=self.ranks)
            there = torch.empty_like(counts)
            dist.all_to_all_single(there, counts)
            gives, gets = counts.tolist(), there.tolist()
            rows = functional.all_to_all_single(x.new_empty(sum(gets), 16), x[chosen.argsort()], gets, gives)
            return self.expert(rows)

    def train() -> None:
        dist.init_process_group("nccl")
        model = Experts(4).cuda()
        adam = torch.optim.AdamW(model.expert.parameters())
        for _ in range(2):
            model(torch.randn(32, 16, device="cuda", requires_grad=True)).mean().backward()
            adam.step()

    rows = recorded(train, world=4).tables["collectives"].to_pylist()
    # Counts of 8 bytes, then 32 tokens of 16 floats there and back again.
    assert [(row["op"], row["message_bytes"]) for row in rows] == [
        ("all_to_all", 32),
        ("all_to_all", 32 * 16 * 4),
        ("all_to_all", 32 * 16 * 4),
    ]


def test_one_step_is_recorded_if_there_is_no_second() -> None:
    def train(steps: int) -> Ledger:
        def program() -> None:
            dist.init_process_group("nccl")
            trained(DDP(nn.Linear(16, 16).cuda()), steps)

        return recorded(program, world=2)

    one, two = train(1), train(2)
    assert sent(one) == sent(two) == {"all_reduce": 1}
    assert one.tables["notices"]["kind"].to_pylist()[0] == "dry-only-first"
    assert "dry-only-first" not in two.tables["notices"]["kind"].to_pylist()
    flops = [sum(ledger.tables["dry_ops"]["flops"].to_pylist()) for ledger in (one, two)]
    assert flops[0] == flops[1] == 2 * 2 * 4 * 16 * 16
    # The state is born in the one step, and was there before the second.
    born = [
        {row["step"] for row in ledger.tables["dry_storages"].to_pylist() if row["category"] == "optimizer"}
        for ledger in (one, two)
    ]
    assert born == [{0}, {None}]


def test_fewer_steps_than_asked_for_are_kept() -> None:
    ledger = recorded(lambda: trained(nn.Linear(16, 16).cuda(), 3), steps=5)
    assert set(ledger.tables["dry_ops"]["step"].to_pylist()) == {0, 1}


def test_a_pipeline_stage_sends_on_what_it_makes() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    def train() -> None:
        dist.init_process_group("nccl")
        stage_model = nn.Linear(16, 16).cuda()
        micro = torch.randn(2, 16, device="cuda")
        stage = PipelineStage(stage_model, 0, 2, torch.device("cuda", 0), input_args=(micro,))
        schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        adam = torch.optim.AdamW(stage_model.parameters())
        for _ in range(2):
            schedule.step(torch.randn(8, 16, device="cuda"))
            adam.step()
            adam.zero_grad()

    rows = recorded(train, world=2).tables["collectives"].to_pylist()
    assert Counter((row["op"], row["message_bytes"]) for row in rows) == {
        ("send", 2 * 16 * 4): 4,
        ("recv", 2 * 16 * 4): 4,
    }


def test_objects_that_no_other_rank_sends_are_listed_with_their_line() -> None:
    def train() -> None:
        dist.init_process_group("nccl")
        sizes = [None]
        dist.recv_object_list(sizes, src=0)
        assert sizes == [None]
        dist.send_object_list([7], dst=0)
        dist.recv_object_list(sizes, src=0)
        assert sizes == [7]
        dist.broadcast_object_list([3], src=1)
        dist.broadcast_object_list([None], src=0)
        trained(nn.Linear(16, 16).cuda())

    texts = recorded(train, world=2, rank=1).tables["notices"]["text"].to_pylist()
    listed = [text for text in texts if "object_list" in text]
    assert [text.partition(", at ")[0] for text in listed] == [
        "broadcast_object_list left the list as it was, as no other rank runs, 1 time",
        "recv_object_list gave what this rank sent last, as no other rank runs, 1 time",
        "recv_object_list left the list as it was, as no other rank runs, 1 time",
    ]
    assert all("test_dryrun_programs.py:" in text for text in listed)


def test_waiting_forever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_MOST_ANSWERS", 20)

    def wait() -> None:
        value = torch.zeros(1, device="cuda")
        while not value:
            pass

    with pytest.raises(UsageError, match="without an optimizer step"):
        recorded(wait)


class Picky(nn.Module):
    """A layer in another module that asks for 15 values at each call, and refuses batches of one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 1:
            raise ValueError("a batch of one")
        y: torch.Tensor = self.inner(x)
        for place in range(15):
            y[0, place].item()
        return y


def test_a_bounded_evaluation_may_ask_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_MOST_ANSWERS", 20)

    def train() -> None:
        model = Picky().cuda()
        with torch.no_grad():
            model.eval()
            with pytest.raises(ValueError, match="a batch of one"):
                model(torch.randn(1, 16, device="cuda"))
            for _ in range(15):
                model(torch.randn(4, 16, device="cuda"))
            model.train()
        trained(model, steps=10)

    assert sum(recorded(train, steps=8).frame("notices")["text"].str.contains("item()", regex=False)) == 1


def test_forwards_without_a_step_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_MOST_ANSWERS", 20)
    calls: list[int] = []

    def wait() -> None:
        model = Picky().cuda()
        while model(torch.randn(4, 16, device="cuda")).sum().item() < 1:
            calls.append(1)

    with pytest.raises(UsageError, match="in 20 forwards without an optimizer step"):
        recorded(wait)
    assert len(calls) == 20


def test_a_number_that_ranks_sum_with_a_functional_collective_is_unknown() -> None:
    asked: list[float] = []

    def train() -> None:
        dist.init_process_group("nccl")
        model = nn.Linear(16, 16, device="cuda")
        adam = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            count = funcol.all_reduce(torch.tensor(3.0, device="cuda"), "sum", dist.group.WORLD)
            asked.append(funcol.wait_tensor(count).item())
            model(torch.randn(4, 16, device="cuda")).square().mean().backward()
            adam.step()
            adam.zero_grad()

    ledger = recorded(train, 4, policy=values.policy_of("7"))
    assert asked == [7.0, 7.0]
    assert sent(ledger) == Counter({"all_reduce": 1})


@pytest.mark.parametrize("batch", ["cpu", "cuda"])
def test_data_parallel_over_one_gpu(batch: str) -> None:
    def train() -> None:
        model = nn.DataParallel(nn.Linear(16, 16)).cuda()
        adam = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(4, 16, device=batch)).square().mean().backward()
            adam.step()

    ops = Counter(row["op"] for row in recorded(train).tables["dry_ops"].to_pylist())
    assert ops["aten.addmm.default"] == 1
    assert ops["memcpy.to_device"] == (batch == "cpu")


def test_data_parallel_over_several_gpus_says_what_to_do() -> None:
    def train() -> None:
        dist.init_process_group("nccl")
        model = nn.DataParallel(nn.Linear(16, 16)).cuda()
        model(torch.randn(4, 16, device="cuda"))

    with pytest.raises(NotImplementedError, match="use DistributedDataParallel"):
        recorded(train, world=4)


def test_a_mistake_of_the_program_is_not_logged_by_torch(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError, match="k not in range"):
        recorded(lambda: torch.randn(4, 4, device="cuda").topk(5))
    assert not caplog.records
    assert not logging.getLogger("torch._subclasses.fake_tensor").disabled


def test_no_other_rank_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    def train() -> None:
        dist.init_process_group("nccl")
        trained(nn.Linear(16, 16).cuda())

    assert recorded(train, world=4).run.backend == "fake"
    assert not caplog.records


def test_ranks_meet_in_the_store_and_keep_values_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DIST_INIT_BARRIER", "1")
    kept: list[bytes] = []

    def train() -> None:
        dist.init_process_group("nccl")
        dist.new_group([0, 1])
        store = vars(dist.distributed_c10d)["_get_default_store"]()
        store.set("port", "29500")
        kept.append(store.get("port"))
        trained(nn.Linear(16, 16).cuda())

    recorded(train, world=4)
    assert kept == [b"29500"]


@pytest.mark.parametrize("asked", [None, "nccl", "cpu:gloo,cuda:nccl", "gloo"])
def test_a_group_has_the_backend_that_the_program_asked_for(asked: str | None) -> None:
    seen: list[str] = []

    def train() -> None:
        dist.init_process_group(*[] if asked is None else [asked])
        other = dist.new_group([0, 1])
        host = dist.new_group([0, 1], backend="gloo")
        seen.extend(map(dist.get_backend, (None, dist.group.WORLD, other, host)))
        trained(nn.Linear(16, 16).cuda())

    recorded(train, world=4)
    whole = asked or "undefined"
    assert seen == [whole, whole, whole, "gloo"]


def test_a_group_that_is_not_there_has_no_backend() -> None:
    def train() -> None:
        with pytest.raises(ValueError, match="process group has not been initialized"):
            dist.get_backend()
        dist.init_process_group("gloo")
        ours, others = dist.new_group([0, 1], backend="nccl"), dist.new_group([2, 3])
        assert dist.get_backend(ours) == "nccl"
        with pytest.raises(ValueError, match="Invalid process group"):
            dist.get_backend(others)
        dist.destroy_process_group()
        for group in (None, ours):
            with pytest.raises(ValueError, match=r"process group|Process group"):
                dist.get_backend(group)
        dist.init_process_group("nccl")
        assert dist.get_backend() == "nccl"
        trained(nn.Linear(16, 16).cuda())

    recorded(train, world=4)


def test_the_programs_own_filters_of_warnings_stay() -> None:
    message = "Accessing the data pointer of FakeTensor"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=message)
        warnings.filterwarnings("error", category=BytesWarning)
        before = list(warnings.filters)
        recorded(lambda: trained(nn.Linear(16, 16).cuda()))
        assert list(warnings.filters) == before


def test_hosts_meet_in_a_monitored_barrier() -> None:
    def train() -> None:
        dist.init_process_group("nccl")
        group = dist.new_group(backend="gloo")
        dist.monitored_barrier(group)
        group.monitored_barrier()
        trained(nn.Linear(16, 16).cuda())

    assert not sent(recorded(train, world=4))


def test_weights_loaded_into_the_class_of_a_parameter_make_one() -> None:
    def train() -> None:
        model = nn.Linear(16, 16, bias=False)
        before = model.weight
        model._parameters["weight"] = type(before)(torch.randn(16, 16), requires_grad=False)
        assert isinstance(model.weight, nn.Parameter)
        assert not model.weight.requires_grad
        model.weight.requires_grad_()
        trained(model.cuda())

    assert bytes_of(recorded(train), "parameter") == 1024


def test_copying_a_model_warns_of_nothing_in_torch() -> None:
    def train() -> None:
        copy.deepcopy(nn.Linear(16, 16))
        trained(nn.Linear(16, 16).cuda())

    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            before = list(warnings.filters)
            recorded(train)
            assert list(warnings.filters) == before
    finally:
        torch.set_warn_always(always)
    assert not [each for each in caught if "data pointer" in str(each.message)]


def test_a_checkpoint_saved_meanwhile_is_done_at_once() -> None:
    done: list[object] = []

    def train() -> None:
        dist.init_process_group("nccl")
        model = nn.Linear(16, 16).cuda()
        dcp.async_save(model.state_dict(), checkpoint_id="there").add_done_callback(done.append)
        trained(model)

    texts = recorded(train, world=4).tables["notices"]["text"].to_pylist()
    assert len(done) == 1
    assert any("a distributed checkpoint" in text for text in texts)


def operators(ledger: Ledger) -> Counter[str]:
    return Counter(row["op"] for row in ledger.tables["dry_ops"].to_pylist())


@pytest.mark.parametrize("how", ["by torch", "itself"])
def test_an_optimizer_that_makes_its_state_before_training_has_not_stepped(how: str) -> None:
    def train() -> None:
        model = nn.Linear(16, 16).cuda()
        adam = torch.optim.AdamW(model.parameters())
        if how == "by torch":
            get_optimizer_state_dict(model, adam)
        else:
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            adam.step()
            adam.zero_grad()
        for _ in range(2):
            model(torch.randn(4, 16, device="cuda")).square().mean().backward()
            adam.step()
            adam.zero_grad()

    seen = recorded(train)
    assert operators(seen)["aten.addmm.default"] == 1
    assert {row["module"] for row in seen.tables["dry_ops"].to_pylist() if row["phase"] == "forward"} >= {""}
