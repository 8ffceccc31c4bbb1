"""Files for `shardtoll hang` that are whole by checksum or grammar, and wrong in what they say."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from shardtoll.ledger.disk import flight_layout as layout

ODD: Final[tuple[Any, ...]] = (
    *(None, True, [], {}, "", "x" * 300, "\0", "\ud800", 0, -1, 0.5, -0.0),
    *(2**31, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 1e308, [[0, 1, 1]] * 3, {"a": [1]}),
)
"""Values that nobody expects where they stand."""
LARGE: Final = (2**63 - 1, -(2**63), 2**62, 2**62 - 1, -(2**62), 1)
_TEXTS: Final = ("op", "group", "bytes", "dtype", "reduce", "root", "source", "gets", "module", "phase")
_HEAD: Final = ("rank", "epoch_ns", "world_size", "beat_s", "hang_after_s", "pid", "host", "boot", "run_id",
                "waits_block", "memory", "pids", "born_ticks")  # fmt: skip

Case = tuple[str, Callable[[Path], None]]
"""A name, and what writes the files into an empty folder."""


def head_of(data: bytes) -> dict[str, Any]:
    """Return what a flight file's head says."""
    _, _, length = layout.HEAD.unpack_from(data, 0)
    said: dict[str, Any] = json.loads(data[layout.HEAD.size : layout.HEAD.size + length])
    return said


def with_head(data: bytes, said: Any) -> bytes:
    """Return a flight file with another head."""
    text = json.dumps(said).encode()[: layout.HEAD_BYTES - layout.HEAD.size]
    head = layout.HEAD.pack(layout.MAGIC, layout.VERSION, len(text)) + text
    return head.ljust(layout.HEAD_BYTES, b"\0") + data[layout.HEAD_BYTES :]


def with_slot(data: bytes, offset: int, room: int, said: Any, number: int | None = None) -> bytes:
    """Return a flight file with another text in a slot, its checksum right."""
    if number is None:
        number = layout.TEXT_HEAD.unpack_from(data, offset)[0]
    slot = layout.text_slot(said, number, room)
    assert slot is not None
    return data[:offset] + slot + data[offset + len(slot) :]


def with_word(data: bytes, word: int, value: int) -> bytes:
    """Return a flight file with another word of eight bytes."""
    made = bytearray(data)
    struct.pack_into("<q", made, 8 * word, value)
    return bytes(made)


