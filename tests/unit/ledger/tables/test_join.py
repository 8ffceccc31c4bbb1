"""Live records and a trace of the same steps: who is whose partner, and what each side gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.ledger import Collective, Group, Leadup, Ledger, Notice, Run, Stall, Step
from shardtoll.ledger.tables.join import join, match
from shardtoll.ledger.tables.ledger import empty_tables
from shardtoll.ledger.tables.tables import to_records, to_table

US = 1_000


def collective(**given: Any) -> Collective:
    """An all_reduce of step 0 on an accelerator, as live capture knows it: a cause and no times."""
    values: dict[str, Any] = {
        "step": 0,
        "rank": 0,
        "group": "0",
        "group_size": 2,
        "mesh_dim": "dp",
        "seq": None,
        "op": "all_reduce",
        "dtype": "float32",
        "message_bytes": 4096,
        "wire_bytes": 4096,
        "issue_ns": 10 * US,
        "start_ns": None,
        "duration_ns": None,
        "exposed_ns": None,
        "phase": "backward",
        "implicit": False,
        "caused_by_op": "FSDP.post_backward",
        "module": "blocks.0",
        "parameter": "blocks.0.weight",
        "source": "train.py:7 (step)",
    } | given
    return Collective(**values)


def kernel(**given: Any) -> Collective:
    """The same as a trace knows it: times, stream and kernel, and no cause."""
    values: dict[str, Any] = {
        "mesh_dim": None,
        "implicit": None,
        "caused_by_op": None,
        "module": None,
        "parameter": None,
        "source": None,
        "phase": "other",
        "issue_ns": None,
        "start_ns": 20 * US,
        "duration_ns": 5 * US,
        "exposed_ns": 3 * US,
        "stream": 20,
        "kernel": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    } | given
    return collective(**values)


def step(number: int = 0, *, known: bool, duration_ns: int = 100 * US, exposed_ns: int = 3 * US) -> Step:
    if not known:
        return Step(number, 0, 0, duration_ns, 0, 0, 0, 0, duration_ns)
    return Step(number, 0, 0, duration_ns, duration_ns - exposed_ns, exposed_ns, 0, 0, 0)


def ledger(
    steps: Sequence[Step] = (),
    collectives: Sequence[Collective] = (),
    *,
    epoch_ns: int = 0,
    rank: int = 0,
    **tables: Sequence[Any],
) -> Ledger:
    run = Run(2, "nccl", "NVIDIA H200", "2.13", ("a",), {}, "live", (rank,), epoch_ns)
    rows = {"steps": steps, "collectives": collectives, **tables}
    made = {name: to_table(name, list(found)) for name, found in rows.items()}
    return Ledger(run, (Group("0", (0, 1)),), {**empty_tables(), **made})


def rows(found: Ledger, table: str = "collectives") -> list[Any]:
    return to_records(table, found.tables[table])


def test_a_record_without_times_gets_the_kernels_and_keeps_its_cause() -> None:
    live = ledger([step(known=False)], [collective(seq=5)])
    traced = ledger([step(known=True)], [kernel(seq=5)])
    joined = join(live, traced, {0})
    (row,) = rows(joined)
    assert (row.start_ns, row.duration_ns, row.exposed_ns) == (20 * US, 5 * US, 3 * US)
    assert (row.stream, row.kernel) == (20, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    assert (row.caused_by_op, row.module, row.parameter) == (
        "FSDP.post_backward",
        "blocks.0",
        "blocks.0.weight",
    )
    assert (row.source, row.phase, row.mesh_dim, row.implicit) == (
        "train.py:7 (step)",
        "backward",
        "dp",
        False,
    )
    assert rows(joined, "steps") == [step(known=True)]
    assert rows(joined, "notices") == []


def test_times_of_the_trace_are_moved_to_the_runs_epoch() -> None:
    live = ledger([step(known=False)], [collective(seq=5)], epoch_ns=1_000_000)
    traced = ledger([step(known=True)], [kernel(seq=5)], epoch_ns=1_500_000)
    joined = join(live, traced, {0})
    assert rows(joined)[0].start_ns == 20 * US + 500_000
    assert rows(joined, "steps")[0].start_ns == 500_000


def test_without_numbers_partners_are_found_in_order_and_checked_by_size() -> None:
    live = [collective(module="a"), collective(module="b", message_bytes=64), collective(module="c")]
    traced = [
        kernel(start_ns=20 * US),
        kernel(start_ns=30 * US, message_bytes=64),
        kernel(start_ns=40 * US),
    ]
    assert match(live, traced, {0}) == {0: 0, 1: 1, 2: 2}
    assert match(live, traced[::-1], {0}) == {2: 0, 1: 1, 0: 2}


def test_a_number_that_belongs_to_another_op_is_not_believed() -> None:
    live = [collective(seq=1, op="all_gather"), collective(seq=2)]
    traced = [kernel(seq=1)]
    assert match(live, traced, {0}) == {0: 1}


def test_a_kernel_of_unknown_op_or_group_is_taken_by_order() -> None:
    live = [collective(op="all_to_all")]
    assert match(live, [kernel(op="unknown", group="unknown", message_bytes=None)], {0}) == {0: 0}


def test_where_two_groups_fit_equally_none_is_taken() -> None:
    live = [collective(group="tp"), collective(group="dp")]
    assert match(live, [kernel(group="unknown")], {0}) == {}
    assert match(live, [kernel(group="dp")], {0}) == {0: 1}


def test_nothing_starts_before_it_was_asked_for() -> None:
    assert match([collective(issue_ns=900 * US)], [kernel(start_ns=20 * US)], {0}) == {}


def test_gloos_reduce_scatter_is_found_as_the_all_reduce_it_runs() -> None:
    live = [collective(op="reduce_scatter", message_bytes=4096)]
    assert match(live, [kernel(op="all_reduce", message_bytes=2048)], {0}) == {0: 0}
    assert match([collective(op="broadcast")], [kernel(op="all_reduce")], {0}) == {}


def test_steps_that_were_not_traced_stay_as_they_are() -> None:
    live = ledger(
        [step(0, known=False), step(1, known=False)], [collective(seq=1), collective(seq=2, step=1)]
    )
    traced = ledger([step(0, known=True), step(1, known=True)], [kernel(seq=1), kernel(seq=2, step=1)])
    joined = join(live, traced, {0})
    assert rows(joined)[1] == collective(seq=2, step=1)
    assert rows(joined, "steps")[1] == step(1, known=False)


def test_a_collective_only_the_trace_has_gets_a_row_so_that_shares_add_up() -> None:
    live = ledger([step(known=False)], [collective(seq=1)])
    hidden = kernel(seq=None, op="all_gather", start_ns=50 * US, exposed_ns=7 * US)
    traced = ledger([step(known=True, exposed_ns=10 * US)], [kernel(seq=1), hidden])
    joined = join(live, traced, {0})
    assert sum(row.exposed_ns for row in rows(joined)) == rows(joined, "steps")[0].exposed_comm_ns
    assert rows(joined)[1].caused_by_op is None
    (notice,) = rows(joined, "notices")
    assert notice.kind == "trace-unmatched"
    assert "0 recorded collectives were not found in the trace and 1 of the trace's" in notice.text


def test_times_that_live_capture_measured_are_never_replaced() -> None:
    known = collective(start_ns=20 * US, duration_ns=9 * US, exposed_ns=8 * US)
    live = ledger([step(known=True, exposed_ns=8 * US)], [known])
    traced = ledger([step(known=True)], [kernel(kernel="gloo:all_reduce", stream=None)])
    joined = join(live, traced, {0})
    assert rows(joined) == [replace(known, kernel="gloo:all_reduce")]
    assert rows(joined, "steps") == [step(known=True, exposed_ns=8 * US)]


def test_a_measured_start_far_from_the_traces_is_another_collective() -> None:
    known = collective(start_ns=20 * US, duration_ns=9 * US, exposed_ns=0)
    assert match([known], [kernel(start_ns=900 * US)], {0}) == {}
    assert match([known], [kernel(start_ns=21 * US)], {0}) == {0: 0}


def test_spans_fill_in_times_that_were_not_had() -> None:
    live = ledger([step(known=True)], [collective(exposed_ns=3 * US)])
    traced = ledger([step(known=True)], [kernel(exposed_ns=0)])
    (row,) = rows(join(live, traced, {0}))
    assert (row.start_ns, row.duration_ns, row.exposed_ns) == (20 * US, 5 * US, 3 * US)


def leadup(index: int) -> Leadup:
    return Leadup(0, 0, index, 0, 20 * US, 0, 0, 0, 0, 0, "backward")


def test_stalls_and_leadups_come_along_and_point_at_the_joined_rows() -> None:
    stall = Stall(0, 0, "host-sync", "cudaStreamSynchronize", "forward", 1, 4 * US, 2 * US)
    live = ledger([step(known=False)], [collective(seq=2), collective(seq=1)])
    traced = ledger(
        [step(known=True)],
        [kernel(seq=1), kernel(seq=2), kernel(op="barrier", message_bytes=None, start_ns=70 * US)],
        leadups=[leadup(0), leadup(1), leadup(2)],
        stalls=[stall, replace(stall, step=4)],
    )
    joined = join(live, traced, {0})
    assert [row.index for row in rows(joined, "leadups")] == [1, 0, 2]
    assert rows(joined, "stalls") == [stall]


def test_where_live_capture_measured_stalls_and_leadups_come_along_too() -> None:
    """On the CPU the split stays the live one; reasons for its idle time are cut to it."""
    known = collective(seq=1, start_ns=20 * US, duration_ns=5 * US, exposed_ns=3 * US)
    split = Step(0, 0, 0, 100 * US, 67 * US, 3 * US, 0, 30 * US, 0)
    told = [
        Stall(0, 0, "host", "", "forward", 1, 40 * US, 40 * US),
        Stall(0, 0, "data", "loader", "other", 1, 20 * US, 20 * US),
        Stall(0, 0, "recompute", "", "backward", 1, 5 * US, 5 * US),
    ]
    live = ledger([split], [known])
    traced = ledger([step(known=True)], [kernel(seq=1)], leadups=[leadup(0)], stalls=told)
    joined = join(live, traced, {0})
    assert rows(joined, "leadups") == [leadup(0)]
    assert rows(joined, "steps") == [split]
    assert [row.lost_ns for row in rows(joined, "stalls")] == [20 * US, 10 * US, 5 * US]


def test_the_notice_that_times_are_unknown_goes_where_they_are_known_now() -> None:
    said = [Notice(0, "times-unknown", "not captured", number) for number in (0, 1)]
    live = ledger([step(0, known=False), step(1, known=False)], notices=said)
    traced = ledger(
        [step(0, known=True)],
        notices=[Notice(0, "groups-unknown", "assumed"), Notice(0, "file-cut", "cut short")],
    )
    assert [(notice.kind, notice.step) for notice in rows(join(live, traced, {0}), "notices")] == [
        ("times-unknown", 1),
        ("file-cut", None),
    ]


def test_two_ranks_are_not_joined() -> None:
    with pytest.raises(ValueError, match="not one rank"):
        join(ledger(rank=0), ledger(rank=1), {0})


@given(st.lists(st.tuples(st.sampled_from(["all_reduce", "all_gather"]), st.integers(1, 3)), max_size=12))
def test_a_trace_that_lost_some_kernels_never_gets_a_wrong_size(found: list[tuple[str, int]]) -> None:
    live = [
        collective(op=op, message_bytes=size, issue_ns=at * 10 * US) for at, (op, size) in enumerate(found)
    ]
    traced = [
        kernel(op=op, message_bytes=size, start_ns=at * 10 * US + US)
        for at, (op, size) in enumerate(found)
        if at % 3
    ]
    pairs = match(live, traced, {0})
    assert len(pairs) == len(traced)
    assert len(set(pairs.values())) == len(pairs)
    for at, own in pairs.items():
        assert (live[own].op, live[own].message_bytes) == (traced[at].op, traced[at].message_bytes)


def test_a_trace_knows_more_than_events_around_the_waits_for_collectives() -> None:
    """On a device without a trace only stalls are known; a CPU's split without gloo's times stays."""
    stalled = Step(0, 0, 0, 100 * US, 0, 30 * US, 0, 0, 70 * US)
    split = Step(1, 0, 0, 100 * US, 60 * US, 30 * US, 0, 10 * US, 0)
    own = [collective(step=0, seq=1, exposed_ns=30 * US), collective(step=1, seq=2, exposed_ns=30 * US)]
    said = [Notice(0, "times-unknown", "no operators", number) for number in (0, 1)]
    live = ledger([stalled, split], own, notices=said)
    seen = [step(0, known=True), step(1, known=True)]
    joined = join(live, ledger(seen, [kernel(step=0, seq=1), kernel(step=1, seq=2)]), {0, 1})
    assert rows(joined, "steps") == [seen[0], split]
    assert [row.exposed_ns for row in rows(joined, "collectives")] == [3 * US, 30 * US]
    assert [notice.step for notice in rows(joined, "notices")] == [1]
