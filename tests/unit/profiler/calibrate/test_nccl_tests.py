"""nccl-tests' output: written here by its public format, with times and busbw of published sweeps."""

from __future__ import annotations

import csv
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.ledger import ShardtollError, TraceError
from shardtoll.ledger.records.volume import busbw_factor
from shardtoll.profiler.calibrate.nccl_tests import MOST_ROWS, OPS_OF, read_nccl_tests
from tests.shared_inputs import shared

H100 = "NVIDIA H100 80GB HBM3"


def ranks_of(nodes, each, group=0):
    return [
        f"#  Rank {node * each + device:2} Group {group:2} Pid {4000 + device:6} on node-{node:03} "
        f"device {device:2} [0000:{device + 16:02x}:00] {H100}"
        for node in range(nodes)
        for device in range(each)
    ]


def number(value, width):
    """As nccl-tests prints: two digits behind the point while they fit."""
    for text in (f"{value:.2f}", f"{value:.1f}"):
        if len(text) < width:
            return f"{text:>{width}}"
    return f"{value:{width}.0f}"


def body(test, size, time_us, n, wrong="0"):
    algbw = size / time_us / 1000
    busbw = algbw * busbw_factor(OPS_OF[test][0], n)
    return f"  {number(time_us, 7)}  {number(algbw, 6)}  {number(busbw, 6)}  {wrong:>6}"


def row(test, size, times_us, n, wrong="0"):
    bodies = "".join(body(test, size, each, n, wrong) for each in times_us)
    return f"{size:12}  {size // 4:12}     float     sum      -1{bodies}"


HEADER = [
    "#" + " " * 62 + "out-of-place" + " " * 23 + "in-place",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw"
    "   busbw  #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)"
    "  (GB/s)",
]


def printed(test, points, nodes=1, each=8, *, named=True, ranks=None, wrong="0"):
    """What one test prints: `points` are (bytes, time out of place, time in place), us."""
    lines = ["# nccl-tests version 2.18.0 nccl-headers=22907 nccl-library=22907"] if named else []
    lines += [f"# Collective test starting: {test}_perf"] if named else []
    lines += [
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0",
        "#",
        "# Using devices",
    ]
    lines += ranks_of(nodes, each) if ranks is None else ranks
    lines += ["NCCL version 2.29.7+cuda13.0", "#", *HEADER]
    lines += [row(test, size, times, nodes * each, wrong) for size, *times in points]
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 161.2", "#"]
    lines += [f"# Collective test concluded: {test}_perf"] if named else []
    return "\n".join(lines) + "\n"


POINTS = [(8, 12.9, 12.87), (1048576, 44.2, 44.9), (3000000, 61.5, 60.25), (17179869184, 62255.0, 62270.0)]


@pytest.mark.parametrize("test", OPS_OF)
def test_every_tests_table_is_read_with_both_columns(test):
    read = read_nccl_tests(printed(test, POINTS, 2, 4), "log")
    assert [one.op for one in read.timings] == list(OPS_OF[test])
    for one in read.timings:
        paired = test == "sendrecv"
        assert (one.ranks, one.nodes, one.sharing) == ((2, 2, 1) if paired else (8, 2, 1))
        assert dict(one.times_ns) == {
            8: [12900, 12870],
            1048576: [44200, 44900],
            3000000: [61500, 60250],
            17179869184: [62255000, 62270000],
        }
        assert "NCCL version 2.29.7" in one.source
    assert (read.device, read.hosts, read.ranks, read.notes) == (H100, ("node-000", "node-001"), 8, ())


@pytest.mark.parametrize(
    "prefix", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "0: ", "node-1 | ", "2026-01-02T03:04:05 "]
)
def test_prefixes_of_launchers_and_noise_are_read_past(prefix):
    noise = [
        "node-000:4000:4100 [0] NCCL INFO Channel 00/16 : 0 1 2 3 4 5 6 7",
        "node-000:4000:4100 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 8 - Init COMPLETE",
        "Warning: Permanently added '[10.0.0.1]:222' (ED25519) to the list of known hosts.",
        "1048576 2 x",
        "",
    ]
    lines = printed("all_reduce", POINTS).splitlines()
    mixed = "\n".join(part for line in lines for part in (prefix + line, *(prefix + each for each in noise)))
    assert read_nccl_tests(mixed, "log").timings == read_nccl_tests("\n".join(lines), "log").timings


def test_several_tables_of_a_file_stay_apart():
    text = (
        printed("all_reduce", POINTS)
        + printed("reduce_scatter", POINTS[:2], 1, 4)
        + printed("all_gather", POINTS)
    )
    read = read_nccl_tests(text, "log")
    assert [(one.op, one.ranks, len(one.times_ns)) for one in read.timings] == [
        ("all_reduce", 8, 4),
        ("reduce_scatter", 4, 2),
        ("all_gather", 8, 4),
    ]
    # Programs before 2.17 do not name themselves; the shell's line does.
    old = "".join(
        f"+ mpirun -np 8 ./build/{test}_perf -b 8 -e 16G -f 2\n" + printed(test, POINTS, named=False)
        for test in ("alltoall", "broadcast")
    )
    assert [one.op for one in read_nccl_tests(old, "log").timings] == ["all_to_all", "broadcast"]


