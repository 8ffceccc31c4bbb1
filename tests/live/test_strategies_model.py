"""Strategies that spread the model: the ledger against closed forms of every collective of a step.

A closed form here is the whole bill of a rank in order: phase, op, bytes, mesh dimension, module, cause and
placements of every collective, and nothing beside them.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from shardtoll.ledger.records.volume import wire_bytes
from shardtoll.ledger.records.work import kind_of_work
from shardtoll.samples.strategies import (
    common,
    compiled,
    context_parallel,
    expert_parallel,
    pipeline,
    point_to_point,
    tensor_parallel,
    three_d,
    transformer,
    two_d,
)
from shardtoll.samples.strategies.transformer import Sizes
from tests.live import strategy_programs_model as programs
from tests.live.abilities import BATCHED_FUNCTIONAL_MESSAGES, STAGES_NEXT_TO_EACH_OTHER
from tests.live.coverage import covered
from tests.live.launch import run_ranks

pytestmark = [pytest.mark.live, pytest.mark.timeout(110)]
LIMIT_S = 100.0

SIZES = {"layers": 2, "dim": 32, "heads": 4, "hidden": 64, "vocab": 64, "context": 8}
S = Sizes(**SIZES)
SEQUENCES = common.Options().sequences
FLOAT = 4
ACTIVATIONS = FLOAT * SEQUENCES * S.context * S.dim
LOGITS = FLOAT * SEQUENCES * S.context * S.vocab
NORM = FLOAT * S.dim

Row = tuple[Any, ...]
PARTIAL, WHOLE, BY_TOKENS = "(Partial(sum))", "(Replicate())", "(Shard(1))"


def line_of(module: ModuleType, text: str, nth: int = 0) -> str:
    """The ledger's word for the line of a sample that holds `text`: file, line and function."""
    lines = inspect.getsource(module).splitlines()
    numbers = [number for number, line in enumerate(lines, 1) if text in line]
    number = numbers[nth]
    functions = [line.split("def ")[1].split("(")[0] for line in lines[:number] if "def " in line]
    return f"samples/strategies/{module.__name__.rpartition('.')[2]}.py:{number} ({functions[-1]})"


_runs: dict[str, list[Any]] = {}


def results(
    program: Callable[..., Any], world: int, sizes: dict[str, int] = SIZES, **kwargs: Any
) -> list[Any]:
    """What the ranks of a program return; several tests read the same run."""
    key = f"{program.__name__} {world} {sizes} {kwargs}"
    if key not in _runs:
        _runs[key] = run_ranks(program, world, sizes, limit_s=LIMIT_S, **kwargs)
    return _runs[key]


def bill(found: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    return [c for c in found["collectives"] if c["rank"] == rank]


def check_accounting(found: dict[str, Any], world: int) -> None:
    """Conservation, completeness, wire bytes, times: true of every strategy."""
    parts = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "unattributed_ns")
    assert len(found["steps"]) == programs.LAST * world
    for step in found["steps"]:
        assert sum(step[part] for part in parts) == step["duration_ns"]
        own = [
            c["exposed_ns"]
            for c in found["all_collectives"]
            if (c["step"], c["rank"]) == (step["step"], step["rank"])
        ]
        assert sum(own) == step["exposed_comm_ns"]
    for count in found["counts"]:
        assert count["issued"] == count["recorded"], count
    for c in found["collectives"]:
        assert c["op"] == "all_to_all" or c["wire_bytes"] == wire_bytes(
            c["op"], c["message_bytes"], c["group_size"]
        )
        assert len(found["groups"][c["group"]]) == c["group_size"]
        assert c["rank"] in found["groups"][c["group"]]
        assert c["source"] is not None
    assert not found["notices"]
    assert "unmatched-collectives" not in found["kinds"]


def row(c: dict[str, Any]) -> Row:
    return (
        c["phase"],
        c["op"],
        c["message_bytes"],
        c["mesh_dim"],
        c["module"],
        c["caused_by_op"],
        c["placements_from"],
        c["placements_to"],
        c["implicit"],
    )


# -- tensor and sequence parallelism ---------------------------------------------------------------


def reduced(phase: str, module: str, cause: str, size: int = ACTIVATIONS) -> Row:
    return (phase, "all_reduce", size, "tp", module, cause, PARTIAL, WHOLE, False)


def scattered(phase: str, module: str, cause: str) -> Row:
    return (phase, "reduce_scatter", ACTIVATIONS, "tp", module, cause, PARTIAL, BY_TOKENS, False)


