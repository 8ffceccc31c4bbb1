"""The late rank of each collective: which rows are one, which come first, and where they are shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.dashboards.facts.waits import late_ranks
from shardtoll.dashboards.page import page
from shardtoll.dashboards.terminal import terminal
from shardtoll.ledger import Collective, Report, Run, Step
from shardtoll.ledger.tables.tables import to_table
from tests import sample_reports
from tests.matched import matched
from tests.sample_reports import MS, collective

US = 1_000


def of(*rows: Collective, **changes: object) -> Report:
    tables = {**sample_reports.report().tables, "collectives": to_table("collectives", rows)}
    return matched(replace(sample_reports.report(), tables=tables, **changes))  # type: ignore[arg-type]


def pair(seq: int | None = 0, /, ranks: tuple[int, int] = (0, 1), **changes: object) -> list[Collective]:
    """Return a collective of which the second rank comes 100 us late."""
    given = {"wait_ns": 0, "exposed_ns": 500 * US, "seq": seq} | changes
    first, last = ranks
    return [
        collective(0, first, 0, 4096, **given | {"wait_ns": 100 * US}),
        collective(0, last, 0, 4096, **given),
    ]


def test_time_and_bandwidth_of_a_row_give_the_data_that_moved():
    # Two ranks with unequal times: the median time and the median of 1/time do not belong together.
    times_us = 4_600, 15_600
    rows = [
        replace(row, transfer_ns=time * US, busbw_gbps=row.message_bytes / (time * US))
        for row, time in zip(pair(), times_us, strict=True)
    ]
    (found,), _ = late_ranks(of(*rows))
    assert found.transfer_ns == 4_600 * US
    assert found.busbw_gbps is not None
    assert found.busbw_gbps * found.transfer_ns == pytest.approx(rows[0].message_bytes)


def test_the_row_says_who_was_late_and_by_how_much():
    rows = [
        collective(0, 0, 0, 4096, group="world", group_size=4, mesh_dim=None, wait_ns=900 * US),
        collective(0, 1, 0, 4096, group="world", group_size=4, mesh_dim=None, wait_ns=400 * US),
        collective(0, 2, 0, 4096, group="world", group_size=4, mesh_dim=None, wait_ns=0, transfer_ns=90 * US),
        collective(0, 3, 0, 4096, group="world", group_size=4, mesh_dim=None, wait_ns=700 * US),
    ]
    (found,), total = late_ranks(of(*rows))
    assert total == 1
    assert (found.rank, found.late_ns, found.wait_ns) == (2, 400 * US, 900 * US)
    assert found.transfer_ns == rows[0].transfer_ns
    assert found.cells() == (
        "0", "all_reduce", "×4 world", "4.10 kB", "202 µs", "900 µs", "2, by 400 µs", "20.3 MB/s"
    )  # fmt: skip


def test_dearest_first_and_the_rest_counted():
    rows = [row for seq in range(20) for row in pair(seq, exposed_ns=(seq * 7 % 20) * US)]
    found, total = late_ranks(of(*rows), most=3)
    assert (len(found), total) == (3, 20)
    rows += pair(20, exposed_ns=MS, message_bytes=77)
    assert [row.message_bytes for row in late_ranks(of(*rows), most=2)[0]] == [77, 4096]


def test_a_step_that_one_rank_surveyed_alone_is_not_among_them():
    rows = [row for step in (0, 1) for row in pair(step, step=step)]
    levels = {(0, 0): "survey", (0, 1): "survey", (1, 0): "watch", (1, 1): "survey"}
    steps = [Step(at, rank, 0, MS, 0, 0, 0, 0, MS, level=level) for (at, rank), level in levels.items()]
    report = of(*rows)
    report = replace(report, tables={**report.tables, "steps": to_table("steps", steps)})
    found, total = late_ranks(report)
    assert ([row.step for row in found], total) == ([0], 1)


def test_ranks_that_come_together_have_no_late_one():
    (found,), _ = late_ranks(of(pair(0)[0], replace(pair(0)[1], wait_ns=95 * US)))
    assert found.rank is None
    assert found.cells()[6] == "none"


def test_sub_groups_of_one_name_are_kept_apart():
    found, total = late_ranks(of(*pair(0), *pair(0, ranks=(3, 2))))
    assert total == 2
    assert sorted(row.rank for row in found if row.rank is not None) == [1, 2]


def test_without_numbers_the_order_of_asking_in_the_step_counts():
    def asked(at: int, start: int, size: int, rank: int, wait: int) -> Collective:
        return collective(
            0, rank, 0, size, seq=None, issue_ns=at, start_ns=start, wait_ns=wait, exposed_ns=size * US
        )

    rows = [
        asked(1, 10 * MS, 1000, 0, 50 * US),
        asked(2, 20 * MS, 10, 0, 0),
        # Begun in another order than asked for.
        asked(2, 10 * MS, 10, 1, 60 * US),
        asked(1, 20 * MS, 1000, 1, 0),
    ]
    found, total = late_ranks(of(*rows))
    assert total == 2
    assert [(row.message_bytes, row.rank, row.late_ns) for row in found] == [
        (10, 0, 60 * US),
        (1000, 1, 50 * US),
    ]


@pytest.mark.parametrize(
    "rows",
    [
        pair(0)[:1],
        [pair(0)[0], replace(pair(0)[1], wait_ns=None)],
        [replace(row, group="other") for row in pair(0)],
        [replace(row, op="send") for row in pair(0)],
        [*pair(None), pair(None)[0]],
        [replace(row, seq=None, step=None) for row in pair(0)],
        [],
    ],
    ids=["rank missing", "wait unknown", "group unknown", "message", "counts differ", "no step", "none"],
)
def test_what_is_not_matched_is_not_shown(rows: list[Collective], capsys: pytest.CaptureFixture[str]):
    report = of(*rows)
    assert late_ranks(report) == ([], 0)
    terminal.show(report, 100)
    assert "late rank of" not in capsys.readouterr().out
    assert "late rank of" not in page.render(report)


@pytest.mark.parametrize("width", [50, 140])
def test_the_terminal_holds_every_cell(width: int, capsys: pytest.CaptureFixture[str]):
    report = of(*(row for seq in range(14) for row in pair(seq)))
    terminal.show(report, width)
    text = " ".join(capsys.readouterr().out.split())
    for part in ("the late rank of each collective", "×2 tp", "1, by 100 µs", "and 2 more collectives"):
        assert part in text


def test_the_page_has_the_table():
    text = page.render(of(*pair(0)))
    assert '<h2 id="late">The late rank of each collective</h2>' in text
    assert "<td><bdi>1, by 100 µs</bdi></td>" in text


def test_names_stay_text_on_the_page():
    run = replace(sample_reports.RUN, world_size=2, ranks_seen=(0, 1))
    assert isinstance(run, Run)
    base = sample_reports.report()
    tables = {
        **sample_reports.of_ranks(base.tables, (0, 1)),
        "collectives": to_table("collectives", pair(0, group="<b>x", mesh_dim="<script>y")),
    }
    text = page.render(matched(replace(base, run=run, tables=tables)))
    assert "<script>y" not in text
    assert "&lt;script&gt;y" in text


@pytest.mark.parametrize("changes", [{"op": "all_gather"}, {"message_bytes": 9}, {"seq": 1}])
def test_nobody_is_late_to_what_the_other_was_not_in(changes: dict[str, object]):
    first, second = pair()
    assert late_ranks(of(first, second))[1] == 1
    report = of(first, replace(second, **changes))  # type: ignore[arg-type]
    assert late_ranks(report) == ([], 0)
    assert report.steps["waited_for_ns"].isna().all()


def test_waiting_moving_and_the_rest_add_up_to_what_was_exposed():
    """A collective without a known wait is neither waiting nor moving: its part stands by itself."""
    steps = matched(sample_reports.report()).steps
    parts = steps[["exposed_wait_ns", "exposed_move_ns", "exposed_unsplit_ns"]].astype("int64")
    assert (parts.sum(axis=1) == steps["exposed_comm_ns"]).all()
    assert (parts >= 0).all(axis=None)
    assert parts["exposed_unsplit_ns"].any()
