"""Rows of the timeline, collectives that met, exposed time in parts, and numbers of equal rows."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from shardtoll.dashboards.facts import step_times
from shardtoll.dashboards.facts.row_codes import row_codes
from shardtoll.dashboards.facts.sites import sites
from shardtoll.dashboards.page.views import anatomy, page_roofline, timeline, timeline_rows
from shardtoll.ledger import Group, Report
from shardtoll.ledger.tables.tables import to_table
from tests import sample_reports
from tests.matched import match_numbers, matched
from tests.sample_reports import MS, collective


def with_calls(rows: list, **changes: object) -> Report:
    tables = dict(sample_reports.report().tables) | {"collectives": to_table("collectives", rows)}
    return matched(sample_reports.report(tables=tables, **changes))


def test_numbers_of_equal_rows_against_a_dict():
    dice = random.Random(7)
    rows = [{"a": dice.choice([None, 1, 2]), "b": dice.choice([None, "x", "y", ""])} for _ in range(200)]
    code, first = row_codes(pa.Table.from_pylist(rows), ["a", "b"])
    known: dict[tuple[object, object], int] = {}
    assert code.tolist() == [known.setdefault((row["a"], row["b"]), len(known)) for row in rows]
    assert [tuple(rows[at].values()) for at in first] == list(known)


def test_numbers_do_not_run_over_with_many_columns():
    columns = [str(at) for at in range(12)]
    rows = [dict.fromkeys(columns, at % 500) for at in range(1000)]
    code, first = row_codes(pa.Table.from_pylist(rows), columns)
    assert code.tolist() == [at % 500 for at in range(1000)]
    assert len(first) == 500
    empty, none = row_codes(pa.table({"a": pa.array([], pa.int64())}), ["a"])
    assert (len(empty), len(none)) == (0, 0)


def test_ranks_of_one_collective_met():
    report = sample_reports.report()
    frame = report.collectives.assign(met=match_numbers(report))
    for (group, seq, pair), rows in frame[frame["step"].notna()].groupby(
        ["group", "seq", frame["rank"] // 2]
    ):
        # Sequence numbers begin anew in each step of this report: their order tells them apart.
        assert len(set(rows["met"])) == 2, (group, seq, pair)
    gathers = frame[frame["op"] == "all_gather"]
    assert sorted(gathers.groupby("met")["rank"].agg(list)) == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert frame.loc[frame["seq"].isna(), "met"].tolist() == [-1]


@pytest.mark.parametrize(
    ("change", "meets"),
    [({}, True), ({"seq": 1}, False), ({"op": "all_gather"}, False), ({"message_bytes": 4}, False),
     ({"seq": None}, True), ({"rank": 2}, False)],
)  # fmt: skip
def test_what_differs_did_not_meet(change, meets):
    report = with_calls([collective(0, 0, 0, 8), replace(collective(0, 1, 0, 8), **change)])
    first, second = match_numbers(report).tolist()
    assert (first == second >= 0) is meets


def test_a_group_that_nobody_described_meets_only_as_the_world():
    rows = [collective(0, rank, 0, 8, group="g", group_size=4) for rank in range(4)]
    assert len(set(match_numbers(with_calls(rows, groups=())).tolist())) == 1
    assert set(match_numbers(with_calls([replace(row, group_size=2) for row in rows], groups=()))) == {-1}
    # Nor where two groups fit.
    both = (Group("g", (0, 1)), Group("g", (0, 2)))
    assert match_numbers(with_calls([replace(rows[0], group_size=2)] * 2, groups=both)).tolist() == [-1, -1]


def test_rows_are_split_by_stream_where_one_is_known():
    rows = [collective(0, rank, seq, 8, stream=20 + seq % 2) for rank in (0, 1) for seq in range(4)]
    found = timeline_rows.lanes(with_calls(rows).collectives, [0, 1])
    assert found.of_call.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert [found.label(row) for row in range(4)] == [
        f"rank {rank} · stream {stream}" for rank in (0, 1) for stream in (20, 21)
    ]
    assert found.extent() == {0: (0.5, 0.5), 1: (2.5, 0.5)}


def test_streams_beyond_the_most_share_the_last_row():
    rows = [collective(0, 0, at, 8, stream=at, duration_ns=1000 * (9 - at)) for at in range(7)]
    found = timeline_rows.lanes(with_calls(rows).collectives, [0])
    assert found.names == ("stream 0", "stream 1", "stream 2", "others")
    assert found.of_call.tolist() == [0, 1, 2, 3, 3, 3, 3]
    assert found.notes == ("A rank has at most 4 rows; the one named others holds its other streams.",)


def test_a_rank_with_one_group_has_one_row():
    rows = [collective(0, 0, 0, 8), collective(0, 0, 1, 8, mesh_dim="dp"), collective(0, 1, 0, 8)]
    found = timeline_rows.lanes(with_calls(rows).collectives, [0, 1, 2])
    assert [found.label(row) for row in range(4)] == ["rank 0 · dp", "rank 0 · tp", "rank 1", "rank 2"]
    assert found.of_call.tolist() == [1, 0, 2]


def test_many_ranks_have_one_row_each_and_it_is_said():
    rows = [
        collective(0, rank, seq, 8, mesh_dim=dim)
        for rank in range(20)
        for seq, dim in enumerate(("tp", "dp"))
    ]
    calls = with_calls(rows, run=replace(sample_reports.RUN, world_size=20, ranks_seen=tuple(range(20))))
    found = timeline_rows.lanes(calls.collectives, range(20))
    assert found.ranks == tuple(range(20))
    assert found.notes == ("Each rank has one row: there are 20, and up to 16 have one for each group.",)


def test_more_ranks_than_rows_keep_the_most_exposed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timeline, "RANKS_DRAWN", 2)
    rows = [collective(0, rank, 0, 8, exposed_ns=[5, 9, 7, None][rank]) for rank in range(4)]
    figure = timeline.figure(with_calls(rows))
    assert figure.columns["rows"] == {"rank": [1, 2]}
    assert figure.notes == ["The 2 ranks with the most exposed time of 4 have a row."]


def test_dearest_keeps_all_who_met():
    rows = [
        collective(0, rank, seq, 8, exposed_ns=1000 * (seq == 1) * (rank == 0) + 300 * (seq == 2))
        for rank, seq in itertools.product((0, 1), range(4))
    ]
    figure = timeline.figure(with_calls(rows), drawn=3)
    # The second on rank 0 costs most; the rank that it met there is drawn with it, cheap as it was.
    assert figure.columns["calls"]["number"] == [1, 1]
    assert figure.columns["calls"]["met"] == [0, 0]
    assert sum(figure.columns["folded"]["calls"]) == 6


def test_exposed_time_is_what_transfer_leaves_for_waiting():
    rows = [
        collective(0, 0, 0, 8, exposed_ns=10 * MS, transfer_ns=4 * MS),
        collective(0, 0, 1, 8, exposed_ns=1 * MS, transfer_ns=4 * MS),
        collective(0, 0, 2, 8, exposed_ns=1 * MS, transfer_ns=None),
        collective(0, 0, 3, 8, step=None, exposed_ns=90 * MS, transfer_ns=1),
    ]
    report = with_calls(rows)
    times = step_times.rank_times(report)
    own, other = times[:2]
    # The mean of two steps: exposed 12 ms in each, of which the records tell 11 ms in one.
    assert (own.waiting_ns, own.moving_ns, own.parts_ns[1]) == (3 * MS, 2.5 * MS, 12 * MS)
    assert (other.waiting_ns, other.moving_ns, other.parts_ns[1]) == (0, 0, 12 * MS)
    _, rest = step_times.fold(times, 2)
    assert rest is not None
    assert len(rest.ranks) == 3
    assert (rest.waiting_ns or 0) + (rest.moving_ns or 0) <= (rest.parts_ns[1] or 0)
    figure = anatomy.figure(report)
    assert [round(sum(trace["x"][rank] for trace in figure.data), 6) for rank in range(4)] == [50, 50, 53, 50]


def test_shares_that_overlap_add_up_to_the_step_still():
    rows = [collective(0, 0, seq, 8, exposed_ns=20 * MS, transfer_ns=10 * MS) for seq in range(4)]
    report = with_calls(rows)
    own = step_times.rank_times(report)[0]
    # In one of the two steps: 12 ms were exposed there, of which half is waiting.
    assert (own.waiting_ns, own.moving_ns, own.parts_ns[1]) == (3 * MS, 3 * MS, 12 * MS)


def test_many_ranks_are_folded_in_the_anatomy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(anatomy, "RANKS_DRAWN", 3)
    figure = anatomy.figure(sample_reports.report())
    assert figure.data[0]["y"] == ["rank 0", "rank 2 (slowest)", "2 others"]
    assert figure.notes == [
        "Times include the recording: at least 2.00 ms of the 50.8 ms step (capture).",
        "The 2 slowest of 4 ranks are drawn, and the mean of the other 2.",
    ]


def test_bands_are_drawn_where_the_report_has_them():
    rows = [
        collective(0, 0, seq, size, band_low_ns=1000, band_high_ns=4000) for seq, size in enumerate((64, 256))
    ]
    (band, *_) = page_roofline.figure(sites(with_calls(rows))).data
    assert (band["name"], band["fill"], band["showlegend"]) == ("nine of ten sound runs", "toself", True)
    # busbw of an all_reduce on two ranks is bytes over ns.
    assert band["x"] == [64.0, 256.0, 256.0, 64.0]
    assert band["y"] == [0.016, 0.064, 0.256, 0.064]
    assert not [t for t in page_roofline.figure(sites(sample_reports.report())).data if t.get("fill")]