def gathered(phase: str, module: str, cause: str) -> Row:
    return (phase, "all_gather", ACTIVATIONS, "tp", module, cause, BY_TOKENS, WHOLE, False)


def layers(backward: bool = False) -> Iterable[str]:
    names = [f"blocks.{layer}" for layer in range(S.layers)]
    return reversed(names) if backward else names


def tensor_rows(*, once: bool) -> tuple[list[Row], list[Row]]:
    """Forward and backward of the blocks; `once`: attention's input is distributed once."""
    forward, backward = [], []
    for block in layers():
        forward += [reduced("forward", f"{block}.attention.wo", "RowwiseParallel")]
        forward += [reduced("forward", f"{block}.ffn.down", "RowwiseParallel")]
    for block in layers(backward=True):
        backward += [reduced("backward", f"{block}.ffn.up", "ColwiseParallel")]
        if once:
            backward += [reduced("backward", f"{block}.attention", "PrepareModuleInput")]
        else:
            for name in ("wv", "wk", "wq"):
                backward += [reduced("backward", f"{block}.attention.{name}", "ColwiseParallel")]
    return forward, backward


def sequence_rows() -> tuple[list[Row], list[Row]]:
    embedding = reduced("forward", "embed", "RowwiseParallel")
    forward = [(*embedding[:6], "(MaskPartial(sum))", WHOLE, False)]
    backward = [scattered("backward", "head", "ColwiseParallel")]
    for block in layers():
        for part, last in (("attention", "wo"), ("ffn", "down")):
            forward += [gathered("forward", f"{block}.{part}", "PrepareModuleInput")]
            forward += [scattered("forward", f"{block}.{part}.{last}", "RowwiseParallel")]
    for block in layers(backward=True):
        for part, last in (("ffn", "down"), ("attention", "wo")):
            backward += [gathered("backward", f"{block}.{part}.{last}", "RowwiseParallel")]
            backward += [scattered("backward", f"{block}.{part}", "PrepareModuleInput")]
    forward += [gathered("forward", "head", "ColwiseParallel")]
    whole = ("forward", "all_gather", LOGITS, "tp", "head", "PrepareModuleOutput", "(Shard(2))", WHOLE, False)
    backward += [gathered("backward", "blocks.0", "PrepareModuleInput")]
    return [*forward, whole], backward


NORMS = [f"blocks.{layer}.{name}_norm" for layer in range(S.layers) for name in ("attention", "ffn")] + [
    "norm"
]
TP_LINES = {
    "attention.wo": line_of(transformer, "self.wo("),
    "attention.wq": line_of(transformer, "in (self.wq(x)"),
    "attention.wk": line_of(transformer, "in (self.wq(x)"),
    "attention.wv": line_of(transformer, "in (self.wq(x)"),
    "ffn.up": line_of(transformer, "self.down(silu("),
    "ffn.down": line_of(transformer, "self.down(silu("),
    "attention": line_of(transformer, "x = x + self.attention("),
    "ffn": line_of(transformer, "x + self.ffn("),
    "": line_of(transformer, "x = block(x)"),
    "embed": line_of(transformer, "x = self.embed(x)"),
    "head": line_of(transformer, "x = self.head(x)"),
}


def tp_line(module: str) -> str:
    inside = module.partition("blocks.")[2].partition(".")[2] if module.startswith("blocks.") else module
    return TP_LINES[inside]


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("variant", list(tensor_parallel.VARIANTS))
def test_tensor_parallel(variant: str, world: int, request: pytest.FixtureRequest) -> None:
    ranks = results(programs.tensor_parallel, world)
    found = ranks[0][variant]
    check_accounting(found, world)
    assert found["mesh"] == {"tp": world}
    once = variant == "prepared"
    forward, backward = sequence_rows() if variant == "sequence" else tensor_rows(once=once)
    optimizer: list[Row] = []
    if variant == "loss":
        loss = ("forward", "all_reduce", FLOAT * SEQUENCES * S.context, "tp", None, "loss_parallel")
        forward += 3 * [(*loss, None, None, False)]
        backward.insert(0, reduced("backward", "head", "ColwiseParallel"))
    if variant == "sequence":
        optimizer = [
            ("optimizer", "all_reduce", NORM, "tp", norm, "aten.add_.Tensor", PARTIAL, WHOLE, True)
            for norm in NORMS
        ]
    for rank in range(world):
        mine = bill(found, rank)
        assert [row(c) for c in mine] == forward + backward + optimizer
        for c in mine:
            if c["phase"] == "optimizer":
                assert c["parameter"] == f"{c['module']}.weight"
                assert c["source"] == line_of(tensor_parallel, "optimizer.step()")
            else:
                assert c["parameter"] is None, "activations belong to no parameter"
                expected = line_of(transformer, "cross_entropy(") if c["module"] is None else None
                assert c["source"] == (expected or tp_line(c["module"]))
    assert ("implicit-redistribute" in found["kinds"]) == (variant == "sequence")
    for other in ranks:
        assert other[variant]["losses"] == pytest.approx(programs.one_device(programs.options(SIZES), 1))
    # CommDebugMode has its own names; the numbers must be ours.
    counted = Counter(c["op"] for c in bill(found, 0))
    theirs: Counter[str] = Counter()
    for name, count in found["torch_counts"].items():
        op = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
        theirs[op.get(name, name)] += count
    assert theirs == counted
    covered(request.config, "tensor_parallel", variant)


