"""What is no trace, or a damaged one, is told in one exact line and costs little memory."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import TraceFile, find
from shardtoll.profiler.traces.file.trace_columns import Trace

Write = Callable[..., TraceFile]
HINT = "name a trace that torch.profiler exported"
KERNEL = '{"ph": "X", "cat": "kernel", "name": "%s", "pid": 0, "tid": 7, "ts": %s, "dur": %s, "args": %s}'


class Bang:
    """A pickle that would leave a trace if somebody opened it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("/tmp/shardtoll-pickle-was-opened"),)


def kernel(name: str = "k", ts: Any = 1, dur: Any = 1, args: str = "{}") -> str:
    return KERNEL % (name, ts, dur, args)


def listed(*events: str) -> str:
    return '{"traceEvents": [' + ",".join(events) + "]}"


NOT_TRACES = {
    "empty": (b"", "is empty"),
    "white space": (b" \n" * 100, "holds nothing but white space"),
    "a megabyte of white space": (b" " * (2 << 20), "begins with more than 1 MiB of white space, no JSON"),
    "empty gzip": (gzip.compress(b""), "is empty"),
    "zeros": (bytes(100), "is not JSON: it begins with zero bytes"),
    "text": (b"hello", "is not JSON: it begins with b'hello'"),
    "other bytes": (b"\xff\xfe\n{", "is not JSON: it begins with b'\\xff\\xfe\\n{'"),
    "other JSON": (b'{"a": [1, 2]}', "is JSON without traceEvents, so no trace"),
    "traceEvents of another kind": (b'{"traceEvents": 5}', "is JSON without traceEvents, so no trace"),
    "no events": (b'{"traceEvents": []}', "holds no events"),
    "an empty list": (b"[]", "holds no events"),
    "numbers": (b"[1, 2, 3]", "holds no readable event (3 are damaged)"),
    "cut in the head": (
        b'{"schemaVersion": 1, "devi',
        "breaks off outside the events before the first whole event",
    ),
    "cut in the first event": (
        b'{"traceEvents": [{"ph": "X", ',
        "breaks off in an event before the first whole event",
    ),
    "cut before it": (b'{"traceEvents": [', "breaks off between two events before the first whole event"),
    "deep nesting in the head": (
        b'{"a": ' + b"[" * 500_000,
        "is no usable trace: a value is nested too deeply",
    ),
}


@pytest.mark.parametrize("kind", NOT_TRACES)
def test_what_is_no_trace_is_told_in_one_line(written: Write, kind: str) -> None:
    content, reason = NOT_TRACES[kind]
    file = written(content)
    with pytest.raises(TraceError) as caught:
        read_trace(file)
    assert str(caught.value) == f"{file.address} {reason}: {HINT}"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_pickle_is_named_and_never_opened(written: Write, pack: Callable[[bytes], bytes]) -> None:
    file = written(pack(pickle.dumps(Bang())))
    with pytest.raises(
        TraceError, match=r" is a Python pickle \(.*\), which is never opened: record the run "
    ):
        read_trace(file)
    assert not Path("/tmp/shardtoll-pickle-was-opened").exists()


def notices(trace: Trace) -> list[tuple[str, str]]:
    return [(kind, text) for kind, text in trace.notices if kind != "rank-from-name"]


def damaged(file: TraceFile, count: int) -> tuple[str, str]:
    return "file-damaged", f"{file.address}: {count} events could not be read and were left out"


@pytest.mark.parametrize(
    "bad",
    [
        kernel(ts="NaN"),
        kernel(dur="NaN"),
        kernel(dur="Infinity"),
        kernel(dur=-5),
        kernel(dur=-0.5),
        kernel(ts="1e18"),
        kernel(ts=10**18),
        kernel(ts=10**30),
        kernel(ts="1e400"),
        kernel(ts='"12"'),
        kernel(ts="null"),
        kernel(ts="true"),
        '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1}',
    ],
)
def test_times_that_are_none_cost_their_event_only(written: Write, bad: str) -> None:
    file = written(listed(kernel("a", 1.5), bad, kernel("b", 3)))
    trace = read_trace(file)
    assert [trace.names[number] for number in trace.device.name] == ["a", "b"]
    assert trace.device.start_ns.tolist() == [1500, 3000]
    assert notices(trace) == [damaged(file, 1)]


@pytest.mark.parametrize(
    "args",
    ["null", "[]", '"text"', "5", '{"correlation": {"a": 1}}', '{"stream": [1]}', '{"External id": 1e999}'],
)
def test_odd_args_are_as_good_as_none(written: Write, args: str) -> None:
    trace = read_trace(written(listed(kernel("a"), kernel("b", args=args))))
    assert trace.device.correlation.tolist() == [-1, -1]
    assert trace.device.stream.tolist() == [7, 7]
    assert notices(trace) == []


def test_deeply_nested_args_cost_their_event_only(written: Write) -> None:
    bomb = kernel("bomb", args='{"a": ' + "[" * 200_000 + "]" * 200_000 + "}")
    file = written(listed(kernel("a"), bomb, kernel("b")))
    trace = read_trace(file)
    assert [trace.names[number] for number in trace.device.name] == ["a", "b"]
    assert notices(trace) == [damaged(file, 1)]


def test_names_that_are_no_utf8_do_not_lose_the_file(written: Write) -> None:
    trace = read_trace(written(listed(kernel("a")).encode().replace(b'"a"', b'"\xff\xc3a"')))
    assert trace.names == ["\ufffd\ufffda"]


