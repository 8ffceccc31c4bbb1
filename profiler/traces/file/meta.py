"""A trace's facts about its job, from its top-level values and its file's name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from shardtoll.profiler.traces.file.columns import BASE_LIMIT_NS
from shardtoll.profiler.traces.file.event import mended
from shardtoll.profiler.traces.file.trace_columns import CommArgs, GroupInfo, Meta

_TENSORBOARD: Final = re.compile(r"^(?P<host>.+)_(?P<pid>\d+)\.(?P<millis>\d{12,})\.pt\.trace\.json")
_NAMED_RANK: Final = re.compile(
    r"(?:^|[^A-Za-z])(?:rank|worker|trainer|gpu)[-_ .]?(\d{1,7})(?!\d)", re.IGNORECASE
)
_LOOSE_RANK: Final = re.compile(
    r"(?:^|[_.-])(\d{1,6})(?:\.pt)?(?:\.trace)?(?:\.json(?:\.\w+)?|\.sqlite)$", re.IGNORECASE
)
_COUNTED: Final = re.compile(r"(?:step|iter|iteration|epoch|batch|cycle|run|part)s?$", re.IGNORECASE)
"""Words before a number at the end of a name that show it is no rank."""

_LISTED: Final = 1_000_000

WANTED: Final = frozenset(
    (
        "distributedInfo",
        "deviceProperties",
        "baseTimeNanoseconds",
        "with_stack",
        "trace_id",
        "host_name",
        "torch_version",
        "pytorch_version",
    )
)
"""Top-level values that say something of the job."""


def rank_from_name(address: str) -> int | None:
    """Return the rank in a file's name (or else its folder's): `rank3`, `worker3_`, `rank-3`, `x_3.json`."""
    parts = [part for part in re.split(r"[/\\]", address) if part][-2:]
    for part in reversed(parts):
        match = _NAMED_RANK.search(part)
        if match:
            return int(match[1])
    if not parts or _TENSORBOARD.match(parts[-1]):
        return None
    match = _LOOSE_RANK.search(parts[-1])
    return int(match[1]) if match and not _COUNTED.search(parts[-1][: match.start()]) else None


def names_rank(address: str) -> bool:
    """Whether a file's name, or else its folder's, says `rank3` and not only a number."""
    return any(_NAMED_RANK.search(part) for part in re.split(r"[/\\]", address)[-2:])


def host_from_name(address: str) -> str | None:
    """Return the host in a name that `tensorboard_trace_handler` gave: `host_pid.millis.pt.trace.json`."""
    name = re.split(r"[/\\]", address)[-1]
    match = _TENSORBOARD.match(name)
    return match["host"] if match and not _NAMED_RANK.search(name) else None


def process_from_name(address: str) -> tuple[str, str] | None:
    """Return (host and rank, process id) in a name that `tensorboard_trace_handler` gave."""
    match = _TENSORBOARD.match(re.split(r"[/\\]", address)[-1])
    return (match["host"], match["pid"]) if match else None


def read_meta(values: Mapping[str, Any], address: str) -> tuple[Meta, list[tuple[str, str]]]:
    """Return what is known of the job, and notices on what had to be taken from elsewhere.

    Values of the wrong type count as absent.
    """
    notices: list[tuple[str, str]] = []
    distributed = values.get("distributedInfo")
    info: Mapping[str, Any] = distributed if isinstance(distributed, dict) else {}
    rank = _count(info.get("rank"))
    if rank is None:
        rank = rank_from_name(address)
        if rank is not None:
            notices.append(
                ("rank-from-name", f"rank {rank} is from the name of {address}; the file does not say")
            )
    world_size = _count(info.get("world_size")) or None
    if world_size is not None and (world_size > _LISTED or (rank is not None and rank >= world_size)):
        world_size = None
    if world_size is None and (said := info.get("world_size")) is not None:
        text = f"{address} says that rank {rank} is of {str(said)[:20]} ranks, which no job can have"
        notices.append(("world-size-unknown", text))
    devices = values.get("deviceProperties")
    listed = [each for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
    first = listed[0] if listed else {}
    base = values.get("baseTimeNanoseconds")
    return (
        Meta(
            address=address,
            rank=rank,
            world_size=world_size,
            backend=_text(info.get("backend")),
            device=_device(first),
            torch=_text(values.get("torch_version") or values.get("pytorch_version")),
            host=_text(values.get("host_name")) or host_from_name(address),
            nccl=_text(info.get("nccl_version")),
            base_ns=base if isinstance(base, int) and 0 <= base < BASE_LIMIT_NS else 0,
            groups=_groups(info.get("pg_config")),
            with_stack=bool(values.get("with_stack")),
            trace_id=_text(values.get("trace_id")),
            device_memory_bytes=_size(first.get("totalGlobalMem")),
            device_sms=_count(first.get("numSms")) or None,
            device_capability=_capability(first),
            devices=len(listed) or None,
        ),
        notices,
    )


def fitted(
    meta: Meta, notices: list[tuple[str, str]], described: Iterable[CommArgs]
) -> tuple[Meta, list[tuple[str, str]]]:
    """Return both without the rank if it is from the name and in none of the groups that are used."""
    if not any(kind == "rank-from-name" for kind, _ in notices):
        return meta, notices
    listed = [args.ranks for args in described if args.ranks]
    if not listed or any(meta.rank in ranks for ranks in listed):
        return meta, notices
    return replace(meta, rank=None), [notice for notice in notices if notice[0] != "rank-from-name"]


def has_device(values: Mapping[str, Any]) -> bool:
    """Whether the top-level values read so far show a device."""
    return bool(values.get("deviceProperties"))


def _device(properties: Mapping[str, Any]) -> str | None:
    """Return the device's name; one of MTIA is named after its chip alone, and reports a grid."""
    name = _text(properties.get("name"))
    if name is not None and "maxGridHeight" in properties and "totalGlobalMem" not in properties:
        return f"MTIA {name}"
    return name


def _size(value: Any) -> int | None:
    """Return a number of bytes that a device can have."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 < value < 2**50 else None


def _capability(properties: Mapping[str, Any]) -> str | None:
    major, minor = _count(properties.get("computeMajor")), _count(properties.get("computeMinor"))
    return None if major is None or minor is None else f"{major}.{minor}"


def _groups(config: Any) -> tuple[GroupInfo, ...]:
    groups = []
    for entry in config if isinstance(config, list) else ():
        if not isinstance(entry, dict):
            continue
        name = _text(entry.get("pg_name"))
        if name is None:
            continue
        listed = _ranks(entry.get("ranks"))
        groups.append(
            GroupInfo(
                name=name,
                ranks=listed,
                size=_count(entry.get("pg_size")) or (len(listed) or None),
                description=_text(entry.get("pg_desc")),
                backend=_text(entry.get("backend_config") or entry.get("backend")),
            )
        )
    return tuple(groups)


def _ranks(ranks: Any) -> tuple[int, ...]:
    """Return a list of different ranks; empty if it is none."""
    if not isinstance(ranks, list) or any(_count(rank) is None for rank in ranks):
        return ()
    return tuple(ranks) if len(set(ranks)) == len(ranks) else ()


def _text(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return None
    return mended(str(value)[:256])


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LISTED else None
