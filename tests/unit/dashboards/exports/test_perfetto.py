from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardtoll.cli.inputs.inputs import load_reports, sort_inputs
from shardtoll.cli.inputs.traces import TraceOptions
from shardtoll.dashboards.exports import perfetto
from shardtoll.dashboards.exports.packed import packed
from shardtoll.ledger import Collective, Compute, Finding, Report, Where
from shardtoll.ledger.tables.tables import to_table
from tests import sample_reports
from tests.matched import match_numbers, matched
from tests.place_rows import with_rows
from tests.sample_reports import MS
from tests.shared_inputs import shared
from tests.trace_events import check, read_ns


def events(report: Report, **more: int) -> list[dict[str, Any]]:
    return check("".join(perfetto.pieces(report, **more)))


def named(found: list[dict[str, Any]], what: str) -> dict[int, str]:
    return {
        one["pid" if what == "process_name" else "tid"]: one["args"]["name"]
        for one in found
        if one["name"] == what
    }


def of_rows(rows: list[Collective], **changes: Any) -> Report:
    base = sample_reports.report()
    tables = {**base.tables, "collectives": to_table("collectives", rows)}
    return matched(replace(base, tables=tables, **changes))


@pytest.mark.parametrize("make", ["report", "empty", "unknown", "hostile"])
def test_every_sample_passes_the_checker(make: str):
    report = getattr(sample_reports, make)()
    found = events(report)
    timed = [one for one in report.tables["collectives"].to_pylist() if one["start_ns"] is not None]
    assert sum(one.get("cat") == "collective" and one["ph"] == "X" for one in found) == len(timed)
    told = {one["args"]["finding"] for one in found if "title" in one.get("args", {})}
    assert told == set(range(1, len(report.findings) + 1))


def test_ranks_are_processes_and_groups_are_tracks():
    found = events(sample_reports.report())
    processes, tracks = named(found, "process_name"), named(found, "thread_name")
    assert processes == {1: "rank 0", 2: "rank 1", 3: "rank 2", 4: "rank 3", 6: "shardtoll: the bill"}
    of_rank_1 = [tracks[one["tid"]] for one in found if one["name"] == "thread_name" and one["pid"] == 2]
    assert of_rank_1 == [
        *("steps", "#1 wrong-gradient", "#2 implicit-redistribute"),
        *("tp ×2", "world ×4", "waiting"),
    ]
    # Its place is the optimizer on `world`, where no collective is.
    (instant,) = [one for one in found if one["ph"] == "i"]
    assert (instant["name"], instant["args"]["severity"]) == ("#3 latency-bound", "info")


def test_streams_are_tracks_where_they_are_known():
    rows = [sample_reports.collective(0, 0, at, 64, stream=7 + at % 2) for at in range(4)]
    assert {"stream 7", "stream 8"} < set(named(events(of_rows(rows)), "thread_name").values())


def test_a_collective_says_what_is_known_of_it_and_no_more():
    found = events(sample_reports.report())
    (one,) = [
        one for one in found
        if one.get("cat") == "collective" and one["ph"] == "X"
        and (one["args"]["rank"], one["args"].get("step"), one["args"].get("seq")) == (1, 1, 2)
    ]  # fmt: skip
    row = sample_reports.collective(1, 1, 2, 1 << 18)
    assert one["name"] == "all_reduce"
    assert (read_ns(one["ts"]), read_ns(one["dur"])) == (row.start_ns, row.duration_ns)
    assert one["args"] == {
        "rank": 1,
        "step": 1,
        "seq": 2,
        "group_size": 2,
        "message_bytes": 1 << 18,
        "wire_bytes": row.wire_bytes,
        "busbw_gbps": row.busbw_gbps,
        "floor_ns": row.floor_ns,
        "exposed_ns": row.exposed_ns,
        "wait_ns": 100_000,
        "transfer_ns": row.transfer_ns,
        "implicit": True,
        "phase": "forward",
        "group": "tp",
        "mesh_dim": "tp",
        "dtype": "float32",
        "source": "train.py:42 (step)",
        "caused_by_op": "aten.mm.default",
        "module": "blocks.0.mlp",
        "placements_from": "(Partial(sum),)",
        "placements_to": "(Replicate(),)",
        "findings": "#2",
    }
    (waiting,) = [
        one for one in found
        if one.get("cat") == "waiting" and [one["args"][key] for key in ("rank", "step", "seq")] == [1, 1, 2]
    ]  # fmt: skip
    assert (waiting["ts"], read_ns(waiting["dur"])) == (one["ts"], 100_000)


