"""Sweeps from CSV: what is read, and the one line that is told of each mistake."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.roofline import Placement
from shardtoll.analyzers.roofline.evaluate.sweep import MOST_BYTES, SweepPoint, parse_sweep
from shardtoll.ledger import UsageError
from tests.unit.analyzers.sweeps import H100, HEADER, straight, sweep_text

ROW = "s,hw,2,16,all_reduce,1024,10.5,0,0,10.6,"


def told(text: str) -> str:
    with pytest.raises(UsageError) as raised:
        parse_sweep(text, "x.csv")
    line = str(raised.value)
    assert "\n" not in line
    assert len(line) < 300
    return line


def test_rows_are_read_in_any_order_and_sorted_by_size():
    text = "\n".join((HEADER, ROW.replace("1024", "2048"), "", ROW, ""))
    sweep = parse_sweep(text, "x.csv")
    assert (sweep.hardware, sweep.nodes, sweep.ranks, sweep.op) == ("hw", 2, 16, "all_reduce")
    assert sweep.points == (SweepPoint(1024, 10_500, 10_600), SweepPoint(2048, 10_500, 10_600))
    assert sweep.placement == Placement(16, 2, 8)
    assert sweep.source == "s"


def test_columns_may_stand_in_any_order_and_others_are_not_read():
    text = "bytes,time_us,extra,collective,gpus,nodes,hardware\n8,1.5,x,sendrecv,4,1,hw\n"
    sweep = parse_sweep(text, "x.csv")
    assert sweep.points == (SweepPoint(8, 1_500, None),)
    assert (sweep.settings, sweep.source) == ("", "")


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("alltoall", "all_to_all"),
        ("alltoallv", "all_to_all"),
        ("all_to_all", "all_to_all"),
        ("sendrecv", "send"),
        ("sendrecv_perf", "send"),
        ("all_reduce_perf", "all_reduce"),
        ("All_Gather", "all_gather"),
        ("reduce_scatter", "reduce_scatter"),
        ("broadcast", "broadcast"),
        ("reduce", "reduce"),
        ("gather", "gather"),
        ("scatter", "scatter"),
    ],
)
def test_collectives_have_the_names_of_nccl_tests(name: str, op: str):
    assert parse_sweep(f"{HEADER}\n{ROW.replace('all_reduce', name)}", "x").op == op


@pytest.mark.parametrize("cell", ["", "N/A", "0", "0.00"])
def test_no_time_in_place_is_none(cell: str):
    text = f"{HEADER}\n{ROW.replace('10.6', cell)}"
    assert parse_sweep(text, "x").points[0].inplace_ns is None


def test_numbers_that_a_spreadsheet_wrote_are_whole():
    text = f"\ufeff{HEADER}\r\n{ROW.replace(',2,16,', ',2.0,16.0,').replace('1024', '1024.0')}\r\n"
    sweep = parse_sweep(text, "x")
    assert (sweep.nodes, sweep.ranks, sweep.points[0].message_bytes) == (2, 16, 1024)


def test_a_cell_with_a_comma_is_quoted():
    assert parse_sweep(sweep_text(straight(10, 100)), "x").hardware == H100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "x.csv has no column hardware, nodes, gpus, collective, bytes, time_us: "),
        ("a,b\n1,2\n", "x.csv has no column hardware, "),
        (HEADER.replace("time_us,", "t,"), "x.csv has no column time_us: "),
        (HEADER.replace("source", "bytes") + "\n" + ROW, "x.csv has the column bytes twice: "),
        (HEADER, "x.csv has no rows: "),
        (f"{HEADER}\n\n ,\n", "x.csv has no rows: "),
        (f"{HEADER}\n{ROW}x,y", "x.csv line 2 has 12 cells, the header 11: "),
        (f'{HEADER}\n"{ROW}', "x.csv is not CSV ("),
        (f"{HEADER}\n{ROW.replace('10.5', 'fast')}", "x.csv line 2 has time_us 'fast': "),
        (f"{HEADER}\n{ROW.replace('10.5', '')}", "x.csv line 2 has time_us '': "),
        (f"{HEADER}\n{ROW.replace('10.5', '0')}", "x.csv line 2 has time_us '0': "),
        (f"{HEADER}\n{ROW.replace('10.5', '-1')}", "x.csv line 2 has time_us '-1': "),
        (f"{HEADER}\n{ROW.replace('10.5', 'nan')}", "x.csv line 2 has time_us 'nan': "),
        (f"{HEADER}\n{ROW.replace('10.5', 'inf')}", "x.csv line 2 has time_us 'inf': "),
        (f"{HEADER}\n{ROW.replace('10.6', 'x')}", "x.csv line 2 has time_us_inplace 'x': "),
        (f"{HEADER}\n{ROW}\n{ROW.replace('1024', '1.5')}", "x.csv line 3 has bytes '1.5': "),
        (f"{HEADER}\n{ROW.replace('1024', '-8')}", "x.csv line 2 has bytes '-8': "),
        (f"{HEADER}\n{ROW.replace('1024', '1e300')}", "x.csv line 2 has bytes '1e300': "),
        (f"{HEADER}\n{ROW.replace('1024', '9' * 5000)}", "x.csv line 2 has bytes '99999"),
        (f"{HEADER}\n{ROW.replace(',16,', ',0,')}", "x.csv line 2 has gpus '0': "),
        (f"{HEADER}\n{ROW.replace(',16,', ',1,')}", "x.csv line 2 has 2 nodes and 1 GPUs: "),
        (f"{HEADER}\n{ROW.replace('all_reduce', 'cube')}", "x.csv line 2 has the collective 'cube': "),
        (
            f"{HEADER}\n{ROW}\n{ROW.replace(',16,', ',32,')}",
            "x.csv holds several sweeps: gpus is '16', '32': ",
        ),
        (
            f"{HEADER}\n{ROW}\n{ROW.replace('all_reduce', 'all_gather')}",
            "x.csv holds several sweeps: collective is 'all_gather', 'all_reduce': ",
        ),
        (f"{HEADER}\n{ROW}\n{ROW.replace('hw', 'other')}", "x.csv holds several sweeps: hardware is "),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_one_line(text: str, said: str):
    assert told(text).startswith(said)


def test_size_is_bounded():
    assert told("x" * (MOST_BYTES + 1)).startswith("x.csv holds more than 4 MB: ")
    assert told(f"{HEADER}\n" + f"{ROW}\n" * 20_001).startswith("x.csv has more than 20,000 rows: ")
