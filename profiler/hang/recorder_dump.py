"""Dumps of torch's flight recorder, as NCCL's watchdog writes them: JSON, or pickle without its dangers."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shardtoll.ledger.records.flight import FlightCall, FlightGroup, RankFlight
from shardtoll.profiler.hang.plain_pickle import load_plain

_MOST_ENTRIES: Final = 100_000
_MOST_SIZES: Final = 64
_MOST_TENSORS: Final = 4096
_MOST_FRAMES: Final = 128
_MOST_RANKS: Final = 1 << 17
"""Ranks that all groups of a dump may have together."""
_PATH: Final = 4096
_TEXT: Final = 400
_OPS: Final = {
    "_all_gather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "ALLGATHER_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "REDUCE_SCATTER_coalesced": "reduce_scatter",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_barrier": "barrier",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_to_all_single": "all_to_all",
}
"""torch's name of an operation in a dump -> our name, if these differ."""
_BYTES: Final = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "Float"), 4),
    **dict.fromkeys(("Long", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
_DTYPES: Final = {"Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Double": "float64",
                  "Long": "int64", "Int": "int32", "Byte": "uint8", "Bool": "bool"}  # fmt: skip
_PEERS: Final = re.compile(r"^(send|recv) (\d+)(?:->|<-)(\d+)$")
_LIBRARY: Final = ("site-packages", "dist-packages", "torch/distributed", "<frozen", "lib/python3")


def parse_dump(data: bytes) -> Mapping[str, Any]:
    """Return the content of a dump; ValueError if it is none."""
    dump = load_plain(data) if data[:1] == b"\x80" else json.loads(data)
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise ValueError("no dump of a flight recorder: it has no entries")
    return dump


def flights_of_dump(dump: Mapping[str, Any], path: Path) -> list[RankFlight]:
    """Return the rank that a dump is of; ValueError if neither dump nor file name says which."""
    rank = _rank_of(dump, path)
    listed = [entry for entry in dump["entries"][-_MOST_ENTRIES:] if isinstance(entry, dict)]
    batches = {_batch(entry): entry for entry in listed if _is_end(entry)}
    # A batch of sends and receives counts among no group's collectives.
    entries = [entry for entry in listed if not (_is_end(entry) and entry.get("is_p2p") is True)]
    configs = _mapping(dump.get("pg_config"))
    done = {
        _name(group): _whole(_mapping(status), "last_completed_collective")
        for group, status in _mapping(dump.get("pg_status")).items()
    }
    channels: Counter[tuple[str, str, int | None]] = Counter()
    # A pickle may say one list a million times; each is read once.
    shared = {id(frames): frames for frames in (entry.get("frames") for entry in entries)}
    lines = {key: _source(frames) for key, frames in shared.items()}
    calls = [
        _call(
            number,
            entry,
            done,
            channels,
            lines[id(entry.get("frames"))],
            batches.get(_batch(entry)),
            whole=_whole(listed[0], "record_id") == 0,
        )
        for number, entry in enumerate(entries, start=1)
    ]
    groups = _groups(calls, configs)
    # A dump counts the other side of a send or receive within its group.
    members = {group.name: group.ranks for group in groups}
    calls = [
        replace(call, root=members[call.group][call.root])
        if call.is_point_to_point and call.root is not None and call.root < len(members.get(call.group, ()))
        else call
        for call in calls
    ]
    times = [time for call in calls for time in (call.issued_ns, call.finished_ns) if time]
    waits = next((call for call in calls if call.finished_ns is None), None)
    return [
        RankFlight(
            rank=rank,
            world_size=None,
            source="recorder",
            path=str(path),
            calls=tuple(calls),
            groups=groups,
            state="open",
            blocked=None if waits is None else waits.number,
            blocked_since_ns=None if waits is None else waits.issued_ns,
            moved_ns=max(times, default=None),
            line=None if waits is None else waits.source,
        )
    ]


def _rank_of(dump: Mapping[str, Any], path: Path) -> int:
    rank = _whole(dump, "rank")
    numbers = re.findall(r"\d+", path.name)
    if rank is None and numbers:
        rank = int(numbers[-1][:9])
    if rank is None or rank < 0:
        raise ValueError("its rank is unknown: keep the name that torch gave it, which ends with the rank")
    return rank


def _call(
    number: int,
    entry: Mapping[str, Any],
    done: Mapping[str, int | None],
    channels: Counter[tuple[str, str, int | None]],
    line: str | None,
    batch: Mapping[str, Any] | None,
    *,
    whole: bool,
) -> FlightCall:
    """`batch`: the entry that ends the batch which the call is part of, and alone says that it is done."""
    group = _group_name(entry)
    op, peer = _op(_text(entry.get("profiling_name")))
    seq = _whole(entry, "collective_seq_id")
    if op in ("send", "recv"):
        channels[group, op, peer] += 1
        place = channels[group, op, peer] if whole else None
    else:
        place = seq
    created = _whole(entry, "time_created_ns")
    completed = _whole(entry, "time_discovered_completed_ns") or None
    last = done.get(_name(entry.get("pg_id")))
    finished = completed is not None or any(
        _text(each.get("state")) == "completed" or each.get("retired") is True
        for each in (entry, batch or {})
    )
    finished = finished or (place == seq and seq is not None and last is not None and seq <= last)
    side = "output" if op == "all_gather" else "input"
    dtypes = entry.get(f"{side}_dtypes")
    return FlightCall(
        number=number,
        op=op,
        group=group,
        place=place,
        message_bytes=_bytes(entry.get(f"{side}_sizes"), dtypes),
        dtype=_dtype(dtypes),
        root=peer,
        source=line,
        issued_ns=created,
        finished_ns=(completed or created or 1) if finished else None,
    )


def _is_end(entry: Mapping[str, Any]) -> bool:
    """Whether an entry stands for a batch whose calls have entries of their own before it."""
    return _text(entry.get("profiling_name")).partition(":")[2] == "coalesced"


def _batch(entry: Mapping[str, Any]) -> tuple[str, bool, int | None]:
    """Return what the calls of a batch and its end have in common; unlike for calls that are in none."""
    is_p2p = entry.get("is_p2p") is True
    return _group_name(entry), is_p2p, _whole(entry, "p2p_seq_id" if is_p2p else "collective_seq_id")


def _group_name(entry: Mapping[str, Any]) -> str:
    group = entry.get("process_group")
    name = group[0] if isinstance(group, (list, tuple)) and group else entry.get("pg_id", "")
    return _name(name)


def _op(name: str) -> tuple[str, int | None]:
    bare = name.partition(":")[2] or name
    peers = _PEERS.match(bare)
    if peers:
        return peers[1], int(peers[3][:9])
    return _OPS.get(bare, bare) or "unknown", None


def _bytes(sizes: object, dtypes: object) -> int | None:
    if not (isinstance(sizes, list) and isinstance(dtypes, list) and len(sizes) == len(dtypes)):
        return None
    if len(sizes) > _MOST_TENSORS:
        return None
    total = 0
    for shape, dtype in zip(sizes, dtypes, strict=True):
        each = _BYTES.get(dtype) if isinstance(dtype, str) else None
        if each is None or not isinstance(shape, list) or len(shape) > _MOST_SIZES:
            return None
        if not all(type(size) is int and 0 <= size < 1 << 62 for size in shape):
            return None
        total += each * math.prod(shape)
    return total if 0 <= total < 1 << 62 else None


def _dtype(dtypes: object) -> str | None:
    if not isinstance(dtypes, list) or not 0 < len(dtypes) <= _MOST_TENSORS:
        return None
    first = dtypes[0]
    if type(first) is not str or any(type(each) is not str or each != first for each in dtypes):
        return None
    return _DTYPES.get(first, first[:_TEXT].lower())


def _source(frames: object) -> str | None:
    """Return the innermost line that is no library's; None if no frame is named."""
    for frame in frames[:_MOST_FRAMES] if isinstance(frames, list) else ():
        if not isinstance(frame, dict):
            continue
        file, line = _text(frame.get("filename"), _PATH), _whole(frame, "line")
        if line is not None and file and not any(part in file for part in _LIBRARY):
            short = "/".join(file.split("/")[-2:])
            return f"{short}:{line} ({_text(frame.get('name'), 60)})"[-_TEXT:]
    return None


def _groups(calls: list[FlightCall], configs: Mapping[str, Any]) -> tuple[FlightGroup, ...]:
    by_name = {
        _name(_mapping(config).get("name")) or _name(name): _mapping(config)
        for name, config in configs.items()
    }
    collectives: dict[str, list[FlightCall]] = defaultdict(list)
    for call in calls:
        if not call.is_point_to_point and call.place:
            collectives[call.group].append(call)
    groups = []
    left = _MOST_RANKS
    for name in dict.fromkeys([*(call.group for call in calls), *by_name]):
        config = by_name.get(name, {})
        mine = collectives.get(name, [])
        finished = [call.place or 0 for call in mine if call.finished_ns is not None]
        listed = config.get("ranks")
        ranks = _ranks(listed, left)
        # Many groups may share one long text: only so much of it is read.
        left -= max(len(ranks), len(listed) // 10 if type(listed) is str else 0)
        groups.append(
            FlightGroup(
                name=name,
                ranks=ranks,
                description=_text(config.get("desc")) or None,
                finished_place=max(finished, default=None),
                issued_place=max((call.place or 0 for call in mine), default=None),
            )
        )
    return tuple(groups)


def _ranks(listed: object, most: int) -> tuple[int, ...]:
    """Return the ranks that torch lists as text, or as a list; empty if unknown, or more than `most`."""
    if type(listed) is str and len(listed) <= 10 * most:
        ranks = tuple(int(number[:9]) for number in re.findall(r"\d+", listed))
    elif isinstance(listed, list) and len(listed) <= most:
        ranks = tuple(rank for rank in listed if type(rank) is int and 0 <= rank < 10**9)
    else:
        ranks = ()
    return ranks if len(ranks) <= most else ()


def _text(value: object, most: int = _TEXT) -> str:
    """Return text of at most so many characters; empty if it is none.

    `str()` of a list that a pickle shares with itself takes 2 to the power of its depth.
    """
    return value[:most] if type(value) is str else ""


def _name(value: object) -> str:
    """Return the name or number of a group as text; empty if it is neither."""
    return str(value) if type(value) is int and abs(value) < 1 << 62 else _text(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(entry: Mapping[str, Any], name: str) -> int | None:
    value = entry.get(name)
    return value if type(value) is int and abs(value) < 1 << 62 else None