def test_a_finding_stands_where_its_collectives_run():
    found = events(sample_reports.report())
    of_2 = [one for one in found if one.get("cat") == "finding" and one["ph"] == "X" and one["pid"] == 3]
    outer = [one for one in of_2 if one["name"] == "#2 implicit-redistribute"]
    rows = [row for row in sample_reports.collectives() if row.rank == 2 and row.module == "blocks.0.mlp"]
    for step, one in zip((0, 1), outer, strict=True):
        mine = [row for row in rows if row.step == step]
        ends = [row.start_ns + row.duration_ns for row in mine]
        assert read_ns(one["ts"]) == mine[0].start_ns
        assert read_ns(one["ts"]) + read_ns(one["dur"]) == max(ends)
        assert (one["args"]["step"], one["args"]["collectives"]) == (step, 4)
        assert (one["args"]["toll_ns"], one["args"]["floor_ns"], one["args"]["saving_ns"]) == (
            *(9_400_000, 1_200_000, 8_200_000),
        )
        assert one["args"]["remedy"].startswith("reduce-scatter instead")
    inner = [one for one in of_2 if one["name"] == "collectives" and one["args"]["finding"] == 2]
    assert [(read_ns(one["ts"]), read_ns(one["dur"])) for one in inner] == [
        (row.start_ns, row.duration_ns) for row in rows
    ]


def test_findings_of_computes_stand_on_computes():
    computes = [
        Compute(
            0, 0, at, "aten.mm.default", 1, at * MS, MS // 2, "forward", "f32[8,8]", module=f"layers.{at}.mlp"
        )
        for at in range(3)
    ]
    finding = Finding(
        "duplicated-compute", "info", "twice", MS, None, None, None, 3, (0,), Where("forward", "layers.*.mlp")
    )
    base = of_rows([sample_reports.collective(0, 0, 0, 64, module="layers.0.mlp")], findings=(finding,))
    report = with_rows(replace(base, tables={**base.tables, "computes": to_table("computes", computes)}))
    outer, *inner = [one for one in events(report) if one.get("cat") == "finding"]
    assert (outer["name"], outer["args"]["computes"]) == ("#1 duplicated-compute", 3)
    assert [read_ns(one["ts"]) for one in inner] == [0, MS, 2 * MS]


def flows_of(report: Report) -> Counter[tuple[str, int]]:
    """Return (op, ranks) -> how many flows join as many ranks."""
    found = events(report)
    at = {
        (one["tid"], one["ts"]): one["name"]
        for one in found
        if one["ph"] == "X" and one["cat"] == "collective"
    }
    ranks = Counter(one["id"] for one in found if one["ph"] in "stf")
    ops = {one["id"]: at[one["tid"], one["ts"]] for one in found if one["ph"] == "s"}
    return Counter((ops[number], count) for number, count in ranks.items())


def test_flows_join_the_ranks_of_one_collective():
    # A record of `tp` without a number: its group goes by order, the fourth rank's group 2-3 as well.
    assert flows_of(sample_reports.report()) == {("all_reduce", 2): 2 * 2 * 5, ("all_gather", 4): 2}


@pytest.mark.parametrize(
    ("changes", "joined"),
    [
        ({}, 1),
        ({"op": "all_gather"}, 0),
        ({"message_bytes": 65}, 0),
        ({"seq": 1}, 0),
        # A group in which a record lacks a number goes by order.
        ({"seq": None}, 1),
        ({"group": "other"}, 0),
        ({"rank": 2}, 0),  # the other group of that name
        ({"start_ns": None}, 0),
    ],
)
def test_what_differs_is_not_joined(changes: dict[str, Any], joined: int):
    rows = [sample_reports.collective(0, 0, 0, 64), sample_reports.collective(0, 1, 0, 64)]
    rows[1] = replace(rows[1], **changes)
    assert flows_of(of_rows(rows)).total() == joined


def test_messages_are_joined_from_sender_to_receiver():
    def end(rank: int, at: int, op: str, peer: int, size: int = 64) -> Collective:
        return sample_reports.collective(
            0, rank, at, size, op=op, root=peer, seq=None, group="world", group_size=4
        )

    rows = [end(0, 0, "send", 1), end(1, 0, "recv", 0), end(0, 1, "send", 1, 8), end(1, 1, "recv", 0, 8)]
    assert flows_of(of_rows(rows)) == {("send", 2): 2}
    assert flows_of(of_rows(rows[:3])).total() == 0, "one more was sent than received: which is open"


