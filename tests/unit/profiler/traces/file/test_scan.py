"""Events come out whole and in order, whatever the layout and wherever the pieces are cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.file import window as window_module
from shardtoll.profiler.traces.file.scan import Scan
from shardtoll.profiler.traces.file.slow import take

LOOKALIKES = [
    "}, {",
    '},{"ph": "X"',
    "]}",
    '"}]}',
    "},\n  {",
    "\\",
    '\\"',
    "traceEvents",
    "é",
    "\u2028",
    "😀",
]
WORDS = st.lists(st.one_of(st.sampled_from(LOOKALIKES), st.text(max_size=5)), max_size=4).map("".join)
NUMBERS = st.one_of(
    st.integers(-(2**40), 2**60), st.decimals(0, 2**40, allow_nan=False, allow_infinity=False, places=3)
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=6,
)
EVENTS = st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "M", "s"]),
        "name": WORDS,
        "ts": NUMBERS,
        "pid": st.one_of(st.integers(), WORDS),
    },
    optional={"args": st.dictionaries(WORDS, JSON, max_size=3), "dur": NUMBERS, "cat": WORDS, "x": JSON},
)
LAYOUTS = st.sampled_from(["compact", "spaced", "indent=1", "indent=4", "torch 2.13"])
METADATA = st.dictionaries(st.sampled_from(["INFO", "deviceProperties", "é", "x"]), JSON, max_size=3)


def dumped(value: Any, layout: str) -> str:
    if layout == "compact":
        return json.dumps(value, separators=(",", ":"), default=_number)
    if layout.startswith("indent"):
        return json.dumps(value, indent=int(layout[-1]), ensure_ascii=False, default=_number)
    return json.dumps(value, default=_number)


def _number(value: Decimal) -> float:
    return float(value)


def document(events: list[Any], before: dict[str, Any], after: dict[str, Any], layout: str) -> bytes:
    if layout == "torch 2.13":
        head = "".join(f"{json.dumps(key)}: {dumped(value, layout)},\n" for key, value in before.items())
        tail = "".join(
            f",{json.dumps(f'after {key}')}: {dumped(value, layout)}" for key, value in after.items()
        )
        body = "\n  ,\n  ".join(dumped(event, "indent=4") for event in events)
        return f' {{\n{head}"traceEvents": [\n  {body}\n  ]{tail} }}'.encode()
    return dumped(
        {**before, "traceEvents": events, **{f"after {k}": v for k, v in after.items()}}, layout
    ).encode()


def cut(content: bytes, size: int) -> Iterator[bytes]:
    return (content[place : place + size] for place in range(0, len(content), size))


def scanned(content: bytes, size: int = 64) -> tuple[list[Any], Scan]:
    scan = Scan(cut(content, size), "x", frozenset(["INFO", "after INFO"]))
    return [event for chunk in scan.chunks() for event in chunk.events], scan


def fields(event: Any) -> tuple[Any, ...]:
    return event.ph, event.name, event.pid, float(event.ts), event.dur is None


@given(st.lists(EVENTS, max_size=12), METADATA, METADATA, LAYOUTS, st.integers(1, 300))
def test_every_layout_gives_every_event(
    events: list[dict[str, Any]], before: dict[str, Any], after: dict[str, Any], layout: str, size: int
) -> None:
    found, scan = scanned(document(events, before, after, layout), size)
    assert [fields(event) for event in found] == [
        (event["ph"], event["name"], event["pid"], float(event["ts"]), "dur" not in event) for event in events
    ]
    assert (scan.bad, scan.cut, scan.found) == (0, None, True)
    assert scan.metadata.get("INFO") == before.get("INFO")


@given(st.lists(EVENTS, min_size=1, max_size=8), LAYOUTS, st.integers(1, 300), st.data())
def test_a_cut_file_gives_the_whole_events_before_the_cut(
    events: list[dict[str, Any]], layout: str, size: int, data: st.DataObject
) -> None:
    whole = document(events, {}, {}, layout)
    end = data.draw(st.integers(whole.index(b"[") + 1, len(whole) - 1))
    found, scan = scanned(whole[:end], size)
    assert [fields(event)[:3] for event in found] == [
        (event["ph"], event["name"], event["pid"]) for event in events[: len(found)]
    ]
    assert scan.cut is not None or end > whole.rindex(b"]")
    if end > whole.rindex(b"]"):
        assert len(found) == len(events)


@pytest.mark.parametrize("bad", [b'{"ph": "X", "ts": tru}', b'{"ph" "X"}', b"{{}}", b'"text', b"garbage"])
@pytest.mark.parametrize("size", [16, 1000])
def test_a_damaged_event_is_counted_and_the_others_are_kept(bad: bytes, size: int) -> None:
    good = b'{"ph": "X", "cat": "kernel", "name": "k%d", "ts": %d, "dur": 1}'
    parts = [good % (i, i) for i in range(6)]
    parts[3] = bad
    found, scan = scanned(b'{"traceEvents": [' + b",\n".join(parts) + b"]}", size)
    assert [event.name for event in found] == ["k0", "k1", "k2", "k4", "k5"]
    assert scan.bad == 1


def test_what_is_no_object_is_counted() -> None:
    found, scan = scanned(
        b'[{"ph": "X", "name": "a", "ts": 1}, 7, null, [], {"ph": "X", "name": "b", "ts": 2}]'
    )
    assert [event.name for event in found] == ["a", "b"]
    assert scan.bad == 3


def test_events_may_hold_lists_of_objects_that_look_like_events() -> None:
    inner = [{"ph": "X", "name": f"inner {i}"} for i in range(50)]
    events = [{"ph": "X", "name": f"outer {i}", "ts": i, "args": {"list": inner}} for i in range(5)]
    for size in (10, 100, 1000, 5000, 10**6):
        found, scan = scanned(json.dumps({"traceEvents": events}).encode(), size)
        assert [event.name for event in found] == [event["name"] for event in events]
        assert scan.bad == 0


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    content = b'{"traceEvents": [{"ph": "X", "name": "a\xff\xfeb"}, {"ph": "X", "name": "\xc3\xa9"}]}'
    for size in (7, 10_000):
        found, scan = scanned(content, size)
        assert found[0].name.startswith("a")
        assert found[0].name.endswith("b")
        found[0].name.encode()
        assert found[1].name == "é"
        assert scan.bad == 0


def test_a_byte_order_mark_is_no_damage() -> None:
    found, _ = scanned(b'\xef\xbb\xbf{"traceEvents": [{"ph": "X", "name": "a", "ts": 1}]}')
    assert len(found) == 1


def test_damage_before_the_events_does_not_lose_them() -> None:
    found, scan = scanned(b'{"schemaVersion": 1, "x" 5, "traceEvents": [{"ph": "X", "name": "a", "ts": 1}]}')
    assert [event.name for event in found] == ["a"]
    assert scan.bad == 1


def test_values_beside_the_events_are_limited() -> None:
    assert list(Scan(iter([b"{" + b'"a": 1, ' * 90_000 + b'"traceEvents": []}']), "x").chunks()) == []
    with pytest.raises(TraceError, match=r"^x is no usable trace: it holds more than 100000 values"):
        scanned(b"{" + b'"a": 1, ' * 100_001 + b'"traceEvents": []}')


def test_a_long_text_of_broken_events_is_read_in_stretches() -> None:
    good = '{"ph": "X", "name": "a", "ts": 1}'
    text = ",\n".join([good, '{"ph": "X", "name: "b"}'] * 5_000 + [good]) + "]  rest"
    taken = take(text, ended=True, patience=1 << 20)
    assert (len(taken.events), taken.bad, taken.closed, taken.cut) == (5_001, 5_000, True, False)
    assert text[taken.place :] == "  rest"


def test_exact_times_are_those_of_the_text() -> None:
    scan = Scan(iter([b'[{"ph": "X", "name": "a", "ts": 1694128201426556.123, "dur": 0.001}]']), "x")
    (chunk,) = scan.chunks()
    (event,) = chunk.exact()
    assert (event.ts, event.dur) == (Decimal("1694128201426556.123"), Decimal("0.001"))


def test_nothing_waits_in_memory_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "WINDOW_LIMIT", 10_000)
    taken = 0

    def endless(filler: bytes) -> Iterator[bytes]:
        nonlocal taken
        yield b'{"traceEvents": [{"ph": "X", "name": "'
        while True:
            taken += 1000
            yield filler * 1000

    for filler in (b"a", b" ", b"["):
        taken = 0
        with pytest.raises(TraceError, match=r"^x is no usable trace: one event or value is larger than"):
            list(Scan(endless(filler), "x").chunks())
        assert taken < 50_000
