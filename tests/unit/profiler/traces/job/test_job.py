"""Which traces make one job, and what is told of the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from shardtoll.ledger import TraceError, UsageError, analyze
from shardtoll.profiler.traces import Job, read_traces
from shardtoll.profiler.traces.job.job import Progress
from tests.shared_inputs import shared
from tests.small_traces import trace, write, write_job


def read(*paths: Path | str, **options: Any) -> Job:
    (job,) = read_traces([str(path) for path in paths], jobs=1, cache=False, **options)
    return job


def notices(job: Job, kind: str) -> list[str]:
    rows = job.ledger.tables["notices"].to_pylist()
    return [row["text"] for row in rows if row["kind"] == kind]


def test_a_folder_is_one_job(tmp_path: Path):
    job = read(write_job(tmp_path / "a", 3))
    run = job.ledger.run
    assert (run.ranks_seen, run.world_size, run.backend, run.device) == ((0, 1, 2), 3, "nccl", "Test GPU")
    assert job.set_aside == ()
    assert [Path(file.address).name for file in job.files] == [f"rank{rank}.json.gz" for rank in range(3)]
    steps = job.ledger.tables["steps"]
    assert steps.column("rank").to_pylist() == [0, 0, 1, 1, 2, 2]
    assert steps.column("step").to_pylist() == [3, 4] * 3
    collectives = job.ledger.tables["collectives"]
    assert collectives.column("message_bytes").unique().to_pylist() == [4096 * 4]
    assert collectives.num_rows == 6


def test_each_folder_is_a_job_and_single_files_are_one(tmp_path: Path):
    first = write_job(tmp_path / "a")
    second = write_job(tmp_path / "b", 3)
    files = [str(first / "rank0.json.gz"), str(first / "rank1.json.gz")]
    jobs = read_traces([str(second), *files, str(first)], jobs=1, cache=False)
    assert [job.ledger.run.world_size for job in jobs] == [3, 2, 2]
    assert jobs[1].ledger == jobs[2].ledger or jobs[1].ledger.run == jobs[2].ledger.run
    assert jobs[1].name == f"2 files, {files[0]} first"


def test_one_broken_file_does_not_lose_the_others(tmp_path: Path):
    write_job(tmp_path, 2)
    (tmp_path / "rank1.json.gz").write_bytes(b"not gzip")
    job = read(tmp_path)
    assert job.ledger.run.ranks_seen == (0,)
    assert job.ledger.run.ranks_missing == (1,)
    ((address, reason),) = job.set_aside
    assert address == f"{tmp_path}/rank1.json.gz"
    (told,) = notices(job, "file-unreadable")
    assert told.startswith(address)
    assert reason in told
    assert "\n" not in told


def test_nothing_readable_is_one_error(tmp_path: Path):
    (tmp_path / "rank0.json").write_text("no json")
    with pytest.raises(TraceError) as caught:
        read(tmp_path)
    assert caught.value.message.startswith(f"{tmp_path}/rank0.json ")
    assert caught.value.hint


def test_two_jobs_in_one_folder_by_world_size(tmp_path: Path):
    write_job(tmp_path, 3)
    write(tmp_path / "other.json", trace(0, 8))
    job = read(tmp_path)
    assert job.ledger.run.ranks_seen == (0, 1, 2)
    assert job.set_aside == ((f"{tmp_path}/other.json", "it is of a job of 8 ranks, the others of 3"),)
    assert notices(job, "file-left-out") == [
        f"{tmp_path}/other.json: it is of a job of 8 ranks, the others of 3"
    ]


def test_two_jobs_in_one_folder_by_group(tmp_path: Path):
    for rank in range(3):
        write(tmp_path / f"rank{rank}.json", trace(rank, 4, group=(0, 1, 2)))
    write(tmp_path / "rank3.json", trace(3, 4, group=(2, 3)))
    job = read(tmp_path)
    assert job.ledger.run.ranks_seen == (0, 1, 2)
    assert job.set_aside == (
        (f"{tmp_path}/rank3.json", "its group 0 has 2 ranks unlike the 3 that the others say"),
    )


def test_groups_of_one_name_on_other_ranks_are_no_clash(tmp_path: Path):
    for rank in range(4):
        write(tmp_path / f"rank{rank}.json", trace(rank, 4, group=(0, 1) if rank < 2 else (2, 3)))
    job = read(tmp_path)
    assert job.ledger.run.ranks_seen == (0, 1, 2, 3)
    assert len(job.ledger.groups) == 2


def test_another_day_is_another_recording(tmp_path: Path):
    write_job(tmp_path / "old", 2)
    write_job(tmp_path / "new", 2, at_us=86_400_000_000 * 3)
    job = read(tmp_path)
    assert {Path(file.address).parent.name for file in job.files} == {"new"}
    assert job.set_aside == (
        (
            f"{tmp_path}/old",
            f"2 traces set aside: {tmp_path}/new is more complete, report this folder by its own path",
        ),
    )
    together = read(f"{tmp_path}/*/*.gz")
    assert [why for _, why in together.set_aside] == ["it was recorded 3 days earlier than the others"] * 2


def test_clocks_hours_apart_lose_no_rank(tmp_path: Path):
    write(tmp_path / "rank0.json", trace(0))
    write(tmp_path / "rank1.json", trace(1, at_us=7_200_000_000))
    job = read(tmp_path)
    assert job.ledger.run.ranks_seen == (0, 1)
    assert notices(job, "clock-unknown") == [
        "1 trace was recorded at another time than the others by its clock"
    ]
    begun = job.ledger.tables["steps"].column("start_ns").to_pylist()
    assert max(begun) - min(begun) < 3_600_000_000_000, "begins with the others, not hours later"


def test_other_steps_are_set_aside(tmp_path: Path):
    write_job(tmp_path, 3)
    write(tmp_path / "rank2.json.gz", trace(2, 3, steps=(8, 9)))
    job = read(tmp_path)
    assert job.ledger.run.ranks_seen == (0, 1)
    assert job.set_aside == ((f"{tmp_path}/rank2.json.gz", "it has steps 8 to 9, the others steps 3 to 4"),)


def test_steps_in_common_are_enough(tmp_path: Path):
    write_job(tmp_path, 3)
    write(tmp_path / "rank2.json.gz", trace(2, 3, steps=(4, 5)))
    job = read(tmp_path)
    assert job.ledger.run.ranks_seen == (0, 1, 2)
    assert notices(job, "steps-differ") == ["1 trace has steps 4 to 5, most steps 3 to 4"]


def test_of_a_rank_twice_the_fuller_one_is_kept(tmp_path: Path):
    write_job(tmp_path, 2)
    made = trace(0, 2)
    made["traceEvents"] = made["traceEvents"][:-2]
    write(tmp_path / "again.json", made)
    job = read(tmp_path)
    assert job.set_aside == ((f"{tmp_path}/again.json", f"it is of rank 0 as is {tmp_path}/rank0.json.gz"),)


def test_the_profilers_next_recording_is_set_aside(tmp_path: Path):
    write_job(tmp_path / "first", 3)
    write_job(tmp_path / "second", 2, steps=(10, 11), at_us=20_000)
    for rank in range(2):
        write(tmp_path / "second" / f"rank{rank}.json.gz", trace(rank, 3, steps=(10, 11), at_us=20_000))
    job = read(tmp_path)
    assert {Path(file.address).parent.name for file in job.files} == {"first"}
    assert [address for address, _ in job.set_aside] == [f"{tmp_path}/second"]


def test_folders_are_never_mixed(tmp_path: Path):
    write_job(tmp_path / "a", 4)
    write_job(tmp_path / "b", 4)
    (tmp_path / "a" / "rank2.json.gz").unlink()
    (tmp_path / "b" / "rank0.json.gz").write_bytes(b"broken")
    (tmp_path / "b" / "rank1.json.gz").unlink()
    job = read(tmp_path)
    assert job.ledger.run.ranks_seen == (0, 1, 3), "rank 2 of the other folder is of another job"
    ((folder, why),) = job.set_aside
    assert folder == f"{tmp_path}/b"
    assert "report this folder by its own path" in why
    assert notices(job, "file-unreadable") == [], "a broken file of another job is no matter of this one"
    (finding,) = (one for one in analyze(job.ledger).findings if "set aside" in one.title)
    assert finding.title == "1 path set aside: not part of this job"
    assert finding.ranks == ()


def test_traces_right_in_a_folder_are_the_job(tmp_path: Path):
    write_job(tmp_path, 2)
    write_job(tmp_path / "more", 5)
    job = read(tmp_path)
    assert job.ledger.run.ranks_seen == (0, 1)
    assert [address for address, _ in job.set_aside] == [f"{tmp_path}/more"]


def test_a_folder_for_each_rank_is_one_job(tmp_path: Path):
    for rank in range(3):
        write(tmp_path / f"rank{rank}" / "trace.json", trace(rank, 3))
    assert read(tmp_path).ledger.run.ranks_seen == (0, 1, 2)


def test_recordings_of_one_job_are_put_together(tmp_path: Path):
    for nth, steps in enumerate(((2, 3), (6, 7), (10, 11))):
        for rank in range(2):
            made = trace(rank, 2, steps=steps, at_us=nth * 5_000)
            write(tmp_path / f"host_{40 + rank}.{1_760_000_000_000 + nth}.pt.trace.json", made)
    job = read(tmp_path)
    assert job.set_aside == ()
    assert len(job.files) == 6
    assert job.file_ranks == (0, 0, 0, 1, 1, 1)
    tables = job.ledger.tables
    assert tables["steps"].column("step").to_pylist() == [2, 3, 6, 7, 10, 11] * 2
    begun = tables["steps"].column("start_ns").to_pylist()
    assert [late - begun[0] for late in begun[:6:2]] == [0, 5_000_000, 10_000_000]
    collectives = tables["collectives"].filter(pc.equal(tables["collectives"].column("rank"), 1)).to_pylist()
    leads = [row for row in tables["leadups"].to_pylist() if row["rank"] == 1]
    assert len(leads) == len(collectives) == 6
    assert [row["index"] for row in leads] == list(range(6))
    assert [row["step"] for row in leads] == [row["step"] for row in collectives]
    assert all(row["since_ns"] <= collectives[row["index"]]["start_ns"] for row in leads)


def test_what_one_rank_does_not_say_another_does(tmp_path: Path):
    made = trace(0, 2)
    del made["distributedInfo"], made["deviceProperties"]
    write(tmp_path / "rank0.json", made)
    write(tmp_path / "rank1.json", trace(1, 2))
    run = read(tmp_path).ledger.run
    assert (run.backend, run.device) == ("nccl", "Test GPU")


def test_a_name_that_is_no_text(tmp_path: Path):
    write_job(tmp_path, 2)
    odd = os.path.join(os.fsencode(tmp_path), b"caf\xe9 rank1.json.gz")
    os.rename(tmp_path / "rank1.json.gz", odd)
    job = read(tmp_path)
    assert job.ledger.run.ranks_seen == (0, 1)
    assert {Path(file.address).name for file in job.files} == {"rank0.json.gz", "caf\\xe9 rank1.json.gz"}
    os.unlink(odd)
    Path(os.fsdecode(odd)).write_bytes(b"broken")
    (told,) = notices(read(tmp_path), "file-unreadable")
    assert "caf\\xe9 rank1.json.gz" in told


def test_unknown_world_size_is_the_least_it_can_be(tmp_path: Path):
    for rank in range(3):
        made = trace(rank, None)
        for event in made["traceEvents"]:
            # Old traces say nothing of the group.
            for name in [name for name in event["args"] if name.startswith(("Process Group", "Group"))]:
                del event["args"][name]
        write(tmp_path / f"rank{rank}.json", made)
    job = read(tmp_path)
    assert (job.ledger.run.world_size, job.ledger.run.ranks_seen) == (3, (0, 1, 2))
    assert notices(job, "world-size-unknown") == [
        "no trace says how many ranks the job has: the 3 it has at least are assumed"
    ]
    # Who else took part cannot be known, so who waited for whom cannot either.
    rows = job.ledger.tables["collectives"].to_pylist()
    assert {(row["group"], row["group_size"], row["wire_bytes"]) for row in rows} == {("unknown", 1, None)}
    assert job.ledger.groups == ()
    assert (
        notices(job, "groups-unknown")
        == ["the group of 2 of 2 collectives is unknown, as is the job's size"] * 3
    )


def test_groups_tell_how_large_a_job_is_at_least(tmp_path: Path):
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", trace(rank, None, group=tuple(range(8))))
    job = read(tmp_path)
    assert (job.ledger.run.world_size, job.ledger.run.ranks_seen) == (8, (0, 1))
    assert job.ledger.tables["collectives"].column("group_size").unique().to_pylist() == [8]
    assert len(notices(job, "world-size-unknown")) == 1


def test_a_file_alone_need_not_say_its_rank(tmp_path: Path):
    made = trace(0, None, told_rank=False)
    job = read(write(tmp_path / "trace.json", made))
    assert job.ledger.run.ranks_seen == (0,)
    assert notices(job, "rank-assumed") == [
        f"{tmp_path}/trace.json does not say which rank it is of: rank 0 assumed"
    ]
    write(tmp_path / "other.json", made)
    with pytest.raises(TraceError, match="does not say which rank"):
        read(tmp_path)


def test_a_lone_file_without_communication_is_a_whole_job_of_one(tmp_path: Path):
    made = trace(0, None, told_rank=False)
    made["traceEvents"] = [event for event in made["traceEvents"] if "nccl" not in event["name"]]
    job = read(write(tmp_path / "profile_bs_512.json", made))
    assert (job.ledger.run.ranks_seen, job.ledger.run.world_size) == ((0,), 1)
    kinds = {row["kind"] for row in job.ledger.tables["notices"].to_pylist()}
    assert kinds.isdisjoint(("rank-from-name", "rank-assumed", "world-size-unknown"))


def test_progress_counts_every_file(tmp_path: Path):
    write_job(tmp_path, 2)
    (tmp_path / "rank1.json.gz").write_bytes(b"not gzip")
    seen: list[Progress] = []
    read(tmp_path, progress=seen.append)
    assert [one.files for one in seen] == [0, 1, 2]
    assert seen[-1].bytes == seen[-1].of_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_wrong_kernel_table_is_told_before_any_trace_is_read(tmp_path: Path):
    table = tmp_path / "own.toml"
    table.write_text("[kernels]\nname = 'x'\n")
    seen: list[Progress] = []
    with pytest.raises(UsageError, match=r"own\.toml holds kernels") as caught:
        read(write_job(tmp_path / "a"), kernels=table, progress=seen.append)
    assert seen == []
    assert "[[kernel]]" in caught.value.hint
    assert "profiler/" not in caught.value.hint


def test_events_that_are_all_unusable_are_no_report_of_zeros(tmp_path: Path):
    made = trace(0, 1)
    made["traceEvents"] = [{**made["traceEvents"][0], "dur": -5.0}]
    with pytest.raises(TraceError, match="holds no usable event"):
        read(write(tmp_path / "rank0.json", made))


def test_no_jobs_is_a_mistake(tmp_path: Path):
    with pytest.raises(UsageError, match="0 jobs"):
        read_traces([str(write_job(tmp_path))], jobs=0)


@pytest.mark.parametrize(
    ("name", "made", "rank"),
    [
        # A number at the end may count anything: a batch size, a run.
        ("profile_bs_3.json", trace(0, None, told_rank=False, group=(0, 1)), 0),
        ("profile_bs_1.json", trace(0, None, told_rank=False, group=(0, 1)), 1),
        ("rank3.json", trace(0, None, told_rank=False, group=(0, 1, 2, 3)), 3),
        ("rank3.json", {**trace(0, None, told_rank=False), "traceEvents": trace(0)["traceEvents"][:3]}, 0),
        ("rank3.json", trace(1, 8), 1),
    ],
)
def test_the_name_of_a_file_alone_needs_content_that_agrees(
    tmp_path: Path, name: str, made: dict[str, Any], rank: int
):
    assert read(write(tmp_path / name, made)).ledger.run.ranks_seen == (rank,)


def test_steps_that_an_old_torch_recorded_as_operators_are_steps(tmp_path: Path):
    new, old = trace(0, 1, steps=(3, 4, 5)), trace(0, 1, steps=(3, 4, 5))
    names = {"user_annotation": "Operator", "kernel": "Kernel", "cuda_runtime": "Runtime"}
    for event in old["traceEvents"]:
        event["cat"] = names.get(event["cat"], event["cat"])
    ledger = read(write(tmp_path / "old" / "t.json", old)).ledger
    assert (
        ledger.tables["steps"].to_pylist()
        == read(write(tmp_path / "new" / "t.json", new)).ledger.tables["steps"].to_pylist()
    )
    assert ledger.tables["steps"].column("step").to_pylist() == [3, 4, 5]


def test_files_found_elsewhere_have_their_steps_and_ranks():
    folder = shared("traces", "outside", "single")
    steps = read(folder / "tb_resnet50_workers0_steps_as_operators.json.gz").ledger.tables["steps"]
    assert steps.num_rows == 6
    run = read(folder / "profile_bs_512.json").ledger.run
    assert (run.ranks_seen, run.world_size) == ((0,), 1)