# -- two dimensions ----------------------------------------------------------------------------------


def fsdp_row(phase: str, op: str, size: int, module: str) -> Row:
    cause = "FSDP.unshard" if op == "all_gather" else "FSDP.post_backward"
    return (phase, op, size, "dp", module, cause, None, None, False)


@pytest.mark.parametrize("variant", list(two_d.VARIANTS))
def test_fsdp2_across_tensor_parallel(variant: str, request: pytest.FixtureRequest) -> None:
    world, tensor_ranks = 4, two_d.TENSOR_RANKS
    ranks = [both["two_d"] for both in results(programs.tensor_parallel, world)]
    found = ranks[0][variant]
    check_accounting(found, world)
    assert found["mesh"] == {"dp": 2, "tp": 2}
    norms = 2 * S.dim
    block = FLOAT * ((S.block_elements - norms) // tensor_ranks + norms)
    rest = FLOAT * S.rest_elements
    forward, backward = sequence_rows() if variant == "sequence" else tensor_rows(once=True)
    tensor = forward + backward
    if variant == "sequence":
        # The embedding and the head are sharded along tp, the last norm is not.
        rest = FLOAT * (2 * S.vocab * S.dim // tensor_ranks + S.dim)
        brought = (PARTIAL, WHOLE, False)
        for name in reversed(list(layers())):
            after = next(i for i, r in reversed(list(enumerate(tensor))) if str(r[4]).startswith(name))
            both = 2 * [("backward", "all_reduce", NORM, "tp", name, "FSDP.post_backward", *brought)]
            tensor[after + 1 : after + 1] = both
        tensor += [("backward", "all_reduce", NORM, "tp", "", "FSDP.post_backward", *brought)]
    data = [fsdp_row("forward", "all_gather", rest, "")]
    data += [fsdp_row("forward", "all_gather", block, name) for name in layers()]
    for name in layers(backward=True):
        data += [fsdp_row("backward", "all_gather", block, name)]
    scatters = [fsdp_row("backward", "reduce_scatter", block, name) for name in layers(backward=True)]
    scatters += [fsdp_row("backward", "reduce_scatter", rest, "")]
    for rank in range(world):
        mine = bill(found, rank)
        assert [row(c) for c in mine if c["mesh_dim"] == "tp"] == tensor
        assert [row(c) for c in mine if c["mesh_dim"] == "dp" and c["op"] == "all_gather"] == data
        assert [row(c) for c in mine if c["mesh_dim"] == "dp" and c["op"] != "all_gather"] == scatters
        for c in mine:
            expected = (
                [2 * (rank // 2), 2 * (rank // 2) + 1] if c["mesh_dim"] == "tp" else [rank % 2, rank % 2 + 2]
            )
            assert found["groups"][c["group"]] == expected
            if c["mesh_dim"] == "tp" and c["caused_by_op"] == "FSDP.post_backward":
                assert c["parameter"] in {f"{norm}.weight" for norm in NORMS}
            elif c["mesh_dim"] == "dp":
                first = f"{c['module']}.attention_norm.weight, ... (8 parameters)"
                whole = "embed.weight, norm.weight, head.weight"
                assert c["parameter"] == (first if c["module"] else whole)
    losses = [
        sum(pair) / 2 for pair in zip(ranks[0][variant]["losses"], ranks[2][variant]["losses"], strict=True)
    ]
    assert losses == pytest.approx(programs.one_device(programs.options(SIZES), 2), rel=1e-4)
    covered(request.config, "two_d", variant)


# -- pipelines ---------------------------------------------------------------------------------------

PIPELINE_RANKS = 4
MICROBATCHES = 2 * PIPELINE_RANKS
ONE_SEQUENCE = FLOAT * S.context * S.dim


def message(kind: str, phase: str, stage: int, schedule: str) -> Row:
    cause = f"{schedule}.{kind}_{phase}"
    return (phase, kind, ONE_SEQUENCE, "pp", f"stage{stage}", cause, None, None, False)


def gpipe_plan(rank: int, ranks: int, batches: int) -> list[tuple[str, str]]:
    first, last = rank == 0, rank == ranks - 1
    forward = [("recv", "forward")] * (not first) + [("send", "forward")] * (not last)
    backward = [("recv", "backward")] * (not last) + [("send", "backward")] * (not first)
    return batches * forward + batches * backward


def one_f_one_b_plan(rank: int, ranks: int, batches: int) -> list[tuple[str, str]]:
    """Warm up; then one backward, one forward; what goes and what comes between them travels together."""
    recv_f, send_b = [
        [(kind, phase)] * (rank > 0) for kind, phase in (("recv", "forward"), ("send", "backward"))
    ]
    send_f, recv_b = [
        [(kind, phase)] * (rank < ranks - 1) for kind, phase in (("send", "forward"), ("recv", "backward"))
    ]
    warm = ranks - rank
    plan = warm * (recv_f + send_f)
    steady = batches - warm
    plan += recv_b + steady * (send_b + recv_f + send_f + recv_b) + send_b
    return plan + (warm - 1) * (recv_b + send_b)


@pytest.mark.parametrize("variant", list(pipeline.PIPELINES))
def test_pipeline_schedules(variant: str, request: pytest.FixtureRequest) -> None:
    if variant == "zero_bubble" and not STAGES_NEXT_TO_EACH_OTHER:
        pytest.skip("this torch runs no such schedule on gloo")
    p, m, v = PIPELINE_RANKS, MICROBATCHES, pipeline.PIPELINES[variant].per_rank
    ranks = results(programs.pipelines, p, {**SIZES, "layers": 2 * p})
    found = ranks[0][variant]
    check_accounting(found, p)
    assert found["mesh"] == {"pp": p}
    kind = pipeline.PIPELINES[variant]
    home = {stage: rank for rank in range(p) for stage in kind.held(rank, p)}
    name = kind.kind.__name__
    crossings = [stage for stage in range(p * v - 1) if home[stage] != home[stage + 1]]
    assert (
        len(crossings)
        == {"gpipe": p - 1, "1f1b": p - 1, "interleaved": 2 * p - 1, "zero_bubble": 2 * p - 2}[variant]
    )
    for rank in range(p):
        mine = bill(found, rank)
        # Every boundary that this rank is at is crossed once a micro-batch, each way.
        expected = Counter[Row]()
        for stage in crossings:
            for end, one, other in ((stage, "send", "recv"), (stage + 1, "recv", "send")):
                if home[end] == rank:
                    expected[message(one, "forward", end, name)] += m
                    expected[message(other, "backward", end, name)] += m
        assert Counter(row(c) for c in mine) == expected
        if v == 1:
            plan = (gpipe_plan if variant == "gpipe" else one_f_one_b_plan)(rank, p, m)
            assert [(c["op"], c["phase"]) for c in mine] == plan
        else:
            words = {"F": "forward", "B": "backward"}
            planned = [
                (action[:4].lower(), words[action[-1]], f"stage{stage}")
                for action, stage in ranks[rank][variant]["planned"]
                if action.startswith(("SEND", "RECV"))
            ]
            assert [(c["op"], c["phase"], c["module"]) for c in mine] == planned
        for c in mine:
            stage = int(c["module"].removeprefix("stage"))
            onwards = (c["op"] == "send") == (c["phase"] == "forward")
            assert c["root"] == home[stage + 1 if onwards else stage - 1]
            last = home[p * v - 1] == rank
            assert c["source"] == line_of(pipeline, "schedule.step(*inputs", nth=0 if last else 1)
            assert c["parameter"] is None
    bubble = {
        "gpipe": (p - 1) / (m + p - 1),
        "1f1b": (p - 1) / (m + p - 1),
        "interleaved": (p - 1) / (v * m + p - 1),
        "zero_bubble": (p - 1) / (6 * m + p - 1),
    }
    assert found["ideal"] == pytest.approx(bubble[variant])
    if variant == "1f1b":
        assert found["last_forwards"] == list(range(1, m + 1)), "torch numbers from 0 now: see actions_of"
    losses = ranks[home[p * v - 1]][variant]["losses"]
    alone = replace(programs.options({**SIZES, "layers": 2 * p}), sequences=m)
    assert losses == pytest.approx(programs.one_device(alone, 1), rel=1e-4)
    covered(request.config, "pipeline", variant)


def test_the_bubble_that_is_measured_is_the_one_the_schedule_has() -> None:
    ranks = PIPELINE_RANKS
    found = results(programs.pipelines, ranks, {**SIZES, "layers": 2 * ranks})[0]["sleeping"]
    assert found["ideal"] == pytest.approx((ranks - 1) / (2 * ranks - 1))
    for share in found["measured"]:
        # Stages that sleep need no core, so a busy machine adds to the wait and takes nothing away.
        assert found["ideal"] - 0.1 < share < 1


# -- context parallelism -----------------------------------------------------------------------------


def attention_row(phase: str, op: str, size: int, layer: str, cause: str) -> Row:
    return (phase, op, size, "cp", f"{layer}.attention", f"funcol.{cause}", None, None, False)


def check_gradients_reduced(c: dict[str, Any], dim: str, size: int) -> None:
    """The one all_reduce of DDP at the end of a step."""
    told = (c["phase"], c["op"], c["mesh_dim"], c["message_bytes"], c["caused_by_op"], c["implicit"])
    assert told == ("backward", "all_reduce", dim, size, "DistributedDataParallel.reducer", False)


@pytest.mark.parametrize("variant", ["ulysses", "gather"])
def test_context_parallel(variant: str, request: pytest.FixtureRequest) -> None:
    world = 4
    ranks = results(programs.contexts, world)
    found = ranks[0][variant]
    check_accounting(found, world)
    assert found["mesh"] == {"cp": world}
    own = ACTIVATIONS // world
    forward, backward = [], []
    for layer in layers():
        if variant == "ulysses":
            forward += [
                attention_row("forward", "all_to_all", size, layer, "all_to_all_single_autograd")
                for size in (3 * own, own)
            ]
        else:
            forward += [
                attention_row(
                    "forward", "all_gather", 2 * ACTIVATIONS, layer, context_parallel.all_gather.__name__
                )
            ]
    for layer in layers(backward=True):
        if variant == "ulysses":
            backward += [
                attention_row("backward", "all_to_all", size, layer, "all_to_all_single_autograd")
                for size in (own, 3 * own)
            ]
        else:
            backward += [
                attention_row(
                    "backward", "reduce_scatter", 2 * ACTIVATIONS, layer, context_parallel.all_gather.__name__
                )
            ]
    called = "functional.all_to_all_single_autograd(" if variant == "ulysses" else "= all_gather("
    for rank in range(world):
        *mine, gradients = bill(found, rank)
        assert [row(c) for c in mine] == forward + backward
        assert {c["source"] for c in mine} == {line_of(context_parallel, called)}
        assert {c["wire_bytes"] for c in mine} == {c["message_bytes"] * (world - 1) // world for c in mine}
        check_gradients_reduced(gradients, "cp", FLOAT * S.elements)
    losses = [sum(each) / world for each in zip(*(r[variant]["losses"] for r in ranks), strict=True)]
    assert losses == pytest.approx(programs.one_device(programs.options(SIZES), 1), rel=1e-4)
    covered(request.config, "context_parallel", variant)


def test_ring_attention_of_torch(request: pytest.FixtureRequest) -> None:
    """On the CPU torch refuses it by its public name; its own ring below that is captured exactly."""
    world = 4
    found = results(programs.contexts, world)
    for told in found:
        text = told["refused"]["text"]
        assert "_scaled_dot_product_flash_attention_for_cpu" in text, "torch has a ring for the CPU now"
        assert "does not have a sharding strategy" in text
    both = 2 * FLOAT * (2 * 4 * 8 * 8)
    for rank in range(world):
        (gathered_once,) = [c for c in found[0]["allgather"]["collectives"] if c["rank"] == rank]
        assert (gathered_once["op"], gathered_once["message_bytes"]) == ("all_gather", world * both)
        turns = [c for c in found[0]["alltoall"]["collectives"] if c["rank"] == rank]
        assert [(c["op"], c["message_bytes"], c["wire_bytes"]) for c in turns] == (world - 1) * [
            ("all_to_all", both, both)
        ]
        assert {c["caused_by_op"] for c in turns} == {"funcol.permute_tensor"}
    for method in ("allgather", "alltoall"):
        for count in found[0][method]["counts"]:
            assert count["issued"] == count["recorded"]
    limit = (
        "torch 2.13 has no `context_parallel` on the CPU; its ring, called directly, is captured in forward"
    )
    covered(request.config, "context_parallel", "ring", {"cause": limit, "phase": limit})


# -- expert parallelism ------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", list(expert_parallel.VARIANTS))
def test_expert_parallel(variant: str, request: pytest.FixtureRequest) -> None:
    world = 4
    ranks = results(programs.experts, world)
    found = ranks[0][variant]
    check_accounting(found, world)
    assert found["mesh"] == {"ep": world}
    tokens, item = SEQUENCES * S.context, FLOAT * S.dim
    lines = [line_of(expert_parallel, text) for text in ("incoming = all", "here = all", "back = all")]
    received = []
    for rank in range(world):
        forward, backward = [], []
        for layer, name in enumerate(layers()):
            sent = ranks[rank][variant]["sent"][layer]
            got = [other[variant]["sent"][layer][rank] for other in ranks]
            assert sum(sent) == tokens
            received.append(sum(got))
            there, back = (
                (sum(sent) * item, (tokens - sent[rank]) * item),
                (sum(got) * item, (sum(got) - got[rank]) * item),
            )
            module, cause = f"{name}.ffn", "funcol.all_to_all_single_autograd"
            plain = ("all_to_all", 8 * world, "ep", module, "funcol.all_to_all_single", None, None, False)
            forward += [(("forward", *plain), lines[0], 8 * (world - 1))]
            for size, line in ((there, lines[1]), (back, lines[2])):
                told = ("forward", "all_to_all", size[0], "ep", module, cause, None, None, False)
                forward += [(told, line, size[1])]
            # Gradients go the other way: first those of what came back, then those of what was sent.
            both = [
                (("backward", "all_to_all", size[0], "ep", module, cause, None, None, False), line, size[1])
                for size, line in ((there, lines[2]), (back, lines[1]))
            ]
            backward = both + backward
        *mine, gradients = bill(found, rank)
        assert [(row(c), c["source"], c["wire_bytes"]) for c in mine] == forward + backward
        shared = S.elements - S.layers * 2 * S.dim * S.hidden + S.layers * world * S.dim
        check_gradients_reduced(gradients, "ep", FLOAT * shared)
    assert sum(received) == world * S.layers * tokens
    busiest = max(received) * world * S.layers / sum(received)
    assert (busiest > 2) == (variant == "skewed")
    covered(request.config, "expert_parallel", variant)


# -- three dimensions --------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", list(three_d.VARIANTS))
def test_pipeline_of_fsdp2_across_tensor_parallel(variant: str, request: pytest.FixtureRequest) -> None:
    world, stages, m = 8, 2, SEQUENCES
    ranks = results(programs.run, world, sample="three_d", variants=list(three_d.VARIANTS))
    found = ranks[0][variant]
    check_accounting(found, world)
    assert found["mesh"] == {"pp": 2, "dp": 2, "tp": 2}
    schedule = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}[variant]
    plan_of = {"gpipe": gpipe_plan, "1f1b": one_f_one_b_plan}[variant]
    norms = 2 * S.dim
    block = FLOAT * ((S.block_elements - norms) // three_d.TENSOR_RANKS + norms)
    rest = [FLOAT * S.vocab * S.dim, FLOAT * (S.vocab * S.dim + S.dim)]
    for rank in range(world):
        place, tensor = rank // 4, rank % 2
        mine = {dim: [c for c in bill(found, rank) if c["mesh_dim"] == dim] for dim in ("pp", "dp", "tp")}
        assert sum(map(len, mine.values())) == len(bill(found, rank))
        # The stage holds one of the two layers, and every micro-batch is one sequence.
        name = f"stage{place}.blocks.{place}"
        forward = [(f"{name}.attention.wo", "RowwiseParallel"), (f"{name}.ffn.down", "RowwiseParallel")]
        backward = [(f"{name}.ffn.up", "ColwiseParallel"), (f"{name}.attention", "PrepareModuleInput")]
        for phase, expected in (("forward", forward), ("backward", backward)):
            told = [row(c) for c in mine["tp"] if c["phase"] == phase]
            assert told == m * [reduced(phase, module, cause, ONE_SEQUENCE) for module, cause in expected]
        assert [row(c) for c in mine["pp"]] == [
            message(kind, phase, place, schedule) for kind, phase in plan_of(place, stages, m)
        ]
        assert {c["root"] for c in mine["pp"]} == {(rank + 4) % world}
        both = ((f"stage{place}", rest[place]), (name, block))
        assert Counter(row(c) for c in mine["dp"]) == Counter(
            fsdp_row(phase, op, size, module)
            for module, size in both
            for phase, op in (("forward", "all_gather"), ("backward", "reduce_scatter"))
        )
        groups = {dim: {tuple(found["groups"][c["group"]]) for c in mine[dim]} for dim in mine}
        assert groups == {
            "pp": {(rank % 4, rank % 4 + 4)},
            "dp": {(4 * place + tensor, 4 * place + 2 + tensor)},
            "tp": {(rank - tensor, rank - tensor + 1)},
        }
        assert {c["parameter"] for c in mine["dp"]} == {
            f"{name}.attention_norm.weight, ... (8 parameters)",
            "stage0.embed.weight" if place == 0 else "stage1.norm.weight, stage1.head.weight",
        }
    losses = [sum(pair) / 2 for pair in zip(*(ranks[r][variant]["losses"] for r in (4, 6)), strict=True)]
    assert losses == pytest.approx(programs.one_device(programs.options(SIZES), 2), rel=1e-4)
    covered(request.config, "three_d", variant)


# -- torch.compile -----------------------------------------------------------------------------------

COMPILED_LIMIT = "torch 2.13: inside a graph the compiled module and its forward; style and line are gone"
UNASKED_LIMIT = "torch 2.13: inside a graph unknown, said to be explicit"


@pytest.mark.parametrize("variant", list(compiled.VARIANTS))
def test_compiled_blocks(variant: str, request: pytest.FixtureRequest) -> None:
    world = 2
    ranks = results(programs.compiled, world)
    found = ranks[0][variant]
    check_accounting(found, world)
    dim = {"tensor": "tp", "fsdp2": "dp"}[variant]
    assert found["mesh"] == {dim: world}
    for rank in range(world):
        mine = bill(found, rank)
        if variant == "tensor":
            cause = ("torch.compile", None, None, False)
            assert [row(c) for c in mine] == [
                (phase, "all_reduce", ACTIVATIONS, "tp", layer, *cause)
                for phase in ("forward", "backward")
                for layer in layers(backward=phase == "backward")
                for _ in range(2)
            ]
            begins = line_of(transformer, "def forward", nth=2).split(":")[1].split()[0]
            for c in mine:
                assert c["source"].startswith("samples/strategies/transformer.py:")
                assert c["source"].endswith("(forward)")
                assert 0 <= int(c["source"].split(":")[1].split()[0]) - int(begins) <= 4
        else:
            block, rest = FLOAT * S.block_elements, FLOAT * S.rest_elements
            gathers = [fsdp_row("forward", "all_gather", rest, "")]
            gathers += [fsdp_row("forward", "all_gather", block, layer) for layer in layers()]
            gathers += [fsdp_row("backward", "all_gather", block, layer) for layer in layers(backward=True)]
            assert [row(c) for c in mine if c["op"] == "all_gather"] == gathers
            scatters = [fsdp_row("backward", "reduce_scatter", block, n) for n in layers(backward=True)]
            scatters += [fsdp_row("backward", "reduce_scatter", rest, "")]
            assert [row(c) for c in mine if c["op"] == "reduce_scatter"] == scatters
            assert len(mine) == len(gathers) + len(scatters)
        # Left compiled: one graph from the first step on, and no module inside a block was called.
        assert ranks[rank][variant]["graphs"][0] > 0
        assert len(set(ranks[rank][variant]["graphs"])) == 1
        modules = {
            c["module"] for c in found["computes"] if c["rank"] == rank and kind_of_work(c["op"]) == "matmul"
        }
        assert modules == {*layers(), "head"}
    shares = world if variant == "fsdp2" else 1
    losses = [sum(each) / world for each in zip(*(r[variant]["losses"] for r in ranks), strict=True)]
    assert losses == pytest.approx(programs.one_device(programs.options(SIZES), shares), rel=1e-4)
    limits = {"cause": COMPILED_LIMIT, "implicit flag": UNASKED_LIMIT} if variant == "tensor" else {}
    covered(request.config, "compiled", variant, {"compile": "yes", **limits})


# -- exchanges by hand -------------------------------------------------------------------------------


def shapes() -> dict[str, int]:
    """Bytes of each parameter, in the model's order."""
    model = transformer.Transformer(S)
    return {name: FLOAT * parameter.numel() for name, parameter in model.named_parameters()}


def by_hand_rows(variant: str, rank: int, world: int) -> list[tuple[Any, ...]]:
    """Op, bytes, cause, module, parameter and peer of each record."""
    sizes = shapes()
    whole = sum(sizes.values())
    padded = whole + -whole % (FLOAT * world)
    many = f"{next(iter(sizes))}, ... ({len(sizes)} parameters)"
    after, before = (rank + 1) % world, (rank - 1) % world
    if variant == "one_by_one":
        return [
            ("all_reduce", size, "all_reduce", name.rpartition(".")[0], name, None)
            for name, size in sizes.items()
        ]
    if variant == "coalesced":
        return [("all_reduce", whole, "_coalescing_manager", None, many, None)]
    if variant == "functional":
        return [("all_reduce", whole, "funcol.all_reduce_coalesced", None, many, None)]
    if variant == "sharded":
        reduce, gather = point_to_point.reduce_scatter.__name__, point_to_point.all_gather.__name__
        return [
            ("reduce_scatter", padded, f"funcol.{reduce}", None, None, None),
            ("all_gather", padded, f"funcol.{gather}", None, None, None),
        ]
    if variant == "ring":
        part = padded // world
        turn = [
            ("send", part, "batch_isend_irecv", None, None, after),
            ("recv", part, "batch_isend_irecv", None, None, before),
        ]
        return 2 * (world - 1) * turn
    turn = [("send", padded, "send", None, None, after), ("recv", padded, "recv", None, None, before)]
    return turn if rank % 2 == 0 else turn[::-1]


@pytest.mark.parametrize("variant", list(point_to_point.VARIANTS))
def test_exchanges_by_hand(variant: str, request: pytest.FixtureRequest) -> None:
    world = 3
    ranks = results(programs.by_hand, world)
    found = ranks[0][variant]
    check_accounting(found, world)
    for rank in range(world):
        mine = bill(found, rank)
        told = [
            (c["op"], c["message_bytes"], c["caused_by_op"], c["module"], c["parameter"], c["root"])
            for c in mine
        ]
        assert told == by_hand_rows(variant, rank, world)
        assert {(c["phase"], c["implicit"], c["mesh_dim"]) for c in mine} == {("other", False, None)}
        function = "functional_collective" if variant == "functional" else variant
        assert all(c["source"].endswith(f"({function})") for c in mine)
        if variant == "ring":
            sent = sum(c["wire_bytes"] for c in mine)
            assert sent == wire_bytes("all_reduce", world * mine[0]["message_bytes"], world)
    if variant != "neighbours":
        losses = [sum(each) / world for each in zip(*(r[variant]["losses"] for r in ranks), strict=True)]
        assert losses == pytest.approx(programs.one_device(programs.options(SIZES), world), rel=1e-4)
    covered(request.config, "point_to_point", variant)


@pytest.mark.skipif(not BATCHED_FUNCTIONAL_MESSAGES, reason="this torch has no batches of them")
def test_a_batch_of_functional_messages_is_counted_one_by_one(request: pytest.FixtureRequest) -> None:
    world = 3
    batch = results(programs.by_hand, world)[0]["batch"]
    for rank in range(world):
        told = [
            (c["op"], c["message_bytes"], c["root"], c["seq"], c["group_size"])
            for c in batch["collectives"]
            if c["rank"] == rank
        ]
        other = 3 - rank
        expected = [("send", 24, other, 1, 2), ("recv", 24, other, 2, 2)]
        assert told == (expected if rank else [])
    for count in batch["counts"]:
        assert count["issued"] == count["recorded"]
    covered(request.config, "point_to_point", "batch_p2p_ops in a sub-group")


def test_symmetric_memory_runs_on_cuda_only(request: pytest.FixtureRequest) -> None:
    for rank in results(programs.by_hand, 3):
        one_shot, fused = rank["refused"]["lines"]
        assert "Could not run 'symm_mem::one_shot_all_reduce'" in one_shot
        assert "Could not run 'symm_mem::fused_all_gather_matmul'" in fused
    limit = "torch 2.13 runs it on CUDA only; decoded, not counted by the group"
    cells = dict.fromkeys(("counted", "bytes exact", "cause", "phase", "implicit flag"), limit)
    covered(request.config, "point_to_point", "symmetric memory", cells)
