"""Dumps of torch's flight recorder and logs of torch say the same as flight files: who is in what."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.ledger import UsageError
from shardtoll.profiler.hang.hang_files import looks_like, read_file

FRAMES = [
    {
        "name": "all_reduce",
        "filename": "/env/site-packages/torch/distributed/distributed_c10d.py",
        "line": 2501,
    },
    {"name": "train_step", "filename": "/home/me/train.py", "line": 44},
]


def entry(seq: int, op: str = "nccl:all_reduce", state: str = "completed", **rest: Any) -> dict[str, Any]:
    """Return an entry as torch 2.6 writes it."""
    return {
        "frames": FRAMES, "record_id": seq - 1, "pg_id": 0, "process_group": ("0", "default_pg"),
        "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "profiling_name": op,
        "time_created_ns": 1_000_000 * seq, "input_sizes": [[4, 2]], "input_dtypes": ["BFloat16"],
        "output_sizes": [[16, 2]], "output_dtypes": ["BFloat16"], "state": state,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": False,
        "timeout_ms": 600_000, "is_p2p": False, **rest,
    }  # fmt: skip


def dump(*entries: dict[str, Any]) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries)}


def write(path: Path, value: dict[str, Any], *, as_json: bool = False) -> Path:
    path.write_bytes(json.dumps(value).encode() if as_json else pickle.dumps(value, 2))
    return path


@pytest.mark.parametrize("as_json", [False, True])
def test_a_rank_that_did_not_come_is_named(tmp_path: Path, as_json: bool):
    here = write(tmp_path / "nccl_trace_rank_0", dump(entry(1), entry(2, state="scheduled")), as_json=as_json)
    there = write(tmp_path / "nccl_trace_rank_1", dump(entry(1)), as_json=as_json)
    flights = [each for path in (here, there) for each in read_file(path)]
    told = diagnose(flights, 0)
    assert (told.hang, told.why) == (True, "late")
    assert "rank 0 waits" in told.verdict
    assert "in all_reduce 2 of group 0 (16 B bfloat16) at me/train.py:44 (train_step)" in told.verdict
    assert told.verdict.startswith("Rank 1 has not arrived")


def test_other_operations_and_sizes_are_named(tmp_path: Path):
    gathers = entry(2, "nccl:_all_gather_base", "started")
    paths = [
        write(tmp_path / "nccl_trace_rank_0", dump(entry(1), entry(2, state="started"))),
        write(tmp_path / "nccl_trace_rank_1", dump(entry(1), gathers)),
    ]
    told = diagnose([each for path in paths for each in read_file(path)], 0)
    assert told.why in ("mismatch", "extra", "skipped")
    assert "all_gather 2 of group 0 (64 B bfloat16)" in told.verdict


def test_sends_name_their_other_side(tmp_path: Path):
    sends = entry(1, "nccl:send 0->1", "scheduled", is_p2p=True)
    paths = [
        write(tmp_path / "trace_rank_0", dump(sends)),
        write(tmp_path / "trace_rank_1", dump(entry(1, state="started"))),
    ]
    (flight,) = read_file(paths[0])
    assert (flight.calls[0].op, flight.calls[0].root, flight.calls[0].place) == ("send", 1, 1)
    told = diagnose([flight, *read_file(paths[1])], 0)
    assert told.why == "no peer"


def test_the_other_side_of_a_send_is_counted_within_its_group(tmp_path: Path):
    """As `_init_global_src_dst` of torch's own analyzer reads it."""
    value = dump(entry(1, "nccl:send 0->1", "scheduled", is_p2p=True, process_group=("7", "pp")))
    value["pg_config"]["7"] = {"name": "7", "desc": "pp", "ranks": "[2, 6]"}
    (flight,) = read_file(write(tmp_path / "trace_rank_2", value))
    assert flight.calls[0].root == 6


@pytest.mark.parametrize("state", ["completed", "started"])
def test_a_batch_of_sends_is_done_when_its_end_is(tmp_path: Path, state: str):
    """torch gives the calls of a batch no events: they stay scheduled, and only the end of it says more."""
    batch = {"is_p2p": True, "p2p_seq_id": 4, "collective_seq_id": 1}
    value = dump(
        entry(1),
        {**entry(2, "nccl:send 0->1", "scheduled"), **batch},
        {**entry(3, "nccl:recv 0<-1", "scheduled"), **batch},
        {**entry(4, "nccl:coalesced", state), **batch},
    )
    (flight,) = read_file(write(tmp_path / "trace_rank_0", value))
    assert [call.op for call in flight.calls] == ["all_reduce", "send", "recv"]
    done = [call.finished_ns is not None for call in flight.calls]
    assert done == [True, state == "completed", state == "completed"]
    assert flight.blocked == (None if state == "completed" else 2)


