"""Calibration without processes: meshes, sizes, what clocks of several ranks say, what is written."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.ledger import UsageError
from shardtoll.ledger.records.volume import OPS
from shardtoll.profiler.calibrate import __main__ as main
from shardtoll.profiler.calibrate import timed_groups
from shardtoll.profiler.calibrate.__main__ import (
    CPU_SIZES_BYTES,
    DEVICE_SIZES_BYTES,
    _make_folder,
    _ops,
    _sizes,
    _summary,
)
from shardtoll.profiler.calibrate.circumstances import provenance
from shardtoll.profiler.calibrate.mesh import parse_mesh
from shardtoll.profiler.calibrate.ops import PAIRED, TIMED, fitting_bytes
from shardtoll.profiler.calibrate.sweep import Sweep, no_time_for
from shardtoll.profiler.calibrate.timed_groups import Groups
from shardtoll.profiler.calibrate.timing import Case, combined_ns


def groups(name, members, nodes=1, sharing=1):
    return Groups(name, None, members, nodes, sharing)


def case(kind, op="all_reduce", size=64):
    return Case(kind, op, size, lambda: None)


def test_a_mesh_is_read_and_must_fit_the_ranks():
    assert parse_mesh("dp=2, tp=4") == {"dp": 2, "tp": 4}
    assert parse_mesh("dp=2,tp=4", 8) == {"dp": 2, "tp": 4}
    with pytest.raises(UsageError, match="2 x 4 does not fit 6 ranks"):
        parse_mesh("dp=2,tp=4", 6)
    with pytest.raises(UsageError, match="no dimension"):
        parse_mesh("dp=1")
    for text in ("dp", "dp=", "=2", "dp=x", "dp=0", "dp=-1", "dp=2,dp=2", "dp=2,,tp=2", "dp=2.0", "dp=²"):
        with pytest.raises(UsageError, match="is not a mesh"):
            parse_mesh(text)


def test_all_ops_are_measured_and_bad_options_are_told():
    assert {*TIMED, "recv"} == set(OPS)
    assert _ops("recv,send,barrier") == ("send", "barrier")
    assert _sizes(" 64, 8,64") == (8, 64)
    assert _sizes("") == ()
    for text in ("allreduce", "", "all_reduce,x"):
        with pytest.raises(UsageError, match="--ops"):
            _ops(text)
    for text in ("0", "-1", "1e6", "x", "99999999999999"):
        with pytest.raises(UsageError, match="--sizes"):
            _sizes(text)


@given(st.sampled_from(TIMED), st.integers(1, 1 << 34), st.integers(2, 64))
def test_sizes_are_whole_elements_of_each_rank_and_never_more_than_asked_or_one_each(op, size, ranks):
    fitted = fitting_bytes(op, size, ranks)
    each = 1 if op in PAIRED else ranks
    if op == "barrier":
        assert fitted == 0
    else:
        assert fitted % (4 * each) == 0
        assert fitted <= max(size, 4 * each)
        assert fitted > size - 4 * each


def test_default_sizes_reach_far_and_are_not_all_powers_of_two():
    for sizes in (CPU_SIZES_BYTES, DEVICE_SIZES_BYTES):
        assert list(sizes) == sorted(set(sizes))
        assert sizes[0] <= 64
    assert CPU_SIZES_BYTES[-1] > 1e7
    assert DEVICE_SIZES_BYTES[-1] > 1e9
    assert any(size & (size - 1) for size in CPU_SIZES_BYTES)


def test_on_one_host_a_collective_lasts_from_the_last_begin_to_the_last_end():
    # Rank 1 came late: that its partner waited is no cost of the collective.
    spans = [(0, 500), (300, 450), (100, 180), (110, 200)]
    pair = groups("dp", ((0, 1), (2, 3)))
    assert combined_ns(case(pair), spans, one_clock=True) == [200, 90]
    assert combined_ns(case(pair), spans, one_clock=False) == [500, 90]
    hosts = groups("dp", ((0, 1), (2, 3)), nodes=2)
    assert combined_ns(case(hosts), spans, one_clock=True) == [500, 90]


def test_of_a_message_only_its_two_ends_count_and_no_time_is_none():
    spans = [(0, 100), (0, 9000), (50, 140)]
    assert combined_ns(case(groups("world", ((0, 1, 2),)), "send"), spans, one_clock=True) == [90]
    assert combined_ns(case(groups("world", ((0, 1),))), [(5, 5), (5, 5)], one_clock=True) == [1]
    # The first left before the last came, as a broadcast's root may.
    assert combined_ns(case(groups("world", ((0, 1),))), [(0, 5), (50, 51)], one_clock=True) == [1]


def test_groups_of_equal_placement_share_a_curve_and_a_send_is_a_receive_too():
    dp, tp = groups("dp", ((0, 1), (2, 3))), groups("tp", ((0, 2), (1, 3)))
    world = groups("world", ((0, 1, 2, 3),), nodes=2, sharing=1)
    cases = [case(dp), case(tp), case(world), case(world, "send"), case(dp, "send", 128)]
    made = Sweep(cases, [[1, 2], [3], [4], [5], [6]], 2)
    found = {(one.op, one.ranks, one.nodes): one for one in made.timings(lambda names: f"of {names}")}
    assert set(found) == {
        ("all_reduce", 2, 1), ("all_reduce", 4, 2),
        ("send", 2, 2), ("recv", 2, 2), ("send", 2, 1), ("recv", 2, 1),
    }  # fmt: skip
    assert found["all_reduce", 2, 1].times_ns == {64: [1, 2, 3]}
    assert found["all_reduce", 2, 1].source == "of dp, tp"
    assert found["recv", 2, 1].times_ns == {128: [6]}


def test_spare_kinds_are_measured_as_long_as_six_rounds_fit():
    world, pairs, fours = (
        Groups(name, None, (tuple(range(ranks)),), 1, 1, spare)
        for name, ranks, spare in (("world", 8, False), ("2", 2, True), ("4", 4, True))
    )
    cases = [case(world), case(pairs), case(fours), case(world, size=128)]
    took_s = [0.6, 0.5, 1.0, 0.4]
    assert no_time_for(cases, took_s, 15.1) == set()
    assert no_time_for(cases, took_s, 14.9) == {"4"}
    assert no_time_for(cases, took_s, 8.9) == {"2", "4"}
    assert no_time_for(cases, took_s, 0.0) == {"2", "4"}, "the world is measured in any case"


def test_parts_of_hosts_are_groups_of_the_first_hosts_however_many_there_are(monkeypatch):
    made = []
    monkeypatch.setattr(timed_groups.dist, "new_group", made.append)
    monkeypatch.setattr(timed_groups.dist, "get_rank", lambda: 9)

    def parts(hosts):
        made.clear()
        return timed_groups._parts([range(8 * host, 8 * host + 8) for host in range(hosts)])

    assert [kind.members for kind in parts(1)] == [((0, 1),), ((0, 1, 2, 3),)]
    assert [kind.ranks for kind in parts(256)] == [2, 4]
    assert len(made) == 2 * timed_groups.PART_HOSTS
    assert made[:2] == [[0, 1], [8, 9]]


def test_making_the_groups_is_part_of_the_limit(monkeypatch):
    clock_s = [100.0]
    monkeypatch.setattr(main.time, "monotonic", lambda: clock_s[0])

    def make_groups(*_):
        clock_s[0] += 7.0
        return []

    given = {}

    def sweep(*_, **options):
        given.update(options)
        return Sweep([])

    monkeypatch.setattr(
        main, "dist", SimpleNamespace(get_world_size=lambda: 2, get_rank=lambda: 1, barrier=int)
    )
    monkeypatch.setattr(main, "host_names", lambda: ["a", "a"])
    monkeypatch.setattr(main, "make_groups", make_groups)
    monkeypatch.setattr(main, "sweep", sweep)
    main._measure(Namespace(limit_s=20.0, target=0.05), ("all_reduce",), {}, (64,), torch.device("cpu"))
    assert (given["limit_s"], clock_s[0] - given["begun_s"]) == (20.0, 7.0)


def test_kinds_that_were_left_out_are_named():
    chosen = Namespace(output="x.toml", target=0.05)
    kind = groups("world", ((0, 1, 2, 3),))
    (*_, said) = _summary(chosen, Sweep([case(kind)], [[100] * 30], 30, left_out=("2 ranks of a host",)))
    assert said.startswith(
        "left out, as the time did not suffice: groups of 2 ranks of a host; their floors are"
    )


def test_medians_that_are_not_sure_are_named():
    kind = groups("world", ((0, 1),))
    made = Sweep([case(kind), case(kind, size=128)], [[100] * 30, [100, 900] * 15], 30)
    ((which, width),) = made.wide(0.05)
    assert which.message_bytes == 128
    assert width is not None
    assert width > 0.5
    assert str(which) == "all_reduce of 128 bytes between 2 ranks (world)"
    assert len(Sweep([case(kind)], [[100] * 5], 5).wide(0.05)) == 1


def test_the_summary_is_one_line_and_says_what_to_do():
    kind, chosen = groups("world", ((0, 1),)), Namespace(output="x.toml", target=0.05)
    cases = [case(kind), case(kind, size=128)]
    wrote, said, advice = _summary(chosen, Sweep(cases, [[100, 90_000] * 15, [100, 900] * 15], 30))
    assert wrote.startswith("wrote x.toml")
    assert said == (
        "stopped at the time limit: 2 of 2 medians are less sure than 5%, the least all_reduce of 64 bytes "
        "between 2 ranks (world) (+- more than 10x); each size's band says how wide it is"
    )
    assert advice.startswith("to be surer: a larger --limit-s, ")
    assert _summary(chosen, Sweep(cases, [[100] * 30] * 2, 30))[1:] == ["every median is sure to 5%"]
    assert "nothing is known of it" in _summary(chosen, Sweep(cases, [[100] * 5] * 2, 5))[1]


def test_a_folder_is_made_or_refused_before_anything_is_measured(tmp_path):
    _make_folder(tmp_path / "made" / "x.toml")
    assert (tmp_path / "made").is_dir()
    (tmp_path / "file").touch()
    for bad in (tmp_path / "file" / "x.toml", tmp_path / "made"):
        with pytest.raises(UsageError, match="cannot be written"):
            _make_folder(bad)


def test_provenance_says_when_where_and_how_often():
    facts = {
        "when": "2026-11-22 00:50 UTC",
        "hosts": ["a"],
        "backend": "gloo",
        "world_size": 4,
        "library_version": None,
    }
    assert provenance(facts, 99) == (
        "measured on this machine (a), 2026-11-22 00:50 UTC: 99 timed collectives between 4 gloo ranks"
    )
    told = provenance({**facts, "hosts": ["a", "b"], "backend": "nccl", "library_version": "2.29.7"}, 99)
    assert told.startswith("measured on 2 hosts (a, ...)")
    assert told.endswith("4 nccl 2.29.7 ranks")
