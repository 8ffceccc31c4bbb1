"""Data parallelism and what goes with it, against closed forms: every record, field by field."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist

from shardtoll.ledger import read_run
from shardtoll.samples.strategies import (
    accumulation,
    checkpointing,
    clipping,
    dcp,
    ddp,
    fsdp1,
    fsdp2,
    groups,
)
from tests.live import strategy_programs_data as programs
from tests.live import warm
from tests.live.coverage import cover, covered
from tests.live.launch import free_port, run_ranks
from tests.live.strategy_rows import Want, at, check_rows
from tests.live.strategy_wants_data import (
    ACCUMULATED,
    CLIP_LINES,
    CLIPPED,
    CLIPPING,
    DDP,
    FLOAT,
    FSDP1,
    FSDP2,
    HERE,
    NORM,
    NORM_COUNT,
    ONE,
    SIZES,
    SMALL,
    WHOLE,
    across,
    as_fsdp1,
    checkpointed,
    flat,
    fsdp2_step,
    gathered,
    gathered_again,
    matrices,
    near,
    owned,
    owner,
    parameters,
    reduced,
    scattered,
    updated,
)

pytestmark = pytest.mark.live

RANKS: Final = (2, 4)
LIMIT_S: Final = 150.0

ON_ANY: Final = (
    *(f"ddp.{name}" for name in ddp.VARIANTS),
    *(f"fsdp2.{name}" for name in fsdp2.VARIANTS if name not in ("hsdp", "reshard_int")),
    *(f"fsdp1.{name}" for name in fsdp1.VARIANTS if name != "hybrid"),
    *("zero.plain", "zero.bucketed"),
    *(f"accumulation.{name}" for name in accumulation.VARIANTS),
    *(f"checkpointing.{name}" for name in checkpointing.VARIANTS),
    *(f"clipping.{name}" for name in clipping.VARIANTS),
    *(f"dcp.{name}" for name in dcp.VARIANTS),
    *("groups.all_kinds", "groups.objects"),
)
ON_FOUR: Final = ("fsdp1.hybrid", "fsdp2.hsdp", "fsdp2.reshard_int", "groups.pairs")
"""What needs groups of two within the job."""


@cache
def ran(world: int) -> list[dict[str, Any]]:
    """Every sample, one after the other on the same ranks: starting processes costs more than the samples."""
    names = [*ON_ANY, *(ON_FOUR if world == 4 else ())]
    return run_ranks(programs.rows_of, world, names, limit_s=LIMIT_S)


def of(name: str, world: int) -> dict[str, Any]:
    found: dict[str, Any] = ran(world)[0][name]
    return found


def test_the_sizes_add_up() -> None:
    assert sum(parameters().values()) == SIZES.elements
    assert all(rows * columns == parameters()[name] for name, (rows, columns) in matrices().items())


# -- DDP -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", RANKS)
@pytest.mark.parametrize("variant", sorted(DDP))
def test_ddp(variant: str, world: int, request: pytest.FixtureRequest) -> None:
    assert len(SMALL) == 3
    for step in (0, 1):
        check_rows(of(f"ddp.{variant}", world), world, lambda _, step=step: DDP[variant][step], step=step)
    covered(request.config, "ddp", variant)


# -- FSDP2 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", RANKS)
@pytest.mark.parametrize("variant", sorted(FSDP2))
def test_fsdp2(variant: str, world: int, request: pytest.FixtureRequest) -> None:
    for step in (0, 1):
        check_rows(of(f"fsdp2.{variant}", world), world, lambda _: FSDP2[variant], step=step)
    covered(request.config, "fsdp2", variant)


def test_fsdp2_within_a_node_and_across(request: pytest.FixtureRequest) -> None:
    """Shards in pairs, replicas across: each reduce_scatter is followed by an all_reduce of its shard."""
    check_rows(of("fsdp2.hsdp", 4), 4, lambda rank: across(fsdp2_step(), rank))
    covered(request.config, "fsdp2", "hsdp")


def test_fsdp2_that_reshards_to_a_small_group(request: pytest.FixtureRequest) -> None:
    """The second all_gather stays within the pair. FSDP2 makes a mesh for it that has no names of its own."""

    def wanted(rank: int) -> list[Want]:
        again = [replace(want, dim="dim_1", ranks=near(rank)) for want in gathered_again()]
        return [*gathered(), *again, *scattered()]

    found = of("fsdp2.reshard_int", 4)
    check_rows(found, 4, wanted)
    small = {c["group"] for c in found["collectives"] if c["group_size"] == 2 and c["rank"] == 0}
    assert len(small) == SIZES.layers, "torch makes new groups for every module it is asked this of"
    covered(request.config, "fsdp2", "reshard_int", {"cause": "yes; torch names the dim `dim_1`"})


# -- FSDP1 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", RANKS)
@pytest.mark.parametrize("variant", sorted(FSDP1))
def test_fsdp1(variant: str, world: int, request: pytest.FixtureRequest) -> None:
    check_rows(of(f"fsdp1.{variant}", world), world, lambda _: FSDP1[variant])
    covered(request.config, "fsdp1", variant)


def test_fsdp1_within_a_node_and_across(request: pytest.FixtureRequest) -> None:
    check_rows(of("fsdp1.hybrid", 4), 4, lambda rank: across(as_fsdp1(fsdp2_step()), rank))
    covered(request.config, "fsdp1", "hybrid")


# -- ZeRO ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", RANKS)
def test_zero_broadcasts_every_parameter_from_its_owner(world: int, request: pytest.FixtureRequest) -> None:
    each = [
        updated(name, parameters()[name], root) for root, names in enumerate(owned(world)) for name in names
    ]
    assert sum(want.message_bytes for want in each) == WHOLE
    check_rows(of("zero.plain", world), world, lambda _: [reduced(*ONE[0]), *each])
    covered(request.config, "zero", "plain")


@pytest.mark.parametrize("world", RANKS)
def test_zero_with_buckets_broadcasts_once_a_rank(world: int, request: pytest.FixtureRequest) -> None:
    check_rows(of("zero.bucketed", world), world, lambda _: [reduced(*ONE[0]), *flat(world)])
    covered(request.config, "zero", "bucketed")


# -- accumulation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", RANKS)
@pytest.mark.parametrize("variant", sorted(ACCUMULATED))
def test_accumulation(variant: str, world: int, request: pytest.FixtureRequest) -> None:
    found = of(f"accumulation.{variant}", world)
    check_rows(found, world, lambda _: ACCUMULATED[variant])
    covered(request.config, "accumulation", variant)


# -- activation checkpointing --------------------------------------------------------------------------


@pytest.mark.parametrize("world", RANKS)
@pytest.mark.parametrize("kind", ["non_reentrant", "reentrant"])
@pytest.mark.parametrize("build", ["ddp", "called", "wrapped", "wrapper", "segment"])
def test_checkpointing(build: str, kind: str, world: int, request: pytest.FixtureRequest) -> None:
    found = of(f"checkpointing.{build}_{kind}", world)
    check_rows(found, world, lambda _: checkpointed(build, kind == "reentrant"))
    covered(request.config, "checkpointing", f"{build}, {kind.replace('_', '-')}")


@pytest.mark.parametrize("kind", ["non_reentrant", "reentrant"])
@pytest.mark.parametrize("build", ["ddp", "called", "wrapped", "wrapper", "segment"])
def test_what_is_computed_again_is_recompute_and_nothing_else(build: str, kind: str) -> None:
    """The blocks' FLOPs once in forward, once in recompute, twice in backward, as without checkpointing."""
    found = of(f"checkpointing.{build}_{kind}", 2)
    plain = flops(of("ddp.no_buffers", 2))
    assert "recompute" not in plain
    again = flops(found)
    assert (again["forward"], again["backward"]) == (plain["forward"], plain["backward"])
    tokens = 4 * SIZES.context
    attention = 2 * 2 * tokens * SIZES.context * SIZES.dim
    matmuls = 2 * tokens * (4 * SIZES.dim**2 + 2 * SIZES.dim * SIZES.hidden)
    whole = SIZES.layers * (matmuls + attention)
    # The newer kind stops a recompute once it has what backward needs: not the last matmul of what it wraps.
    stops_before = {"reentrant": 0, "non_reentrant": 1 if build == "segment" else SIZES.layers}[kind]
    assert again["recompute"] == whole - stops_before * 2 * tokens * SIZES.dim * SIZES.hidden