def flights(sound: list[bytes]) -> Iterator[Case]:
    """Yield flight files of which rank 1 is odd."""

    def case(name: str, data: bytes, beside: bytes | None = None) -> Case:
        def write(folder: Path) -> None:
            (folder / "flight.rank00000.bin").write_bytes(sound[0] if beside is None else beside)
            (folder / "flight.rank00001.bin").write_bytes(data)

        return name, write

    whole = sound[1]
    for nth, value in enumerate(ODD):
        yield case(f"head-{nth}", with_head(whole, value))
        for name in _HEAD if nth % 3 == 0 else ("rank", "epoch_ns", "world_size"):
            yield case(f"head-{name}-{nth}", with_head(whole, {**head_of(whole), name: value}))
        text = layout.TEXTS_AT
        for slot in range(2):
            at = text + slot * layout.TEXT_BYTES
            yield case(f"text-{slot}-{nth}", with_slot(whole, at, layout.TEXT_BYTES, value))
            said = dict.fromkeys(_TEXTS, value) if not isinstance(value, (list, dict)) else {"op": value}
            yield case(f"texts-{slot}-{nth}", with_slot(whole, at, layout.TEXT_BYTES, _fitting(said)))
        group = layout.GROUPS_AT + layout.GROUP_TEXT_AT
        room = layout.GROUP_BYTES - layout.GROUP_TEXT_AT
        yield case(f"group-{nth}", with_slot(whole, group, room, value, 1))
        for name in ("ranks", "name", "text"):
            said = {"name": "0", "ranks": [[0, 2, 1]], name: value}
            yield case(f"group-{name}-{nth}", with_slot(whole, group, room, said, 1))
        stack = {"line": value, "frames": value, "error": value}
        at = layout.STACKS_AT
        yield case(f"stack-{nth}", with_slot(whole, at, layout.STACK_BYTES, stack, 2**62))
    for value in LARGE:
        for word in range(layout.BEAT, layout.BEAT + 9):
            yield case(f"word-{word}-{value}", with_word(whole, word, value))
            yield case(
                f"words-{word}-{value}", with_word(whole, word, value), with_word(sound[0], word, value)
            )
        for part in range(9):
            for entry in range(1, 4):
                at = (layout.RING_AT + entry * layout.ENTRY.size) // 8 + part
                yield case(f"entry-{entry}-{part}-{value}", with_word(whole, at, value))
        for part in range(2):
            yield case(f"place-{part}-{value}", with_word(whole, layout.GROUPS_AT // 8 + part, value))
    for length in (0, 1, 7, 8, 16, 1023, 1024, 1025, 5000, len(whole) - 1):
        yield case(f"cut-{length}", whole[:length])
    yield case("twice", whole + whole)
    yield case("same-rank", with_head(whole, {**head_of(whole), "rank": 0}))


def _fitting(said: dict[str, Any]) -> dict[str, Any]:
    """Return as many of the fields as fit into a slot."""
    while layout.text_slot(said, 1, layout.TEXT_BYTES) is None:
        said.popitem()
    return said


def dumps(sound: dict[str, Any]) -> Iterator[Case]:
    """Yield dumps of NCCL's flight recorder without a key, or with another kind of value in its place."""

    def case(name: str, data: bytes) -> Case:
        return name, lambda folder: (folder / "nccl_trace_rank_0").write_bytes(data) and None

    def both(name: str, dump: Any) -> Iterator[Case]:
        yield case(f"{name}-json", json.dumps(dump).encode())
        yield case(f"{name}-pickle", pickle.dumps(dump, 4))

    entry = sound["entries"][-1]
    for key in sound:
        yield from both(f"dump-without-{key}", {each: sound[each] for each in sound if each != key})
        for nth, value in enumerate(ODD[::3]):
            yield from both(f"dump-{key}-{nth}", {**sound, key: value})
    for key in entry:
        less = {each: entry[each] for each in entry if each != key}
        yield from both(f"entry-without-{key}", {**sound, "entries": [*sound["entries"][:-1], less]})
        for nth, value in enumerate(ODD):
            made = {**sound, "entries": [*sound["entries"][:-1], {**entry, key: value}]}
            yield from (
                both(f"entry-{key}-{nth}", made)
                if nth % 4 == 0
                else [case(f"entry-{key}-{nth}", json.dumps(made).encode())]
            )
    yield from both("many-of-one", {**sound, "entries": [entry] * 20_000})
    yield case("nan", json.dumps({**sound, "rank": float("nan")}).encode())
    for name, code in FORBIDDEN.items():
        yield case(f"opcode-{name}", code)


FORBIDDEN: Final = {
    "global": b"\x80\x04cos\nsystem\n(S'touch here'\ntR.",
    "stack-global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0atouch here\x85R.",
    "reduce": b"\x80\x04]]R.",
    "build": b"\x80\x04}}b.",
    "inst": b"\x80\x02(S'x'\nios\nsystem\n.",
    "obj": b"\x80\x02(cos\nsystem\nS'x'\no.",
    "newobj": b"\x80\x02cos\nsystem\n)\x81.",
    "newobj-ex": b"\x80\x04]]]\x92.",
    "persid": b"\x80\x02Pabc\n.",
    "binpersid": b"\x80\x02]Q.",
    "ext1": b"\x80\x02\x82\x01.",
    "ext4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "next-buffer": b"\x80\x05\x97.",
    "readonly-buffer": b"\x80\x05]\x98.",
    "bytearray": b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "long-string": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "long-bytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "long4": b"\x80\x04\x8b\xff\xff\xff\x7f.",
    "negative-long4": b"\x80\x04\x8b\xff\xff\xff\xff.",
    "frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff].",
    "memo": b"\x80\x04]r\xff\xff\xff\xffj\xff\xff\xff\xff.",
    "no-memo": b"\x80\x04h\x05.",
    "negative-put": b"\x80\x02]p-1\n.",
    "empty-stack": b"\x80\x04a.",
    "mark-left": b"\x80\x04(.",
    "odd-items": b"\x80\x04}(K\x01u.",
    "dup": b"\x80\x0422.",
    "own-tail": b"\x80\x04]\x94h\x00a.",
    "own-value": b"\x80\x04}\x94(\x8c\x07entriesh\x00u.",
    "own-entries": b"\x80\x04}\x94\x8c\x07entries]\x94(h\x00h\x01es.",
    "doubling": b"\x80\x04]" + b"\x94" + b"".join(
        b"](h" + bytes([each]) + b"h" + bytes([each]) + b"e\x94" for each in range(60)
    ) + b".",
}  # fmt: skip
"""Pickles that ask for more than plain values, or for more than is there."""

WORDINGS: Final = (
    "[rank1]:[E1128 04:43:06.0 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 "
    "milliseconds before timing out.",
    "[rank1]:[E ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=18446744073709551615, OpType=_ALLGATHER_BASE, NumelIn=1, NumelOut=1, Timeout(ms)=1) ran "
    "ran for 999999999999999999 milliseconds before timing out.",
    "[rank1]:[E ProcessGroupNCCL.cpp:2241] [PG ID 0 PG GUID 0(default_pg) Rank 1] failure detected by "
    "watchdog at work sequence id: 5 PG status: last enqueued work: 6, last completed work: -1",
    "[rank1]:[E ProcessGroupNCCL.cpp:1895] [PG ID 1 PG GUID 3:7(mesh_tp) Rank 1] Timeout at NCCL work: 5, "
    "last enqueued NCCL work: 999999999999999999, last completed NCCL work: -999999999999999999.",
    "[rank999999999]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out "
    "waiting 999999999999999999ms for recv operation to complete",
    "[rank0]: torch.distributed.DistBackendError: NCCL error: ProcessGroupNCCL.cpp:94, remote process exited",
    "[Rank 0]: Ranks 1, 2, 999999999 failed to pass monitoredBarrier in 999999999999999999 ms",
    "[rank2]: RuntimeError: Gloo connectFullMesh failed with Connection reset by peer",
)
"""How torch 2.6 to 2.11 say it, with numbers that none of them writes."""


def logs() -> Iterator[Case]:
    """Yield logs cut in mid-line, with lines doubled, of odd bytes and of odd line ends."""

    def case(name: str, data: bytes) -> Case:
        return name, lambda folder: (folder / "rank1.log").write_bytes(data) and None

    whole = "\n".join(WORDINGS).encode()
    for nth, line in enumerate(WORDINGS):
        data = line.encode()
        yield case(f"line-{nth}", data)
        for part in range(1, 12):
            yield case(f"line-{nth}-cut-{part}", data[: len(data) * part // 12])
        yield case(f"line-{nth}-wide", line.encode("utf-16"))
        yield case(f"line-{nth}-odd", data.replace(b" ", b"\0", 3).replace(b"R", b"\xff", 1))
    yield case("all", whole)
    yield case("all-returns", whole.replace(b"\n", b"\r"))
    yield case("all-many", whole * 500)
    yield case("one-line", whole.replace(b"\n", b" ") * 200)
    yield case(
        "digits", b"[rank1]: [Rank " + b"9" * 200_000 + b"] Watchdog caught collective operation timeout: "
    )
