"""An export's facts about its job: rank, host, clock and devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardtoll.ledger.records.record import MOST_RANKS
from shardtoll.profiler.traces.file.columns import BASE_LIMIT_NS
from shardtoll.profiler.traces.file.event import mended
from shardtoll.profiler.traces.file.meta import names_rank, rank_from_name
from shardtoll.profiler.traces.nsys.database import Database

_SIZE_OF: Final = {
    "RANK": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK": "WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "MV2_COMM_WORLD_RANK": "MV2_COMM_WORLD_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}
"""Variable with the rank -> variable with the number of ranks; torch's own first."""
_WANTED: Final = frozenset((*_SIZE_OF, *_SIZE_OF.values()))
_VARIABLE: Final = re.compile(
    rf"(?:^|[\s;,\0\"'])({'|'.join(sorted(_WANTED))})[\"']?\s*[=:]\s*[\"']?(\d{{1,9}})(?!\d)"
)
"""Only these variables are looked at: the environment holds secrets."""
_MOST_ROWS: Final = 10_000
Notice = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device; None if the version does not say."""

    name: str | None = None
    memory_bytes: int | None = None
    sms: int | None = None
    capability: str | None = None


def session_start_ns(database: Database) -> int | None:
    """Return when the session began, in ns since 1970; None if the file does not say."""
    for chunk in database.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",), most=1):
        value = chunk[0][0]
        if isinstance(value, int) and 0 < value < BASE_LIMIT_NS:
            return value
    return None


def environment(database: Database) -> tuple[str | None, dict[str, int]]:
    """Return the host's name, and the variables of the environment that hold rank and world size."""
    host: str | None = None
    variables: dict[str, int] = {}
    for chunk in database.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"), most=_MOST_ROWS):
        for name, value in chunk:
            if not isinstance(name, str) or not isinstance(value, str | int):
                continue
            text = str(value)
            if name.lower() == "hostname" and text:
                host = host or mended(text[:256])
            said = f"{name}={text}" if name in _WANTED else text
            for variable, number in _VARIABLE.findall(said):
                variables.setdefault(variable, int(number))
    return host, variables


def stated_rank(variables: Mapping[str, int]) -> int | None:
    """Return the rank in the environment; a launcher's own variables count less than torch's."""
    return next((variables[name] for name in _SIZE_OF if variables.get(name, MOST_RANKS) < MOST_RANKS), None)


def world_size(variables: Mapping[str, int]) -> int | None:
    """Return the job's size by the variable that belongs to that of the rank."""
    name = next((name for name in _SIZE_OF if variables.get(name, MOST_RANKS) < MOST_RANKS), None)
    size = None if name is None else variables.get(_SIZE_OF[name])
    return size if size is not None and 0 < size <= MOST_RANKS else None


def mpi_ranks(database: Database) -> dict[int, int]:
    """Return the rank of each process that Nsight Systems got from MPI, by its global thread ids."""
    rows = (
        row for chunk in database.rows("MPI_RANKS", ("globalTid", "rank"), most=_MOST_ROWS) for row in chunk
    )
    return {
        thread: rank
        for thread, rank in rows
        if isinstance(thread, int) and isinstance(rank, int) and 0 <= rank < MOST_RANKS
    }


def gpus(database: Database) -> dict[int, Gpu]:
    """Return the devices of the machine by number, in the order of the file."""
    columns = ("id", "name", "totalMemory", "smCount", "computeMajor", "computeMinor")
    made: dict[int, Gpu] = {}
    for chunk in database.rows("TARGET_INFO_GPU", columns, most=_MOST_ROWS):
        for number, name, memory, sms, major, minor in chunk:
            measured = all(isinstance(each, int) and 0 < each + 1 < 1000 for each in (major, minor))
            made.setdefault(
                number if isinstance(number, int) else len(made),
                Gpu(
                    mended(name[:256]) if isinstance(name, str) and name else None,
                    _within(memory, 2**50),
                    _within(sms, 1_000_000),
                    f"{major}.{minor}" if measured and major > 0 else None,
                ),
            )
    return made


def gpu_of(database: Database, devices: Mapping[int, Gpu], device: int, pid: str) -> Gpu:
    """Return what is known of the device that a process calls by a number."""
    columns = ("gpuId", "cudaId", "pid")
    for chunk in database.rows("TARGET_INFO_CUDA_DEVICE", columns, most=_MOST_ROWS):
        for number, cuda, owner in chunk:
            if cuda == device and str(owner) == pid and number in devices:
                return devices[number]
    return devices.get(device) or next(iter(devices.values()), Gpu())


def rank_of(
    address: str, variables: Mapping[str, int], mpi: int | None, place: tuple[int, int] | None
) -> tuple[int | None, list[Notice]]:
    """Return the rank of a file of one process, and notices on where it is from.

    `place`: (rank, size) in the largest communicator. It is the job's rank only if that holds all ranks,
    so a name that says `rank3` counts more.
    """
    stated = stated_rank(variables)
    if stated is not None or mpi is not None:
        return (stated if stated is not None else mpi), []
    named = rank_from_name(address)
    if place is None or (named is not None and named != place[0] and names_rank(address)):
        if named is None:
            return None, []
        return named, [
            ("rank-from-name", f"rank {named} is from the name of {address}; the file does not say")
        ]
    return place[0], []


def _within(value: Any, limit: int) -> int | None:
    return value if isinstance(value, int) and 0 < value < limit else None
