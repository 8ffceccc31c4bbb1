"""Whole columns at once give the rows that the long way gives, region by region."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.ledger.records.step_rows import StepRows
from shardtoll.ledger.tables.tables import to_table
from shardtoll.profiler.live.capture.rows import Ended, Passed, Setting, make_rows
from shardtoll.profiler.live.capture.sequence import Template, grown
from shardtoll.profiler.live.capture.watch_rows import WatchRows, completed, exposed_of_each
from shardtoll.profiler.live.cause.pending import Message, PendingCollective, Place, Region, UnseenAfter, Wait
from shardtoll.profiler.live.times.clock import Clock
from shardtoll.profiler.live.times.device_times import DeviceReading

END = 400
EPOCH_NS = 10
GROUPS = ("world", "tp")
PARTS = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "unattributed_ns")
CLOCK = Clock()
times = st.integers(0, END)


def setting(*, host_times: bool = True) -> Setting:
    return Setting(1, CLOCK, CLOCK.to_unix(0) + EPOCH_NS, lambda group: f"dim {group}", host_times)


def collective(at: int, issue_ns: int, group: str, seq: int | None) -> PendingCollective:
    place = Place("forward", module=f"layer {at}", source=f"train.py:{at}", caused_by_op="all_reduce")
    message = Message("all_reduce", group, 2, "float32", 64 * at, 64 * at, "SUM")
    return PendingCollective(message, place, issue_ns, seq, growth=1, key=(at,))


@st.composite
def regions(draw: st.DrawFn) -> tuple[list[Ended], Template]:
    """Steps of one sequence, with waits of all kinds: nested, overlapping, ownerless."""
    groups = draw(st.lists(st.sampled_from(GROUPS), max_size=5))
    growth = {group: groups.count(group) for group in groups}
    first = [collective(at, at, group, None) for at, group in enumerate(groups)]
    keys = tuple(each.key or () for each in first)
    places = tuple(range(len(first)))
    template = Template(tuple(first), (None,) * len(first), keys, places, growth, surveyed=True)
    made = []
    for step in range(draw(st.integers(1, 3))):
        start: dict[str, int | None] = dict.fromkeys(GROUPS, 100 * step)
        seen = dict(start)
        region = Region(step, step * END, start, light=True, watched=True)
        issued = sorted(draw(st.lists(times, min_size=len(groups), max_size=len(groups))))
        for at, (group, issue) in enumerate(zip(groups, issued, strict=True)):
            seen[group] = number = (seen[group] or 0) + 1
            region.collectives.append(collective(at, step * END + issue, group, number))
        for _ in range(draw(st.integers(0, 5)) if groups else 0):
            begin, end = sorted((draw(times), draw(times)))
            # Nothing can be waited for before the first has been issued.
            begin, end = max(begin, issued[0]), max(end, issued[0])
            may_own = [None, *(at for at, issue in enumerate(issued) if issue <= begin)]
            owner = draw(st.sampled_from(may_own))
            region.waits.append(Wait(step * END + begin, step * END + end, owner))
        made.append(Ended(region, (step + 1) * END, seen, template=template, same=True))
    return made, template


def tables_of(made: Sequence[Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {"steps": [], "collectives": [], "counts": []}
    for each in made:
        if isinstance(each, StepRows):
            assert each.step is not None
            parts = {"steps": [each.step], "collectives": each.collectives, "counts": each.counts}
            for table, rows in parts.items():
                found[table] += to_table(table, rows).to_pylist()
        else:
            for table in found:
                found[table] += pa.Table.from_batches([each[table]]).to_pylist()
    return found


def the_long_way(watched: Sequence[Ended], *, host_times: bool = True) -> list[StepRows]:
    given = setting(host_times=host_times)
    return [
        make_rows(Ended(copy.deepcopy(each.region), each.end_ns, each.at_end), given, spans=None)
        for each in watched
    ]


def without(rows: list[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in columns} for row in rows]


@given(regions(), st.booleans())
def test_columns_at_once_are_the_rows_of_the_long_way(
    made: tuple[list[Ended], Template], host_times: bool
) -> None:
    watched, _ = made
    quick = tables_of(WatchRows(setting(host_times=host_times)).make(watched, None))
    slow = tables_of(the_long_way(watched, host_times=host_times))
    assert quick["counts"] == slow["counts"]
    assert quick["steps"] == slow["steps"]
    # How instants that several waits claim are shared among their collectives is each way's own choice.
    assert without(quick["collectives"], "exposed_ns") == without(slow["collectives"], "exposed_ns")
    for row in quick["collectives"]:
        assert row["start_ns"] is None
        assert row["duration_ns"] is None
        assert (row["exposed_ns"] is None) == (not host_times)


@given(regions())
def test_parts_add_up_and_exposed_times_are_the_blocked_instants(
    made: tuple[list[Ended], Template],
) -> None:
    watched, _ = made
    tables = tables_of(WatchRows(setting()).make(watched, None))
    for each, step in zip(watched, tables["steps"], strict=True):
        assert sum(step[part] for part in PARTS) == step["duration_ns"] == END
        mine = [c["exposed_ns"] for c in tables["collectives"] if c["step"] == step["step"]]
        blocked = {at for wait in each.region.waits for at in range(wait.start_ns, wait.end_ns)}
        assert sum(mine) == step["exposed_comm_ns"] == len(blocked)
        assert step["level"] == "watch"


@given(regions())
def test_numbers_are_those_of_the_groups_and_causes_those_of_the_survey(
    made: tuple[list[Ended], Template],
) -> None:
    watched, template = made
    tables = tables_of(WatchRows(setting()).make(watched, None))
    length = len(template.collectives)
    for at, row in enumerate(tables["collectives"]):
        region = watched[at // length].region if length else watched[0].region
        known = template.collectives[at % length]
        assert row["seq"] == region.collectives[at % length].seq
        assert (row["module"], row["source"]) == (known.place.module, known.place.source)
        assert row["mesh_dim"] == f"dim {row['group']}"
        assert row["input_hash"] is None
    for each, counts in zip(watched, [tables["counts"]] * len(watched), strict=True):
        mine = [count for count in counts if count["step"] == each.region.step]
        assert all(count["issued"] == count["recorded"] for count in mine)
        assert {count["group"] for count in mine} == set(GROUPS)


def test_a_wait_within_a_wait_counts_once() -> None:
    region = Region(0, 0, {}, watched=True)
    region.collectives = [collective(0, 10, "tp", 1), collective(1, 20, "tp", 2)]
    region.waits = [Wait(12, 40, 0), Wait(22, 30, 1), Wait(35, 50, 1), Wait(60, 60, 0)]
    assert exposed_of_each(region) == ([28, 10], 38)


def test_what_cpp_issues_stands_where_the_survey_has_it_its_time_of_issue_unknown() -> None:
    first = [collective(0, 5, "tp", 8), collective(1, 6, "tp", 9), collective(2, 7, "world", 3)]
    first[1].key = None
    template = Template(tuple(first), (1, 2, 1), ((0,), (2,)), (0, 2), {"tp": 2, "world": 1}, surveyed=True)
    region = Region(4, 1000, {"tp": 50, "world": 60}, light=True, watched=True)
    region.collectives = [collective(0, 1005, "tp", 51), collective(2, 1010, "world", 61)]
    at_end = {"tp": 52, "world": 61}
    assert grown(region, at_end) == template.growth
    whole = completed(region, template, same=True)
    assert [(c.seq, c.unseen, c.place.module) for c in whole] == [
        (51, False, "layer 0"),
        (52, True, "layer 1"),
        (61, False, "layer 2"),
    ]
    (rows,) = WatchRows(setting()).make([Ended(region, 1100, at_end, template=template, same=True)], None)
    assert isinstance(rows, StepRows)
    assert [c.issue_ns is None for c in rows.collectives] == [False, True, False]
    assert [(count.group, count.issued, count.recorded) for count in rows.counts] == [
        ("tp", 2, 2),
        ("world", 1, 1),
    ]


def test_regions_that_repeat_nothing_keep_their_order_among_those_that_do() -> None:
    def region(step: int) -> Region:
        found = Region(step, 100 * step, {"tp": 0}, light=True, watched=True)
        found.collectives = [collective(0, 100 * step + 1, "tp", 1)]
        return found

    known = collective(0, 1, "tp", 1)
    template = Template((known,), (1,), ((0,),), (0,), {"tp": 1}, surveyed=True)
    watched = [
        Ended(
            region(step),
            100 * step + 90,
            {"tp": 1},
            template=None if step == 2 else template,
            same=step != 2,
        )
        for step in range(4)
    ]
    made = WatchRows(setting()).make(watched, None)
    assert len(made) == 3, "two steps at once, one by itself, and the last"
    tables = tables_of(made)
    assert [step["step"] for step in tables["steps"]] == [0, 1, 2, 3]
    assert [row["step"] for row in tables["collectives"]] == [0, 1, 2, 3]


@given(regions(), st.data())
def test_what_the_device_tells_of_repetitions_is_what_it_tells_the_long_way(
    made: tuple[list[Ended], Template], data: st.DataObject
) -> None:
    watched, _ = made
    stalls = [
        tuple(
            (pending, data.draw(st.integers(0, 200)))
            for pending in each.region.collectives
            if data.draw(st.booleans())
        )
        for each in watched
    ]
    readings = [DeviceReading(data.draw(st.integers(0, 900)), each) for each in stalls]
    given = setting(host_times=False)
    passed = [Passed(*each) for each in zip(watched, readings, strict=True)]
    quick = list(WatchRows(given).passed(passed))
    assert not any(isinstance(each, StepRows) for each in quick)
    slow = [
        WatchRows(given).single(ended, None, device) for ended, device in zip(watched, readings, strict=True)
    ]
    assert tables_of(quick) == tables_of(slow)


def test_what_cpp_issues_is_told_by_the_device_as_the_long_way_tells_it() -> None:
    first = [collective(0, 5, "tp", 8), collective(1, 6, "tp", 9), collective(2, 7, "world", 3)]
    first[1].key = None
    template = Template(tuple(first), (1, 2, 1), ((0,), (2,)), (0, 2), {"tp": 2, "world": 1}, surveyed=True)

    def region() -> Region:
        found = Region(4, 1000, {"tp": 50, "world": 60}, light=True, watched=True)
        found.collectives = [collective(0, 1005, "tp", 51), collective(2, 1010, "world", 61)]
        found.waits = [Wait(1020, 1030, 1)]
        found.drains = [(1040, 1060)]
        return found

    given, at_end = setting(host_times=False), {"tp": 52, "world": 61}
    ended = Ended(region(), 1100, at_end, template=template, same=True)
    stalls = ((ended.region.collectives[1], 7), (UnseenAfter(ended.region.collectives[0]), 30))
    device = DeviceReading(90, stalls)
    (quick,) = WatchRows(given).passed([Passed(ended, device)])
    assert not isinstance(quick, StepRows)
    found = tables_of([quick])
    assert found == tables_of([WatchRows(given).single(ended, None, device)])
    assert [row["exposed_ns"] for row in found["collectives"]] == [0, 30, 7]
    assert [row["issue_ns"] is None for row in found["collectives"]] == [False, True, False]
    assert [(row["duration_ns"], row["exposed_comm_ns"]) for row in found["steps"]] == [(90, 37)]
    # In other sizes than the survey's nobody knows how much C++ sent.
    other = Ended(region(), 1100, at_end, template=template, same=False)
    (rows,) = WatchRows(given).passed([Passed(other, device)])
    assert isinstance(rows, StepRows)
    assert rows.collectives[1].message_bytes is None


def test_columns_of_many_numbers_of_repetitions_stay_right() -> None:
    known = collective(0, 1, "tp", 1)
    template = Template((known,), (1,), ((0,),), (0,), {"tp": 1}, surveyed=True)
    rows = WatchRows(setting(host_times=False))
    step = 0
    for times in [3, 1, 2, *range(40, 1, -1), 3, 41, 1]:
        passed = []
        for _ in range(times):
            region = Region(step, 100 * step, {"tp": 0}, light=True, watched=True)
            region.collectives = [collective(0, 100 * step + 1, "tp", 1)]
            ended = Ended(region, 100 * step + 90, {"tp": 1}, template=template, same=True)
            passed.append(Passed(ended, DeviceReading(90, ())))
            step += 1
        (made,) = rows.passed(passed)
        assert not isinstance(made, StepRows)
        found = tables_of([made])["collectives"]
        assert [row["step"] for row in found] == list(range(step - times, step))
        assert [row["group"] for row in found] == ["tp"] * times