def flops(found: dict[str, Any]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for row in found["computes"]:
        if (row["step"], row["rank"]) == (1, 0):
            counted[row["phase"]] = counted.get(row["phase"], 0) + row["flops"]
    return counted


# -- clipping ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", RANKS)
@pytest.mark.parametrize("variant", sorted(CLIPPED))
def test_clipping(variant: str, world: int, request: pytest.FixtureRequest) -> None:
    check_rows(of(f"clipping.{variant}", world), world, lambda _: CLIPPED[variant])
    covered(request.config, "clipping", variant)


@pytest.mark.parametrize("world", RANKS)
def test_clipping_by_each_gradients_norm(world: int, request: pytest.FixtureRequest) -> None:
    found = of("clipping.each", world)
    # Python 3.12 runs a comprehension in its function's own frame.
    (line,) = {c["source"] for c in found["collectives"] if c["caused_by_op"] == "DTensor.full_tensor"}
    assert line.rpartition(" ")[0] == at(CLIPPING, "gradient.norm().full_tensor()", "each").rpartition(" ")[0]
    norms = NORM_COUNT * [replace(NORM, cause="DTensor.full_tensor", source=line)]
    check_rows(found, world, lambda _: [*fsdp2_step(**CLIP_LINES), *norms])
    covered(request.config, "clipping", "each", {"cause": "yes; a norm does not say whose it is"})


# -- saving --------------------------------------------------------------------------------------------


def saved(world: int, name: str, source: str | None) -> list[Want]:
    """Plans to rank 0, the agreed plan back, results to rank 0, and the verdict to all, sizes first."""
    sizes = [ran(world)[rank][f"dcp.{name}"]["sizes"] for rank in range(world)]
    plans, results = max(s[0] for s in sizes), max([sizes[0][1 + world], *(s[1] for s in sizes[1:])])
    agreed, verdict = max(sizes[0][1 : 1 + world]), sizes[0][2 + world]
    assert len(sizes[0]) == world + 3, "a plan, an agreed one for each rank, a result, a verdict"
    assert all(len(s) == 2 for s in sizes[1:]), "a plan and a result"
    one = Want("all_gather", "other", 8 * world, "checkpoint.save", source, dim="dp", dtype="int64")
    bytes_: dict[str, Any] = {"dtype": "uint8"}
    return [
        one,
        replace(one, op="gather", message_bytes=world * plans, root=0, **bytes_),
        replace(one, op="broadcast", message_bytes=8, root=0),
        replace(one, op="scatter", message_bytes=world * agreed, root=0, **bytes_),
        replace(one, op="scatter", message_bytes=8 * world, root=0),
        one,
        replace(one, op="gather", message_bytes=world * results, root=0, **bytes_),
        replace(one, op="broadcast", message_bytes=8, root=0),
        replace(one, op="broadcast", message_bytes=verdict, root=0, **bytes_),
    ]


@pytest.mark.parametrize("world", RANKS)
def test_saving_shards(world: int, request: pytest.FixtureRequest) -> None:
    line = at(HERE + "dcp.py", "    save(", "sharded")
    wanted = [*fsdp2_step(), *saved(world, "sharded", line)]
    check_rows(of("dcp.sharded", world), world, lambda _: wanted)
    covered(request.config, "saving", "sharded")


@pytest.mark.parametrize("world", RANKS)
def test_saving_from_another_thread(world: int, request: pytest.FixtureRequest) -> None:
    """The same collectives; the stack of the thread that issues them has no line of the user's."""
    wanted = [*fsdp2_step(), *saved(world, "asynchronous", None)]
    check_rows(of("dcp.asynchronous", world), world, lambda _: wanted)
    limit = "all but the line: another thread's stack does not show who started it"
    covered(request.config, "saving", "asynchronous", {"cause": limit})


@pytest.mark.parametrize("world", RANKS)
def test_saving_the_whole_state(world: int, request: pytest.FixtureRequest) -> None:
    line = at(HERE + "dcp.py", "state = get_model_state_dict(model, options", "full")
    one = Want("all_gather", "other", 0, "checkpoint.state_dict", line, dim="dp")
    whole = [
        replace(one, message_bytes=FLOAT * elements, module=owner(name), parameter=name)
        for name, elements in parameters().items()
    ]
    check_rows(of("dcp.full", world), world, lambda _: [*fsdp2_step(), *whole])
    covered(request.config, "saving", "full")


# -- by hand -------------------------------------------------------------------------------------------

GROUPS: Final = HERE + "groups.py"
ITEM: Final = FLOAT * groups.ELEMENTS


def by_hand(op: str, size: int, text: str, **changed: Any) -> Want:
    cause = text.partition("dist.")[2].partition("(")[0]
    return replace(Want(op, "forward", size, cause, at(GROUPS, text, "run")), **changed)


@pytest.mark.parametrize("world", RANKS)
def test_every_collective_by_hand(world: int, request: pytest.FixtureRequest) -> None:
    whole = world * ITEM
    nothing: dict[str, Any] = {"dtype": None}
    wanted = [
        by_hand("all_reduce", ITEM, "dist.all_reduce(own.clone(), op="),
        by_hand("all_gather", whole, "dist.all_gather(parts"),
        by_hand("reduce_scatter", whole, "dist.reduce_scatter("),
        by_hand("broadcast", ITEM, "dist.broadcast(own", root=0),
        by_hand("reduce", ITEM, "dist.reduce(own", root=0),
        by_hand("gather", whole, "dist.gather(own", root=0),
        by_hand("scatter", whole, "dist.scatter(", root=0),
        by_hand("all_to_all", whole, "dist.all_to_all_single("),
        by_hand("barrier", 0, "dist.barrier()", **nothing),
        by_hand("all_reduce", ITEM, "work = dist.all_reduce("),
        by_hand("barrier", 0, "dist.monitored_barrier()", **nothing),
    ]
    check_rows(of("groups.all_kinds", world), world, lambda _: wanted)
    covered(request.config, "by_hand", "all kinds")


def test_groups_of_some_ranks_and_one_made_within_a_step(request: pytest.FixtureRequest) -> None:
    def wanted(rank: int) -> list[Want]:
        found = [by_hand("all_reduce", ITEM, "dist.all_reduce(torch.ones(ELEMENTS,", ranks=near(rank))]
        if rank % 2 == 0:
            found.append(by_hand("broadcast", 2 * ITEM, "dist.broadcast(torch.ones(", ranks=(0, 2), root=0))
        if rank < 3:
            found.append(by_hand("all_reduce", 3 * ITEM, "dist.all_reduce(torch.ones(3 *", ranks=(0, 1, 2)))
        return [*found, by_hand("all_reduce", 4 * ITEM, "dist.all_reduce(torch.ones(4 *")]

    found = of("groups.pairs", 4)
    for step in (0, 1):
        check_rows(found, 4, wanted, step=step, may_be_gone=True)
    gone = sorted((c["step"], c["rank"], c["recorded"]) for c in found["counts"] if c["issued"] is None)
    assert gone == [(step, rank, 1) for step in (0, 1) for rank in range(3)]
    limit = "yes; a group destroyed within the step cannot be asked"
    covered(request.config, "by_hand", "sub-groups, one made in mid-step", {"counted": limit})


@pytest.mark.parametrize("world", RANKS)
def test_objects(world: int, request: pytest.FixtureRequest) -> None:
    sizes = ran(world)[0]["groups.objects"]["sizes"]
    assert len(set(sizes)) == 1, "it is always the same object"
    size = sizes[0]

    def pair(text: str, *ops: tuple[str, int, str], **changed: Any) -> list[Want]:
        return [by_hand(op, n, text, dtype=dtype, **changed) for op, n, dtype in ops]

    def wanted(rank: int) -> list[Want]:
        lengths = 8 * world
        found = [
            *pair(
                "dist.all_gather_object(",
                ("all_gather", lengths, "int64"),
                ("all_gather", world * size, "uint8"),
            ),
            *pair("dist.gather_object(", ("all_gather", lengths, "int64")),
            *pair("dist.gather_object(", ("gather", world * size, "uint8"), root=0),
            *pair(
                "dist.broadcast_object_list(", ("broadcast", 8, "int64"), ("broadcast", size, "uint8"), root=0
            ),
            *pair("dist.scatter_object_list(", ("broadcast", 8, "int64"), root=0),
            *pair("dist.scatter_object_list(", ("scatter", world * size, "uint8"), root=0),
            *pair("dist.scatter_object_list(", ("scatter", lengths, "int64"), root=0),
        ]
        if rank == 0:
            found += pair("dist.send_object_list(", ("send", 8, "int64"), ("send", size, "uint8"), root=1)
        if rank == 1:
            found += pair("dist.recv_object_list(", ("recv", 8, "int64"), ("recv", size, "uint8"), root=0)
        return found

    check_rows(of("groups.objects", world), world, wanted)
    covered(request.config, "by_hand", "objects")


def test_the_users_own_thread_is_seen_and_left_alone_afterwards() -> None:
    found = run_ranks(programs.collectives_of_a_thread, 2, limit_s=LIMIT_S)
    assert all(one["restored"] for one in found)
    line = at("tests/live/strategy_programs_data.py", "dist.all_reduce(torch.ones(6)", "reduce_metrics")
    for rank in (0, 1):
        own, theirs = sorted(
            (c for c in found[0]["collectives"] if c["rank"] == rank), key=lambda c: int(c["message_bytes"])
        )
        assert (own["message_bytes"], own["phase"]) == (12, "forward")
        assert (theirs["message_bytes"], theirs["phase"], theirs["source"]) == (24, "other", line)
        assert theirs["caused_by_op"] == "all_reduce"
    assert all(count["issued"] == count["recorded"] for count in found[0]["counts"])
    assert {count["recorded"] for count in found[0]["counts"]} == {1}


@pytest.mark.parametrize("level", ["survey", "watch"])
def test_what_a_thread_issues_across_steps_is_no_error(level: str) -> None:
    found, _ = run_ranks(programs.thread_across_steps, 2, level, limit_s=LIMIT_S)
    assert sorted(found["marked"].values()) == [False, True]
    told = [severity for kind, severity in found["kinds"] if kind == "unmatched-collectives"]
    assert told == ["info"] * bool(found["apart"])


@pytest.mark.parametrize(
    ("module", "variant", "ranks", "says", "has_losses"),
    [("clipping", "each", 2, "DTensor.full_tensor", True), ("three_d", "gpipe", 8, "ScheduleGPipe", False)],
)
def test_a_sample_run_by_torchrun_prints_its_bill(
    module: str, variant: str, ranks: int, says: str, has_losses: bool, tmp_path: Path
) -> None:
    command = [warm.python(), "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--master-port", str(free_port()), "-m", f"shardtoll.samples.strategies.{module}"]
    command += ["--variant", variant, "--device", "cpu", "--out", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    assert done.returncode == 0, done.stderr
    assert "the bill" in done.stdout
    # A pipeline has its losses on the last stage.
    assert ("losses of rank 0" in done.stdout) == has_losses
    causes = {str(c["caused_by_op"]) for c in read_run(tmp_path / "run").tables["collectives"].to_pylist()}
    assert any(cause.startswith(says) for cause in causes)


def test_every_loss_is_the_same_without_an_audit() -> None:
    names = [name for name in ON_ANY if not name.startswith("groups.")]
    bare = run_ranks(programs.bare_losses, 2, names, limit_s=LIMIT_S)
    for rank in (0, 1):
        assert {name: ran(2)[rank][name]["losses"] for name in names} == bare[rank]


# -- what torch refuses --------------------------------------------------------------------------------


def test_limits_of_torch_that_the_samples_work_around() -> None:
    """Each is stated in the sample that meets it; one that has gone away should go from there too."""
    refused = run_ranks(programs.refusals, 2, limit_s=LIMIT_S)[0]
    if torch.version.cuda is None or not dist.is_nccl_available():
        why = "BF16 all reduce communication hook required CUDA 11+ and NCCL 2.10+"
        assert why in refused["bf16 hook on gloo"]
    else:  # a build for CUDA takes the hook, whatever the group's backend
        assert "bf16 hook on gloo" not in refused
    assert "FSDP needs a non-CPU accelerator device" in refused["FSDP1 without a named device"]
    assert "First bucket should be smaller/equal to other buckets" in refused["compiled, buckets below 1 MiB"]


# -- compiled ------------------------------------------------------------------------------------------

COMPILED: Final[dict[str, list[Want]]] = {
    "ddp.no_buffers": [reduced(*ONE[0])],
    "fsdp1.full_shard": FSDP1["full_shard"],
    "fsdp2.reshard_true": fsdp2_step(),
    "zero.bucketed": [reduced(*ONE[0]), *flat(2)],
    "accumulation.ddp_last": ACCUMULATED["ddp_last"],
    "checkpointing.wrapped_non_reentrant": checkpointed("wrapped", False),
    "clipping.library": CLIPPED["library"],
}
RECOMPUTED: Final = "yes; what a compiled backward computes again counts as backward"


@cache
def compiled() -> dict[str, Any]:
    found: dict[str, Any] = run_ranks(programs.compiled_frames, 2, list(COMPILED), limit_s=LIMIT_S)[0]
    return found


@pytest.mark.parametrize("name", sorted(COMPILED))
def test_compiled_the_records_are_the_same(name: str, request: pytest.FixtureRequest) -> None:
    found = compiled()[name]
    assert found["graphs"] >= 1, "it was compiled and stayed so"
    for row in found["collectives"]:
        if row["caused_by_op"] == "DistributedDataParallel.reducer":
            # A compiled backward hands over all gradients at once: which comes last is its own affair.
            assert row["parameter"] in parameters()
            assert row["module"] == owner(row["parameter"])
            row["parameter"], row["module"] = "embed.weight", "embed"
    check_rows(found, 2, lambda _: COMPILED[name])
    family, strategy = name.split(".")
    recomputed = family == "checkpointing"
    row_name = "wrapped, non-reentrant" if recomputed else strategy
    cover(request.config, family, row_name, {"compile": RECOMPUTED if recomputed else "yes"})


def test_compiled_ddp_has_the_users_names_whatever_the_audit_was_given() -> None:
    named = compiled()["names"]
    assert set(named) == {"nothing", "model", "DDP", "compiled"}
    for module, parameter in named.values():
        assert parameter in parameters()
        assert module == owner(parameter)