def test_the_file_name_tells_the_collective_then_the_user():
    bare = printed("all_gather", POINTS, named=False)
    by_name = read_nccl_tests(bare, "log", file_name="n2_ALL_GATHER_output.dat.6", op="reduce")
    assert by_name.timings[0].op == "all_gather"
    for op in ("all_gather", "reduce_scatter"):  # same factor: only the user can tell
        assert read_nccl_tests(bare, "log", file_name="run.log", op=op).timings[0].op == op
    with pytest.raises(TraceError, match="not said"):
        read_nccl_tests(bare, "log", file_name="run.log")
    with pytest.raises(TraceError, match="no collective"):
        read_nccl_tests(bare, "log", file_name="run.log", op="allreduce")


def test_a_table_of_another_collective_or_of_other_ranks_is_refused():
    bare = printed("all_gather", POINTS, named=False)
    with pytest.raises(TraceError, match="busbw") as told:
        read_nccl_tests(bare, "run.log", op="all_reduce")
    assert "--op or --ranks" in told.value.hint
    with pytest.raises(TraceError, match="busbw"):
        read_nccl_tests(printed("all_reduce", POINTS, 1, 8), "run.log", ranks=2)


def test_ranks_are_the_users_where_the_file_has_none():
    text = printed("all_reduce", POINTS, ranks=[])
    with pytest.raises(TraceError, match="Rank"):
        read_nccl_tests(text, "log")
    (one,) = read_nccl_tests(text, "log", ranks=8, nodes=2).timings
    assert (one.ranks, one.nodes) == (8, 2)


def test_groups_of_a_split_test_share_their_hosts():
    ranks = [line for group in range(4) for line in ranks_of(2, 1, group)]
    (one,) = read_nccl_tests(printed("all_reduce", POINTS, 2, 1, ranks=ranks), "log").timings
    assert (one.ranks, one.nodes, one.sharing) == (2, 2, 4)


def test_wrong_results_cut_rows_and_tests_of_no_collective_are_left_out():
    wrong = printed("all_reduce", POINTS[:1], wrong="17") + printed("all_reduce", POINTS)
    read = read_nccl_tests(wrong, "log")
    assert len(read.timings) == 1
    assert "2 times left out" in read.notes[0]
    with pytest.raises(TraceError, match="2 times left out"):
        read_nccl_tests(printed("all_reduce", POINTS[:1], wrong="17"), "log")
    other = printed("all_reduce", POINTS) + printed("all_reduce", POINTS).replace("all_reduce", "hypercube")
    read = read_nccl_tests(other, "log")
    assert len(read.timings) == 1
    assert "hypercube" in read.notes[0]
    unchecked = read_nccl_tests(printed("all_reduce", POINTS, wrong="N/A"), "log")
    assert len(unchecked.timings[0].times_ns) == 4
    half = printed("all_reduce", POINTS[:2])
    half = half[: half.index("1048576        ") + 70]
    assert read_nccl_tests(half, "log").timings[0].times_ns == {8: [12900, 12870], 1048576: [44200]}


def test_older_columns_and_per_iteration_columns_are_read_by_their_header():
    old = (
        "# Collective test starting: all_reduce_perf\n"
        + "\n".join(ranks_of(1, 8))
        + "\n#       size         count    type   redop     time   algbw   busbw     error     time   algbw"
        "   busbw     error\n     1048576        262144   float     sum    44.20   23.72   41.52     1e-07"
        "    44.90   23.35   40.87     1e-07\n"
    )
    # What is the number of wrong elements now was an error of rounding then.
    assert read_nccl_tests(old, "log").timings[0].times_ns == {1048576: [44200, 44900]}
    iterated = old.replace("redop     time", "redop    root     time").replace("     error", "  #wrong")
    iterated = iterated.replace("sum    44.20", "sum      -1    44.20").replace("1e-07", "0")
    wide = iterated.replace("busbw  #wrong", "busbw  #wrong  i_min  i_max  i_p99  i_cv%")
    wide = wide.replace("41.52     0", "41.52   0 41.1 49.2 48.1 3.1").replace(
        "40.87     0", "40.87   0 40 41 42 4.2"
    )
    assert read_nccl_tests(wide, "log").timings[0].times_ns == {1048576: [44200, 44900]}
    with pytest.raises(TraceError, match="of the CPU"):
        read_nccl_tests(printed("all_reduce", POINTS).replace("  time ", "  cputime "), "log")


