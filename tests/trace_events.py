"""An independent reader of Chrome's trace events: what ui.perfetto.dev would refuse, or draw wrongly.

Written from the format's description and from how Perfetto reads it: events are put in order by time, those
of one time as they stand in the file; a flow binds to the slice of its track that was opened last; slices of
a track nest.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any


def read_ns(value: Any) -> int:
    """Return a time as Perfetto reads it: a double of µs times 1000, what is behind the point dropped."""
    assert isinstance(value, int | float)
    assert not isinstance(value, bool)
    return int(value * 1000)


def refuse(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def check(text: str) -> list[dict[str, Any]]:
    """Return the events of a trace, all of which are as they should be."""
    assert text.isascii()
    document = json.loads(text, parse_constant=refuse)
    events: list[dict[str, Any]] = document["traceEvents"]
    assert set(document) == {"otherData", "traceEvents"}
    processes, tracks = _names(events)
    for event in events:
        assert event["ph"] in "XMistf"
        assert isinstance(event["name"], str)
        assert event["name"]
        for number in ("pid", "tid") if event["ph"] != "M" else ("pid",):
            assert type(event[number]) is int
            assert 0 < event[number] < 1 << 32
        assert read_ns(event["ts"]) >= 0
        assert event["pid"] in processes
        assert event["ph"] == "M" or tracks[event["tid"]] == event["pid"]
        if event["ph"] == "X":
            assert read_ns(event["dur"]) >= 0
        if event["ph"] == "i":
            assert event["s"] == "g"
    _slices_and_flows(events)
    return events


def _names(events: list[dict[str, Any]]) -> tuple[set[int], dict[int, int]]:
    """Return the named processes, and each named track with its process."""
    processes: set[int] = set()
    tracks: dict[int, int] = {}
    for event in events:
        if event["ph"] != "M":
            continue
        (value,) = event["args"].values()
        if event["name"] == "process_name":
            assert event["pid"] not in processes, "a process is named twice"
            assert value
            processes.add(event["pid"])
        elif event["name"] == "thread_name":
            assert event["tid"] not in tracks, "a track is named twice"
            assert value
            tracks[event["tid"]] = event["pid"]
        else:
            assert event["name"] in ("process_sort_index", "thread_sort_index")
            assert type(value) is int
    assert not processes & set(tracks), "the main thread of a process has its number"
    return processes, tracks


def _slices_and_flows(events: list[dict[str, Any]]) -> None:
    open_slices: dict[int, list[tuple[int, int]]] = defaultdict(list)
    flows: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for event in sorted((one for one in events if one["ph"] != "M"), key=lambda one: read_ns(one["ts"])):
        at, stack = read_ns(event["ts"]), open_slices[event["tid"]]
        if event["ph"] == "X":
            end = at + read_ns(event["dur"])
            while stack and (stack[-1][1] < at or (stack[-1][1] == at and not stack[-1][0] == at == end)):
                stack.pop()
            assert all(end <= other for _, other in stack), f"{event} crosses another slice"
            assert len(stack) < 10
            stack.append((at, end))
        elif event["ph"] in "stf":
            assert stack, f"{event} has no slice"
            assert stack[-1][0] == at, f"{event} binds to another slice than its own"
            flows[event["id"]].append((event["ph"], event["tid"]))
    for number, steps in flows.items():
        words = "".join(phase for phase, _ in steps)
        assert words == "s" + "t" * (len(words) - 2) + "f", f"flow {number} goes {words}"
        assert len({tid for _, tid in steps}) == len(steps)
