"""One file to the ranks that it is about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from shardtoll.ledger.disk.flight_file import OTHER_VERSION_HINT, OtherVersion, parse_flight
from shardtoll.ledger.disk.flight_layout import MAGIC
from shardtoll.ledger.foreign.regular import read_regular
from shardtoll.ledger.records.errors import UsageError, first_line
from shardtoll.ledger.records.flight import RankFlight
from shardtoll.profiler.hang.recorder_dump import flights_of_dump, parse_dump
from shardtoll.profiler.hang.torch_log import flights_of_log

MOST_BYTES: Final = 256_000_000
_NAMES: Final = re.compile(
    r"(^recorder\.rank\d+\.pickle|(nccl|fr|flight)_?trace\w*|.*\.(pickle|pkl|log|out|err)|stderr\.txt|stdout\.txt)$"
)


def looks_like(path: Path) -> bool:
    """Whether a file of a folder may be a dump of a flight recorder, or a log."""
    return bool(_NAMES.search(path.name))


def read_file(path: Path) -> list[RankFlight]:
    """Return the ranks that a file is about; UsageError if it cannot be read or names none."""
    try:
        data = read_regular(path, MOST_BYTES)
        if data.startswith(MAGIC):
            return [parse_flight(data, str(path))]
        if data[:1] == b"\x80" or data.lstrip()[:1] == b"{":
            return flights_of_dump(parse_dump(data), path)
        flights = flights_of_log(data.decode("utf-8", "replace"), str(path))
    except OtherVersion as error:
        raise UsageError(f"{path} {error}", OTHER_VERSION_HINT) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} cannot be read ({first_line(error)})",
            "give a run folder, a flight recorder dump or a log with torch's timeouts",
        ) from error
    if not flights:
        raise UsageError(f"{path} has no timeout of torch's", "give the log of the job that hung")
    return flights