def document(test="all_reduce", points=POINTS, **changes):
    results = [
        {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": {"time": one, "alg_bw": 1.0, "bus_bw": size / one / 1000 * 1.75, "nwrong": 0.0},
            "in_place": {"time": two, "alg_bw": 1.0, "bus_bw": size / two / 1000 * 1.75, "nwrong": None},
            "actual_iterations": 20,
        }
        for size, one, two in points
    ]
    devices = [
        {"rank": at, "group": 0, "pid": 1, "hostname": f"n{at // 4}", "device": at % 4, "device_info": H100}
        for at in range(8)
    ]
    config = {"nthreads": 1, "ngpus": 1, "devices": devices}
    whole = {"version": 2, "args": [f"/opt/{test}_perf", "-b", "8"], "env": [], "nccl_version": 22907}
    return {**whole, "config": config, "results": results, **changes}


def test_the_json_gives_what_the_table_gives_and_each_iteration_where_it_has_them():
    read = read_nccl_tests(json.dumps(document()), "x.json")
    (one,) = read.timings
    assert (one.op, one.ranks, one.nodes, read.device) == ("all_reduce", 8, 2, H100)
    assert one.times_ns == read_nccl_tests(printed("all_reduce", POINTS), "log").timings[0].times_ns
    data = document()
    data["results"][0]["out_of_place_per_iter"] = {"times_us": [12.0, 13.0, "nan", 14.5]}
    (one,) = read_nccl_tests(json.dumps(data), "x.json").timings
    assert one.times_ns[8] == [12000, 13000, 14500, 12870]


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 2, "results": [{"size',
        "{}",
        '{"results": 5}',
        "[" * 100_000,
        "{" * 100_000,
        '{"results": []}',
    ],
)
def test_json_that_is_cut_or_none_is_told_in_one_line(text):
    with pytest.raises(TraceError) as told:
        read_nccl_tests(text, "x.json")
    assert "\n" not in told.value.message


def test_busbw_of_published_sweeps_is_what_the_tables_say():
    folder = shared("sweeps")
    rows, files = 0, 0
    for path in sorted(folder.glob("*.csv")):
        if path.name == "INDEX.csv":
            continue
        with path.open(encoding="utf-8") as file:
            read = list(csv.DictReader(file))
        test, nodes = read[0]["collective"], int(read[0]["nodes"])
        each, lines = int(read[0]["gpus"]) // nodes, []
        kept = [one for one in read if int(one["bytes"]) > 0 and float(one["time_us"]) > 0]
        for one in kept:
            # As it was printed: time and busbw of the sweep, untouched.
            values = f"{one['time_us']} {one['algbw_GBps']} {one['busbw_GBps']} 0"
            lines.append(f"{one['bytes']} {int(one['bytes']) // 4} float sum -1 {values}")
        head = [f"# Collective test starting: {test}_perf", *ranks_of(nodes, each), *HEADER]
        (timings, *_) = read_nccl_tests("\n".join(head + lines), path.name).timings
        factor = busbw_factor(OPS_OF[test][0], nodes * each)
        for one in kept:
            (time_ns,) = timings.times_ns[int(one["bytes"])]
            ours = int(one["bytes"]) / time_ns * factor
            # Printed with two digits behind the point.
            assert ours == pytest.approx(float(one["busbw_GBps"]), rel=0.005, abs=0.006), (path.name, one)
            rows += 1
        files += 1
    assert files > 50
    assert rows > 900


@given(st.text(max_size=3000))
def test_any_text_is_read_or_told_in_one_line(text):
    _read_or_told(text)


@settings(max_examples=60)
@given(st.data())
def test_a_cut_or_damaged_file_is_read_or_told_in_one_line(data):
    whole = printed("all_reduce", POINTS) + printed("alltoall", POINTS, 2, 4)
    if data.draw(st.booleans()):
        whole = json.dumps(document())
    begin = data.draw(st.integers(0, len(whole)))
    piece = whole[begin : data.draw(st.integers(begin, len(whole)))]
    at = data.draw(st.integers(0, len(piece)))
    _read_or_told(piece[:at] + data.draw(st.text(max_size=30)) + piece[at:])


def _read_or_told(text):
    try:
        read = read_nccl_tests(text, "log", op="all_reduce", ranks=8)
    except ShardtollError as error:
        told = error.message + error.hint
        read = None
    if read is None:
        assert "\n" not in told
        assert len(told) < 500
        return
    for one in read.timings:
        assert all(time_ns > 0 for times in one.times_ns.values() for time_ns in times)


@pytest.mark.parametrize(
    "line",
    [
        "1 " * 2_000_000,
        " " * 4_000_000,
        "#" + " Rank" * 1_000_000,
        "9" * 4_000_000,
        "# size count type" * 9**6,
    ],
)
def test_huge_lines_are_read_in_passing(line):
    text = printed("all_reduce", POINTS)
    assert read_nccl_tests(f"{line}\n{text}{line}\n", "log").timings[0].times_ns.keys() == {
        p[0] for p in POINTS
    }


def test_too_many_rows_are_refused():
    lines = printed("all_reduce", POINTS[:1]) + "8 2 float sum -1 1 1 1 0\n" * (MOST_ROWS + 1)
    with pytest.raises(TraceError, match="more than"):
        read_nccl_tests(lines, "log")
