"""The ledger of made-up jobs, held to what their simulation knows: times to the ns where clocks agree."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from tests.unit.truth import tell

PARTS = ("duration_ns", "compute_ns", "exposed_comm_ns", "exposed_copy_ns", "unattributed_ns", "idle_ns")

JOBS = {
    "ddp": {},
    "ddp, stacks, recomputing": {"stacks": True, "recompute": True},
    "fsdp": {"strategy": "fsdp", "collectives": None},
    "tp": {"strategy": "tp"},
    "pipeline": {"strategy": "pipeline"},
    "pipeline over hosts": {"strategy": "pipeline", "transport": "host"},
    "slow data": {"straggler": 2, "cause": "data"},
    "slow sync": {"straggler": 2, "cause": "sync"},
    "slow host": {"straggler": 2, "cause": "host"},
    "slow copy, lookalike": {"straggler": 2, "cause": "copy", "lookalike_ns": 1_000_000},
    "two groups": {"serialized": 2},
    "everything at once": {
        "strategy": "fsdp", "data_ns": 400_000, "sync_ns": 300_000, "copy_ns": 200_000,
        "lookalike_ns": 100_000, "serialized": 1, "recompute": True, "straggler": 1, "cause": "forward",
    },
    "sizes": {"schema": "sizes"},
    "groups": {"schema": "groups"},
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_every_part_of_every_step_is_exact(name):
    told = tell(**JOBS[name])
    assert len(told.steps) == told.spec.ranks * told.spec.steps
    for row in told.steps:
        truth = told.step(row)
        # An instant shared by collectives of two steps may be split half a nanosecond the other way.
        off = {part: row[part] - truth[part] for part in PARTS if abs(row[part] - truth[part]) > 1}
        assert off == {}, (row["step"], row["rank"])


@pytest.mark.parametrize("name", JOBS)
def test_every_collective_is_there_with_its_times_and_exposed_share(name):
    told = tell(**JOBS[name])
    epoch = told.job.ledger.run.epoch_ns
    true = {}
    for meeting in told.truth["collectives"]:
        for rank, start in meeting["start_ns"].items():
            op = "recv" if meeting["op"] == "send" and int(rank) == meeting["ranks"][1] else meeting["op"]
            key = (int(rank), op, meeting["message_bytes"], start, meeting["end_ns"])
            assert key not in true
            true[key] = (meeting, rank)
    # Messages that go over the hosts leave only their calls: when they ran is unknown.
    timed = [row for row in told.rows if row["start_ns"] is not None]
    untimed = [row for row in told.rows if row["start_ns"] is None]
    assert bool(untimed) == (told.spec.transport == "host")
    for row in untimed:
        assert row["op"] in ("send", "recv")
        assert (row["duration_ns"], row["exposed_ns"]) == (None, None)
    seen = []
    for row in timed:
        start = epoch + row["start_ns"]
        seen.append((row["rank"], row["op"], row["message_bytes"], start, start + row["duration_ns"]))
    assert sorted(seen) == sorted(true)
    named = told.spec.schema in ("groups", "seq")
    for row, key in zip(timed, seen, strict=True):
        meeting, rank = true[key]
        assert (row["dtype"], row["step"]) == (meeting["dtype"], meeting["step"])
        assert row["group"] == (meeting["group"] if named else "default")
        assert row["group_size"] == told.spec.ranks
        assert abs(row["exposed_ns"] - meeting["exposed_ns"].get(rank, 0)) <= 1


@pytest.mark.parametrize("name", JOBS)
def test_rows_add_up_to_their_steps(name):
    told = tell(**JOBS[name])
    exposed: dict[tuple[int, int], int] = defaultdict(int)
    for row in told.rows:
        exposed[row["step"], row["rank"]] += row["exposed_ns"] or 0
    for row in told.steps:
        assert exposed[row["step"], row["rank"]] == row["exposed_comm_ns"]
        assert sum(row[part] for part in PARTS[1:]) == row["duration_ns"]


@pytest.mark.parametrize("layout", ["compact", "indent", "torch213", "metadata-first", "lines"])
@pytest.mark.parametrize("form", ["json", "json.gz", "json.zst"])
def test_layout_and_compression_change_nothing(layout, form):
    told, plain = tell(layout=layout, format=form), tell()
    assert told.steps == plain.steps
    assert told.rows == plain.rows


def test_the_oldest_schema_is_exact_to_its_microseconds():
    """Times are whole microseconds there: each edge of device work may be off by half of one."""
    told = tell(schema="old")
    for row in told.steps:
        truth = told.step(row)
        edges = 2 * told.spec.layers * told.spec.kernels * 3 + 20
        assert all(abs(row[part] - truth[part]) <= edges * 500 for part in PARTS)
    assert len(told.rows) == sum(len(meeting["start_ns"]) for meeting in told.truth["collectives"])
    assert {(row["op"], row["dtype"], row["message_bytes"], row["seq"]) for row in told.rows} == {
        ("all_reduce", "float32", told.spec.comm_bytes, None)
    }
    assert len(told.notices("groups-unknown")) == told.spec.ranks


@pytest.mark.parametrize(
    ("schema", "seq", "group"),
    [("old", False, "default"), ("sizes", False, "default"), ("groups", False, "0"), ("seq", True, "0")],
)
def test_each_generation_tells_what_it_can(schema, seq, group):
    for row in tell(schema=schema).rows:
        assert (row["seq"] is not None) == seq
        assert row["group"] == group


def test_phases_and_modules():
    rows = tell(strategy="fsdp", collectives=None).rows
    assert Counter((row["op"], row["phase"]) for row in rows) == {
        ("all_gather", "forward"): 4 * 4 * 6,
        ("all_gather", "backward"): 4 * 4 * 6,
        ("reduce_scatter", "backward"): 4 * 4 * 6,
    }
    assert {row["module"] for row in rows} == {f"layers.{layer}" for layer in range(6)}


def test_work_of_a_recomputing_job_is_known_as_such():
    told = tell(stacks=True, recompute=True)
    stalls = [row for row in told.job.ledger.tables["stalls"].to_pylist() if row["kind"] == "recompute"]
    lost: dict[tuple[int, int], int] = defaultdict(int)
    for row in stalls:
        lost[row["step"], row["rank"]] += row["lost_ns"]
    for row in told.steps:
        assert lost[row["step"], row["rank"]] == pytest.approx(told.step(row)["recompute_ns"], rel=0.02)


@pytest.mark.parametrize(
    ("knobs", "kinds"),
    [
        ({"straggler": 2, "cause": "data"}, {"data": "idle_data_ns"}),
        ({"straggler": 2, "cause": "sync"}, {"host-sync": "idle_sync_ns"}),
        ({"straggler": 2, "cause": "host"}, {"host launch": "idle_host_ns"}),
        ({"kernel_ns": 5_000, "padding": 20}, {"host launch": "idle_host_ns"}),
        ({"straggler": 2, "cause": "copy"}, {"copy": "exposed_copy_ns"}),
        ({"lookalike_ns": 1_000_000}, {"unclassified": "unattributed_ns"}),
    ],
)
def test_lost_time_has_its_kind(knobs, kinds):
    told = tell(**knobs)
    for kind, truth in kinds.items():
        for row in told.steps:
            lost = sum(
                stall["lost_ns"]
                for stall in told.job.ledger.tables["stalls"].to_pylist()
                if (stall["step"], stall["rank"]) == (row["step"], row["rank"])
                and stall["kind"] in kind.split()
            )
            assert lost == pytest.approx(told.step(row)[truth], rel=0.03, abs=60_000)


def test_without_marks_the_window_is_one_step():
    told = tell(steps_marked=False)
    assert [row["step"] for row in told.steps] == [0] * 4
    assert len(told.notices("no-steps")) == 4
    busy = sum(row["compute_ns"] for row in told.truth["steps"] if row["rank"] == 0)
    assert told.steps[0]["compute_ns"] == busy


def test_missing_and_damaged_ranks_are_left_out_and_said():
    told = tell(ranks=6, missing=(1,), damage=((3, "empty"), (4, "text")))
    assert told.job.ledger.run.ranks_seen == (0, 2, 5)
    assert told.job.ledger.run.world_size == 6
    texts = [row["text"] for row in told.notices("file-unreadable")]
    assert len(texts) == 2
    assert any("rank3" in text for text in texts)
    assert any("rank4" in text for text in texts)


@pytest.mark.parametrize("kind", ["cut", "nan", "negative", "no-rank"])
def test_a_damaged_rank_costs_no_other_rank(kind):
    told, whole = tell(damage=((2, kind),)), tell()
    assert 2 in told.job.ledger.run.ranks_seen
    parts = [*PARTS, "rank", "step"]
    spared, before = (
        [[row[part] for part in parts] for row in job.steps if row["rank"] != 2] for job in (told, whole)
    )
    assert spared == before
    if kind == "cut":
        # What the times count from stood at the end of the file.
        assert [row["rank"] for row in told.notices("file-cut")] == [2]
        assert told.notices("clock-unknown")


def test_the_same_seed_writes_the_same_job(tmp_path):
    from tests.unit.truth import write

    first, second = write(tmp_path / "a")[1], write(tmp_path / "b")[1]
    assert first == second
    for rank in range(4):
        assert (tmp_path / f"a/rank{rank}.json.gz").read_bytes() == (
            tmp_path / f"b/rank{rank}.json.gz"
        ).read_bytes()
    assert write(tmp_path / "c", seed=1)[1]["steps"] != first["steps"]


def test_the_command_line_writes_a_job(tmp_path, capsys):
    from synthetic_job import main

    main([str(tmp_path / "job"), "--ranks", "3", "--steps", "2", "--missing", "1", "--damage", "2:cut"])
    assert "2 traces" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "job.truth.json"]
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["rank0.json.gz", "rank2.json.gz"]
