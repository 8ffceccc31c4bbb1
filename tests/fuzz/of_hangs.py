"""What `shardtoll hang` reads: flight files, dumps of flight recorders and logs, up to what it writes."""

from __future__ import annotations

import json
import pickle
import random
import tempfile
from pathlib import Path
from typing import Any, Final

from shardtoll.ledger.disk import flight_layout as layout
from tests.fuzz.hostile_hangs import head_of, with_head, with_slot
from tests.fuzz.mutate import deep, of_bytes, of_text, of_tree
from tests.fuzz.seams import Attack

_LOG: Final = b"""[rank1]:[E1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation \
timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 \
milliseconds before timing out.
[rank1]:[E1 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] last enqueued work: 6, last \
completed work: 4
[rank2]: Traceback (most recent call last):
[rank2]:   File "/home/me/train.py", line 40, in step
[rank2]: RuntimeError: [pair.cc:5] Timed out waiting 1800000ms for recv operation to complete
[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 1000 ms
"""


_GROUP_ROOM: Final = layout.GROUP_BYTES - layout.GROUP_TEXT_AT
_SLOTS: Final = (
    (layout.TEXTS_AT, layout.TEXT_BYTES, 3),
    (layout.GROUPS_AT + layout.GROUP_TEXT_AT, _GROUP_ROOM, 2),
    (layout.STACKS_AT, layout.STACK_BYTES, 2),
)
"""Where texts lie, how long each may be, and how many are used."""


def _entry(seq: int, **rest: Any) -> dict[str, Any]:
    frames = [{"name": "step", "filename": "/home/me/train.py", "line": 44}]
    return {
        "frames": frames, "record_id": seq - 1, "pg_id": 0, "process_group": ("0", "default_pg"),
        "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_000_000 * seq, "input_sizes": [[4, 2]], "input_dtypes": ["BFloat16"],
        "output_sizes": [[16, 2]], "output_dtypes": ["BFloat16"], "state": "completed", "retired": False,
        "time_discovered_completed_ns": None, "timeout_ms": 600_000, "is_p2p": False, **rest,
    }  # fmt: skip


def _dump(rank: int) -> dict[str, Any]:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    last = _entry(3 + rank, state="started", profiling_name="nccl:send 0->1", is_p2p=True)
    return {
        "version": "2.10",
        "rank": rank,
        "pg_config": groups,
        "pg_status": {},
        "entries": [_entry(1), last],
    }


def _pickled(value: Any, protocol: int) -> bytes:
    try:
        return pickle.dumps(value, protocol)
    except RecursionError:
        # Python itself pickles nothing that is nested so deep: lists within lists, without an end.
        return b"\x80\x02" + b"](" * 30_000


def _damaged(data: bytes, chance: random.Random) -> bytes:
    """Return a flight file with bytes changed anywhere, or with a text that says something else."""
    if chance.random() < 0.5:
        return of_bytes(data, chance, 40)
    if chance.random() < 0.3:
        return with_head(data, of_tree(head_of(data), chance))
    begin, room, count = chance.choice(_SLOTS)
    at = begin + chance.randrange(count) * (layout.GROUP_BYTES if room == _GROUP_ROOM else room)
    said = layout.read_slot(data, at, room)
    value = of_tree(said[1] if said is not None else {"frames": ["a"], "name": "0", "op": "send"}, chance)
    number = chance.choice((None, 1, 2**62))
    try:
        return with_slot(data, at, room, value, number)
    except (AssertionError, RecursionError):
        # It does not fit.
        return data


def hangs() -> Attack:
    """Two ranks' files, one of them damaged, up to the verdict and what is written of it."""
    from shardtoll.analyzers.hang.diagnose import diagnose
    from shardtoll.cli.inputs.flights import read_all
    from shardtoll.cli.inputs.outputs import write_answer
    from tests.flights import write_flight

    with tempfile.TemporaryDirectory() as made:
        for rank in range(2):
            write_flight(Path(made), rank, 3 + rank, hang_in=True, state=None).let_go()
        files = [path.read_bytes() for path in sorted(Path(made).glob("flight.*"))]
        # Else the memory that a file was written from, which nobody damages, is read in its place.
        flights = [with_head(data, {**head_of(data), "memory": None}) for data in files]

    def attack(chance: random.Random, folder: Path) -> None:
        for old in folder.glob("*rank*"):
            old.unlink()
        way = chance.random()
        damaged = chance.randrange(2)
        # A sound file beside a damaged one is read, and the other one is a note.
        for rank in range(2) if chance.random() < 0.5 else (damaged,):
            if way < 0.35:
                data = _damaged(flights[rank], chance) if rank == damaged else flights[rank]
                (folder / f"flight.rank{rank:05d}.bin").write_bytes(data)
            elif way < 0.8:
                dump: Any = of_tree(_dump(rank), chance) if rank == damaged else _dump(rank)
                if way < 0.6:
                    data = json.dumps(dump).encode("utf-8", "surrogatepass")
                else:
                    data = _pickled(dump, chance.choice((2, 4)))
                data = of_bytes(data, chance) if rank == damaged and chance.random() < 0.4 else data
                data = deep(chance).encode() if chance.random() < 0.01 else data
                (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
            else:
                (folder / f"rank{rank}.log").write_bytes(of_text(_LOG, chance) if rank == damaged else _LOG)
        read, now_ns, notes = read_all([folder])
        answer = diagnose(read, now_ns, None, notes)
        if chance.random() < 0.1:
            target = folder / f"hang{chance.choice(('.json', '.md', '.html'))}"
            write_answer("hang", answer, [target], as_json=True)

    return attack