def test_what_was_retired_or_lies_before_the_last_completed_is_done(tmp_path: Path):
    value = dump(
        entry(1, state="scheduled"), entry(2, state="scheduled", retired=True), entry(3, state="started")
    )
    value["pg_status"] = {"0": {"last_completed_collective": 1}}
    (flight,) = read_file(write(tmp_path / "trace_0", value))
    assert [call.finished_ns is None for call in flight.calls] == [False, False, True]
    assert flight.blocked == 3


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02}.",
        b"{}",
        b"{",
        b"{}" * 3,
        b'{"entries": 1}',
        b"",
        b"nothing of torch\n",
        b"\x80\x02cos\nsystem\n.",
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, data: bytes):
    path = tmp_path / "trace_rank_0"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        read_file(path)
    assert str(path) in caught.value.message
    assert "\n" not in str(caught.value)


def test_a_dump_without_a_rank_says_so(tmp_path: Path):
    with pytest.raises(UsageError, match="its rank is unknown"):
        read_file(write(tmp_path / "trace", dump(entry(1))))


@pytest.mark.parametrize(
    "name", ["nccl_trace_rank_3", "comm_lib_trace_rank_0.pickle", "rank0.log", "stderr.txt"]
)
def test_files_of_a_folder_are_known_by_name(name: str):
    assert looks_like(Path(name))


@pytest.mark.parametrize(
    "name", ["steps.rank00000.parquet", "run.rank00000.json", "model.pt", "stacks.rank00000.txt"]
)
def test_other_files_of_a_folder_are_left_alone(name: str):
    assert not looks_like(Path(name))


NCCL = """\
[rank1]:[E1124 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600032 \
milliseconds before timing out.
[rank1]:[E1124 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (either an \
error or timeout) detected by watchdog at work: 12, last enqueued NCCL work: 12, last completed NCCL work: 11.
[rank0]:[E1124 10:00:00.3 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=11, OpType=BROADCAST, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600001 \
milliseconds before timing out.
[rank0]:[E1124 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 0] Exception (either an \
error or timeout) detected by watchdog at work: 11, last enqueued NCCL work: 11, last completed NCCL work: 10.
"""


def test_nccls_watchdog_is_read(tmp_path: Path):
    path = tmp_path / "train.log"
    path.write_text(NCCL)
    first, second = read_file(path)
    assert (first.rank, first.calls[0].op, first.calls[0].place) == (0, "broadcast", 11)
    assert (second.rank, second.calls[0].op, second.waited_ns) == (1, "all_reduce", 600_032_000_000)
    told = diagnose([first, second], 0)
    assert told.hang
    assert "rank 1 waits for 600 s in all_reduce 12" in told.verdict


GLOO = """\
[rank2]: Traceback (most recent call last):
[rank2]:   File "/home/me/train.py", line 44, in train_step
[rank2]:     dist.all_reduce(loss)
[rank2]:   File "/env/site-packages/torch/distributed/distributed_c10d.py", line 2501, in all_reduce
[rank2]:     work.wait()
[rank2]: RuntimeError: [../gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for \
recv operation to complete
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/data.py", line 7, in load
[rank0]:     raise ValueError("no labels")
[rank0]: ValueError: no labels
"""


def test_gloos_timeouts_and_tracebacks_are_read(tmp_path: Path):
    path = tmp_path / "train.log"
    path.write_text(GLOO)
    first, second = read_file(path)
    assert (first.rank, first.state, first.error, first.line) == (
        0,
        "failed",
        "ValueError: no labels",
        "me/data.py:7 (load)",
    )
    assert (second.calls[0].op, second.calls[0].source) == ("all_reduce", "me/train.py:44 (train_step)")
    assert second.waited_ns == 5_000_000_000
    told = diagnose([first, second], 0)
    assert told.why == "failed"
    assert "Rank 0 failed with ValueError: no labels at me/data.py:7 (load)" in told.verdict


def test_the_monitored_barrier_names_who_is_missing(tmp_path: Path):
    path = tmp_path / "train.log"
    path.write_text("RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 5000 ms\n")
    (flight,) = read_file(path)
    assert flight.not_arrived == (1, 3)
    told = diagnose([flight], 0)
    assert "ranks 1 and 3" in told.verdict


