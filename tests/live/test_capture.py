"""Capture on real gloo ranks against closed forms: counts, bytes, causes, times, and no trace left behind."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from shardtoll.ledger import read_run
from tests.live import programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

BLOCK_BYTES = 2 * programs.D * programs.HIDDEN * 4
ACTIVATION_BYTES = programs.BATCH * programs.D * 4
RANKS = [2, 4]
FORWARD_LINE = inspect.getsourcelines(programs.MLP.forward)[1] + 1


def of_step(rows: dict[str, Any], step: int, rank: int) -> list[dict[str, Any]]:
    return [c for c in rows["collectives"] if c["step"] == step and c["rank"] == rank]


def check_accounting(rows: dict[str, Any]) -> None:
    """Conservation, completeness and shares that add up: true of every step of every rank."""
    assert rows["steps"]
    for step in rows["steps"]:
        parts = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "unattributed_ns")
        assert sum(step[part] for part in parts) == step["duration_ns"]
        mine = of_step(rows, step["step"], step["rank"])
        assert sum(c["exposed_ns"] for c in mine) == step["exposed_comm_ns"]
    for count in rows["counts"]:
        assert count["issued"] == count["recorded"], count


@pytest.mark.parametrize("world", RANKS)
def test_ddp_reduces_every_gradient_byte_once(world: int) -> None:
    results = run_ranks(programs.collectives_of, world, "ddp")
    rows = results[0]["rows"]
    check_accounting(rows)
    for rank in range(world):
        reductions = of_step(rows, 1, rank)
        assert {c["op"] for c in reductions} == {"all_reduce"}
        assert len(reductions) >= 2, "several buckets"
        total = sum(c["message_bytes"] for c in reductions)
        assert total == 2 * BLOCK_BYTES
        assert sum(c["wire_bytes"] for c in reductions) == 2 * (world - 1) * total // world
        for c in reductions:
            assert c["phase"] == "backward"
            assert c["implicit"] is False
            assert c["caused_by_op"] == "DistributedDataParallel.reducer"
            assert c["parameter"] in {"0.up.weight", "0.down.weight", "1.up.weight", "1.down.weight"}
            assert c["source"].startswith("tests/live/programs.py:")
            assert c["duration_ns"] > 0
            assert c["issue_ns"] <= c["start_ns"]


@pytest.mark.parametrize("world", RANKS)
def test_fsdp2_gathers_each_block_twice_and_scatters_once(world: int) -> None:
    results = run_ranks(programs.collectives_of, world, "fsdp2")
    rows = results[0]["rows"]
    check_accounting(rows)
    assert results[0]["mesh"] == {"dp": world}
    for rank in range(world):
        for block in ("0", "1"):
            mine = [c for c in of_step(rows, 1, rank) if c["module"] == block]
            assert [(c["op"], c["phase"]) for c in mine] == [
                ("all_gather", "forward"),
                ("all_gather", "backward"),
                ("reduce_scatter", "backward"),
            ]
            for c in mine:
                assert c["message_bytes"] == BLOCK_BYTES
                assert c["wire_bytes"] == BLOCK_BYTES * (world - 1) // world
                assert c["parameter"] == f"{block}.up.weight, {block}.down.weight"
                assert c["mesh_dim"] == "dp"
                assert c["implicit"] is False
        assert len(of_step(rows, 1, rank)) == 6


@pytest.mark.parametrize("world", RANKS)
def test_megatron_mlp_reduces_once_forward_once_backward(world: int) -> None:
    results = run_ranks(programs.collectives_of, world, "tp")
    rows = results[0]["rows"]
    check_accounting(rows)
    for rank in range(world):
        mine = of_step(rows, 1, rank)
        for block in ("0", "1"):
            forward, backward = [c for c in mine if c["module"].startswith(f"{block}.")]
            assert (forward["phase"], forward["module"]) == ("forward", f"{block}.down")
            assert forward["caused_by_op"] == "RowwiseParallel"
            assert (backward["phase"], backward["module"]) == ("backward", f"{block}.up")
            assert backward["caused_by_op"] == "ColwiseParallel"
            for c in (forward, backward):
                assert c["op"] == "all_reduce"
                assert c["message_bytes"] == ACTIVATION_BYTES
                assert c["wire_bytes"] == 2 * (world - 1) * ACTIVATION_BYTES // world
                assert (c["placements_from"], c["placements_to"]) == ("(Partial(sum))", "(Replicate())")
                assert c["implicit"] is False
                assert c["mesh_dim"] == "tp"
                assert c["source"] == f"tests/live/programs.py:{FORWARD_LINE} (forward)"
        assert len(mine) == 4


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "tp"])
def test_losses_gradients_and_random_state_are_bit_equal(kind: str) -> None:
    bare = run_ranks(programs.bits_of, 2, kind, False)
    assert run_ranks(programs.bits_of, 2, kind, True) == bare


def test_every_collective_is_recorded_and_counted() -> None:
    world = 4
    rows = run_ranks(programs.every_native_collective, world)[0]
    check_accounting(rows)
    item = 8 * 4
    expected = {
        "all_reduce": [item, item],
        "broadcast": [item],
        "reduce": [item],
        "gather": [world * item],
        "scatter": [world * item],
        "all_to_all": [item],
        "reduce_scatter": [world * item],
        "barrier": [0],
    }
    for rank in range(world):
        mine = of_step(rows, 0, rank)
        for op, sizes in expected.items():
            assert [c["message_bytes"] for c in mine if c["op"] == op] == sizes, (op, rank)
        gathers = [c for c in mine if c["op"] == "all_gather"]
        assert gathers[0]["message_bytes"] == world * item
        assert [c["caused_by_op"] for c in gathers[1:]] == ["all_gather_object"] * 2
        p2p = [
            (c["op"], c["root"], c["message_bytes"], c["wire_bytes"])
            for c in mine
            if c["op"] in ("send", "recv")
        ]
        assert p2p == {0: [("send", 1, item, item)], 1: [("recv", 0, item, 0)]}.get(rank, [])
        roots = {c["op"]: c["root"] for c in mine}
        assert (roots["broadcast"], roots["reduce"], roots["scatter"]) == (world - 1, 0, 1)
        timed = [c for c in mine if c["duration_ns"] is None]
        assert not timed, "gloo told when each of them ran"


def test_sessions_without_model_or_steps(tmp_path: Path) -> None:
    found = run_ranks(programs.sessions_without_model, 2, str(tmp_path / "run"))[0]
    first, second = found["first"], found["second"]
    check_accounting(first)
    check_accounting(second)
    assert {s["step"] for s in first["steps"]} == {0}
    assert {c["parameter"] for c in first["collectives"] if c["phase"] == "backward"} <= {
        f"{block}.{name}.weight" for block in (0, 1) for name in ("up", "down")
    }
    assert {s["step"] for s in second["steps"]} == {0, 1}
    outside = [c["message_bytes"] for c in second["collectives"] if c["step"] is None and c["rank"] == 1]
    assert outside == [12, 20, 20]
    assert read_run(tmp_path / "run").tables["steps"].num_rows == 4, "the second run replaced the first"


def test_a_killed_rank_is_named_and_its_finished_steps_count(tmp_path: Path) -> None:
    victim, fatal = 2, 3
    results = run_ranks(programs.killed_in_step, 4, str(tmp_path / "run"), victim, fatal, may_die=(victim,))
    assert results[victim] is None
    assert max(r["left_s"] for r in results if r) < 20, "a dead rank delays nobody"
    ledger = read_run(tmp_path / "run")
    steps = {(s["rank"], s["step"]) for s in ledger.tables["steps"].to_pylist()}
    assert {(rank, step) for rank in range(4) for step in range(fatal)} <= steps
    assert (victim, fatal) not in steps
    reductions = [c for c in ledger.tables["collectives"].to_pylist() if c["rank"] == victim]
    assert len(reductions) == fatal * 4
    incomplete = [title for title in results[0]["titles"] if title.startswith("incomplete-input")]
    assert any("rank 2" in title for title in incomplete), results[0]["titles"]


def test_a_kill_in_a_step_that_lasts_takes_none_of_the_short_watched_steps_before_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run_ranks(programs.killed_in_a_long_step, 2, str(out), 1, may_die=(1,))[1] is None
    finished = int((out / "finished").read_text())
    ledger = read_run(out)
    killed = [row["step"] for row in ledger.tables["steps"].to_pylist() if row["rank"] == 1]
    assert sorted(killed) == list(range(finished))
    last = [
        (row["op"], row["start_ns"], row["issue_ns"] is not None)
        for row in ledger.tables["collectives"].to_pylist()
        if (row["rank"], row["step"]) == (1, finished - 1)
    ]
    assert last == [("broadcast", None, True), ("all_reduce", None, True)]
    said = [row["text"] for row in ledger.tables["notices"].to_pylist() if row["kind"] == "times-unknown"]
    assert any("rank 1 ended before the rows of its last" in text for text in said)


def test_a_failing_capture_stops_itself_and_not_the_training() -> None:
    bare = run_ranks(programs.plain_losses, 2)
    results = run_ranks(programs.failing_capture, 2)
    assert [r["losses"] for r in results] == bare
    for result in results:
        stopped = [line for line in result["lines"] if "capture stopped" in line]
        assert len(stopped) == 1, "it says so once"
    assert results[0]["steps"] == [0]
    assert any("planted" in text for text in results[0]["notices"])
    assert "incomplete-input" in results[0]["kinds"]


@pytest.mark.parametrize("world", RANKS)
def test_implicit_redistribution_names_operator_placements_and_line(world: int) -> None:
    rows = run_ranks(programs.implicit_redistribution, world)[0]
    check_accounting(rows)
    line = inspect.getsourcelines(programs.Implicit.forward)[1] + 1
    for rank in range(world):
        hidden = [c for c in of_step(rows, 0, rank) if c["implicit"]]
        assert hidden, "DTensor had to move something"
        for c in hidden:
            assert c["caused_by_op"] == "aten.mm.default"
            assert c["source"] == f"tests/live/programs.py:{line} (forward)"
            assert c["module"] == ""
            assert c["mesh_dim"] == "tp"
            assert c["placements_from"] != c["placements_to"]
        forward = [c for c in hidden if c["phase"] == "forward"]
        # Either operand may be gathered; both are known in size.
        gathered = {4 * programs.D * programs.HIDDEN, 4 * programs.BATCH * programs.D}
        assert len(forward) == 1
        assert forward[0]["op"] in ("all_gather", "all_to_all")
        assert forward[0]["message_bytes"] in gathered
        assert {c["phase"] for c in hidden} <= {"forward", "backward"}


def test_an_operator_on_replicated_inputs_is_the_same_work_on_every_rank() -> None:
    found = run_ranks(programs.replicated_operator, 4)[0]
    assert found["replicated_over"] == ["tp"] * 4, "one matmul on each rank"
    (evidence,) = found["evidence"]
    one = 2 * programs.BATCH * programs.D * programs.D
    assert (evidence["factor"], evidence["FLOPs done per step"], evidence["FLOPs needed per step"]) == (
        4,
        4 * one,
        one,
    )