def test_times_are_never_negative_and_the_shift_is_said():
    rows = [sample_reports.collective(0, 0, 0, 64, start_ns=-5_000_001)]
    text = "".join(perfetto.pieces(of_rows(rows)))
    check(text)
    about = json.loads(text)["otherData"]
    assert (about["shifted_by_ns"], about["epoch_ns_of_ts_0"]) == (5_000_001, -5_000_001)
    far = [
        sample_reports.collective(0, 0, at, 64, start_ns=start)
        for at, start in enumerate((-(2**63), 2**63 - 1, 0))
    ]
    assert json.loads("".join(perfetto.pieces(of_rows(far))))["otherData"]["collectives_without_times"] == 2


def test_written_in_pieces_it_is_the_same_and_the_same_again(tmp_path: Path):
    report = sample_reports.report()
    whole = "".join(perfetto.pieces(report))
    # Only waiting parts then stand elsewhere.
    assert sorted(map(str, events(report, chunk=3))) == sorted(map(str, check(whole)))
    assert perfetto.write(report, tmp_path / "x.perfetto.json") == [tmp_path / "x.perfetto.json"]
    assert (tmp_path / "x.perfetto.json").read_text(encoding="ascii") == whole
    for name in ("x.perfetto.json.gz", "y.Perfetto.JSON.GZ"):
        perfetto.write(report, tmp_path / name)
        assert gzip.decompress((tmp_path / name).read_bytes()).decode() == whole
    assert len({(tmp_path / name).read_bytes() for name in ("x.perfetto.json.gz", "y.Perfetto.JSON.GZ")}) == 1


def test_a_real_trace_of_eight_ranks_passes_the_checker():
    folder = shared("traces", "param_dlrm_v100_8ranks")
    ((_, report),) = load_reports(sort_inputs([str(folder)]), None, TraceOptions(cache=False), [])
    found = events(report)
    drawn = [one for one in found if one.get("cat") == "collective" and one["ph"] == "X"]
    assert len(drawn) == report.tables["collectives"].num_rows == 64
    # Eight collectives, each on all eight ranks.
    assert Counter(one["ph"] for one in found if one["ph"] in "stf") == {"s": 8, "t": 48, "f": 8}


span = st.tuples(st.integers(0, 40), st.integers(0, 12))


# On a busy machine drawing examples may be slow, which says nothing of what is tested.
BUSY = [HealthCheck.too_slow]


@settings(deadline=None, suppress_health_check=BUSY)
@given(st.lists(span, max_size=30))
def test_lanes_hold_no_overlap_and_are_as_few_as_can_be(spans: list[tuple[int, int]]):
    import numpy as np

    spans = sorted(spans)
    start, length = np.array([*zip(*spans, strict=True)] or [[], []], dtype=np.int64)
    lane = packed(start, start + length)
    busy = Counter(
        (at, number)
        for (begin, long), number in zip(spans, lane.tolist(), strict=True)
        for at in range(begin, begin + max(long, 1))
    )
    assert not busy or max(busy.values()) == 1
    at_once = Counter(at for at, _ in busy)
    assert len(set(lane.tolist())) == max(at_once.values(), default=0)


call = st.builds(
    lambda step, rank, seq, op, size, start, length, wait, stream: sample_reports.collective(
        0, rank, 0, size, seq=seq, op=op, start_ns=start, duration_ns=length, wait_ns=wait, step=step,
        stream=stream, transfer_ns=None, busbw_gbps=None,
    ),
    st.none() | st.integers(0, 2), st.integers(0, 3), st.none() | st.integers(0, 3),
    st.sampled_from(["all_reduce", "all_gather", "barrier", "all_to_all"]), st.sampled_from([8, 64]),
    st.none() | st.integers(-60, 60), st.none() | st.integers(0, 30), st.none() | st.integers(0, 40),
    st.none() | st.integers(0, 1),
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=BUSY)
@given(st.lists(call, max_size=25), st.sampled_from(["live", "trace"]))
def test_any_ledger_passes_the_checker(rows: list[Collective], source: str):
    report = of_rows(rows, run=replace(sample_reports.RUN, source=source))
    found = events(report, chunk=7)
    # A flow joins records of different ranks that agree in group, op and, where it counts, size.
    table, match = report.tables["collectives"].to_pylist(), match_numbers(report).tolist()
    for number in {*match} - {-1}:
        mine = [row for row, of in zip(table, match, strict=True) if of == number]
        assert len({row["rank"] for row in mine}) == len(mine) > 1
        assert len({(row["rank"] // 2, row["op"]) for row in mine}) == 1
        assert mine[0]["op"] in ("barrier", "all_to_all") or len({row["message_bytes"] for row in mine}) == 1
    drawn = [one for one in found if one.get("cat") == "collective" and one["ph"] == "X"]
    assert len(drawn) == sum(row["start_ns"] is not None and row["duration_ns"] is not None for row in table)