def test_a_small_pickle_of_shared_lists_is_read_at_once(tmp_path: Path):
    shared: list[Any] = ["x"]
    for _ in range(60):
        shared = [shared, shared]
    hostile = entry(1, shared, "started")  # type: ignore[arg-type]
    hostile |= {"input_dtypes": shared, "output_dtypes": shared, "process_group": [shared], "pg_id": shared}
    frames = [{"filename": shared, "line": 1, "name": shared}]
    value = dump(hostile | {"frames": frames, "state": shared, "input_sizes": shared})
    value["pg_config"] = {"0": {"name": shared, "desc": shared, "ranks": shared}}
    path = write(tmp_path / "trace_rank_0", value)
    assert path.stat().st_size < 2_000
    began = time.process_time()
    (flight,) = read_file(path)
    assert time.process_time() - began < 1
    (only,) = flight.calls
    assert (only.op, only.dtype, only.message_bytes, only.source) == ("unknown", None, None, None)


def test_a_shared_tuple_is_no_key_of_a_pickle(tmp_path: Path):
    # By hand: to make such a dict takes as long as to read it. Each pair holds the one before it twice.
    pairs = b"".join(b"q%ch%c\x86" % (depth, depth) for depth in range(60))
    data = b"\x80\x02})" + pairs + b"K\x01s."
    path = tmp_path / "trace_rank_0"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="cannot be read"):
        read_file(path)


def test_a_shape_of_many_sizes_is_an_unknown_size(tmp_path: Path):
    path = write(tmp_path / "trace_rank_0", dump(entry(1, input_sizes=[[1 << 60] * 400_000])), as_json=True)
    began = time.process_time()
    (flight,) = read_file(path)
    assert time.process_time() - began < 1
    assert flight.calls[0].message_bytes is None


def test_groups_of_too_many_ranks_are_of_unknown_ranks(tmp_path: Path):
    value = dump(entry(1))
    several = str(list(range(60_000)))
    value["pg_config"] = {str(name): {"name": str(name), "ranks": several} for name in range(20)}
    (flight,) = read_file(write(tmp_path / "trace_rank_0", value))
    assert sum(len(group.ranks) for group in flight.groups) <= 1 << 20
    assert len(flight.groups[0].ranks) == 60_000


def test_a_log_line_of_many_ranks_is_read_at_once(tmp_path: Path):
    words = "Watchdog caught collective operation timeout: WorkNCCL( last enqueued work: "
    line = "[Rank 1]" * 480 + words
    path = tmp_path / "train.log"
    path.write_text("\n".join([line] * 300) + "\n" + NCCL)
    began = time.process_time()
    assert len(read_file(path)) == 2
    assert time.process_time() - began < 1


def time_out(rank: int, group: int = 0) -> str:
    work = "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000)"
    return (
        f"[rank{rank}]:[E1124 ProcessGroupNCCL.cpp:616] [PG ID {group} PG GUID {group}(x) Rank {rank}] "
        f"Watchdog caught collective operation timeout: {work} ran for 600032 milliseconds.\n"
    )


@pytest.mark.parametrize(
    ("ranks", "group", "said", "remedy"),
    [
        ((1, 2, 3), 0, ", and has nothing of rank 0.", "Look at the stacks of rank 0: a rank without"),
        (
            (0, 1, 2),
            0,
            "does not say which ranks did not.",
            "Look for a rank of the group without a time-out",
        ),
        ((1, 3), 2, "does not say which ranks did not.", "Look for a rank of the group without a time-out"),
    ],
)
def test_a_log_names_who_came_and_no_network(
    tmp_path: Path, ranks: tuple[int, ...], group: int, said: str, remedy: str
):
    path = tmp_path / "train.log"
    path.write_text("".join(time_out(rank, group) for rank in ranks))
    told = diagnose(read_file(path), 0)
    assert (told.hang, told.why) == (True, "unknown")
    assert "they have arrived; the log does not say which ranks did not" in told.verdict
    assert told.verdict.endswith(said)
    assert "network" not in told.verdict
    assert told.findings[0].remedy is not None
    assert told.findings[0].remedy.text.startswith(remedy)
    assert (told.groups[0].ranks, told.groups[0].waiting) == ((), ranks)


@pytest.mark.parametrize("listed", [False, True])
def test_dumps_without_members_of_groups_say_no_network_either(tmp_path: Path, listed: bool):
    flights = []
    for rank in (0, 1):
        value = dump(entry(1), entry(2, state="started"))
        if not listed:
            del value["pg_config"]
        flights += read_file(write(tmp_path / f"nccl_trace_rank_{rank}", value))
    told = diagnose(flights, 0)
    assert told.why == "unknown"
    assert ("all its ranks have arrived: the network" in told.verdict) is listed
    assert ("the dump does not say which ranks did not" in told.verdict) is not listed
    assert told.findings[0].remedy is not None
    assert ("Give the dumps of all ranks" in told.findings[0].remedy.text) is not listed