def test_odd_process_and_thread_ids_are_kept_as_text(written: Write) -> None:
    call = '{"ph": "X", "cat": "cuda_runtime", "name": "cudaFree", "pid": %s, "tid": %s, "ts": 1, "dur": 1}'
    trace = read_trace(written(listed(call % ('"p"', "1.5"), call % ("null", "[1]"), call % (7, '"t"'))))
    assert trace.threads == [("p", "1.5"), ("None", "None"), ("7", "t")]


def test_a_name_that_is_none_is_empty(written: Write) -> None:
    trace = read_trace(written(listed(kernel().replace('"k"', "5"), kernel().replace('"k"', "null"))))
    assert trace.names == [""]


@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_file_gives_what_was_before(written: Write, packed: bool) -> None:
    events = [kernel(f"k{i}", i) for i in range(20_000)]
    content = listed(*events).encode()
    whole = gzip.compress(content, 1) if packed else content
    file = written(whole[: len(whole) // 2])
    trace = read_trace(file)
    assert 5_000 < trace.events < 15_000
    assert trace.device.start_ns.tolist() == [i * 1000 for i in range(trace.events)]
    why = "ends in the middle of its gzip stream" if packed else "breaks off in an event"
    assert notices(trace) == [
        ("file-cut", f"{file.address} {why}: {trace.events} events were read before that"),
        ("clock-unknown", f"{file.address} breaks off before it says from when its times count"),
    ]


def test_a_head_of_the_wrong_types_says_nothing(written: Write) -> None:
    head = {"distributedInfo": [1], "deviceProperties": {"a": 1}, "baseTimeNanoseconds": "x", "host_name": {}}
    trace = read_trace(written(json.dumps(head)[:-1] + "," + listed(kernel())[1:], "trace.json"))
    assert trace.meta.rank is trace.meta.world_size is trace.meta.device is trace.meta.host is None
    assert trace.device.start_ns.tolist() == [1000]


@pytest.mark.parametrize(
    "info", [{"rank": -1}, {"rank": 5, "world_size": 2}, {"rank": "0"}, {"world_size": 10**9}]
)
def test_impossible_ranks_are_unknown(written: Write, info: dict[str, Any]) -> None:
    trace = read_trace(
        written(json.dumps({"distributedInfo": info})[:-1] + "," + listed(kernel())[1:], "t.json")
    )
    meta = trace.meta
    assert [kind for kind, _ in trace.notices] == ["world-size-unknown"] * ("world_size" in info)
    assert meta.world_size is None
    assert meta.rank in (None, 5)


BOMBS = {
    "zeros": (b"", b"\0", "is not JSON: it begins with zero bytes"),
    "spaces": (b"", b" ", "begins with more than 1 MiB of white space, no JSON"),
    "spaces between events": (b'{"traceEvents": [', b" ", "grow to more than"),
    "a text without end": (b'{"traceEvents": [{"name": "', b"a", "one event or value is larger than 32 MiB"),
    "empty events": (b'{"traceEvents": [', b"{}," * 1000, "grow to more than"),
}
READ = """
import sys
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import find
from shardtoll.ledger.records.errors import TraceError
def peak():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = peak()
try:
    read_trace(find([sys.argv[1]])[0])
except TraceError as error:
    print(str(error))
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_of_ten_gigabytes_is_refused_in_little_memory(tmp_path: Path, kind: str) -> None:
    head, filler, reason = BOMBS[kind]
    block = filler * ((100 << 20) // len(filler))
    path = tmp_path / "rank0.json.gz"
    # Members that follow each other are one content: 100 times 100 MiB.
    path.write_bytes(gzip.compress(head) + gzip.compress(block, 1) * 100)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    told, grown_kib = done.stdout.splitlines()
    assert told.startswith(str(path))
    assert reason in told
    assert int(grown_kib) < 200 << 10


ABSURD = ["3.1E+9997291", "1e99999999999999999999999", "1E-99999999999999999999", "9" * 6000]


@pytest.mark.parametrize("number", ABSURD)
def test_absurd_numbers_are_unknown(written: Write, number: str) -> None:
    odd = kernel("a", args=f'{{"stream": {number}, "correlation": 4}}')
    for events in ([odd], [odd, kernel("b", ts="1694128201426556.123")]):
        trace = read_trace(written(listed(*events)))
        assert trace.device.correlation[0] == 4
        assert trace.device.stream[0] in (-1, 0, 7)
        assert notices(trace) == []


@pytest.mark.parametrize("number", [number for number in ABSURD if "E-" not in number])
def test_absurd_times_cost_their_event_only(written: Write, number: str) -> None:
    file = written(listed(kernel("a"), kernel("b", ts=number), kernel("c", dur=number)))
    trace = read_trace(file)
    assert trace.names == ["a"]
    assert notices(trace) == [damaged(file, 2)]


def test_a_compressed_file_cut_before_its_first_block_is_not_empty(tmp_path: Path):
    text = json.dumps({"traceEvents": [{"name": os.urandom(9).hex()} for _ in range(4000)]}).encode()
    for name, data in (
        ("a.json.zst", zstandard.compress(text)[:8000]),
        ("a.json.gz", gzip.compress(text)[:20]),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(TraceError, match="ends in the middle of its"):
            read_trace(find([str(tmp_path / name)])[0])
