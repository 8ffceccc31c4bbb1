"""One child: tries the inputs of one seam one after the other, and says after each how far it is.

Faults that Python sees are noted and the next input is tried. What ends the child, or never ends, its parent
sees from `Place`, a small file that both have mapped.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import mmap
import os
import random
import resource
import struct
import sys
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

MOST_BYTES: Final = 1 << 30
"""Memory that one input may take, beyond what the child had before."""
LONGEST_S: Final = 30.0
"""CPU seconds that one input may take."""
_MOST_FAULTS: Final = 200
_SAVE_S: Final = 2.0
_PLACE: Final = struct.Struct("<qd")


class Place:
    """Which input is tried, and when its child began it on the monotonic clock."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_PLACE.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _PLACE.size)

    def write(self, index: int) -> None:
        """Say that this input begins."""
        _PLACE.pack_into(self._map, 0, index, time.monotonic())

    def read(self) -> tuple[int, float]:
        """Return the input's number and when it began; -1 before the first."""
        return _PLACE.unpack_from(self._map, 0)


@dataclass(slots=True)
class Tally:
    """What was tried, and the worst of it."""

    inputs: int = 0
    refused: int = 0
    """Refused in one line; all others were read to the end."""
    slowest_s: float = 0.0
    """CPU seconds of the slowest input, and its number."""
    slowest: int = -1
    most_bytes: int = 0
    """Memory that the largest input took beyond its child's own, and its number."""
    largest: int = -1
    faults: list[dict[str, Any]] = field(default_factory=list)
    """What escaped or did not hold: number, kind and words of each."""

    def fault(self, index: int, kind: str, words: str) -> None:
        """Note a fault."""
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append({"input": index, "kind": kind, "words": words[-1_500:]})

    def add(self, other: Tally) -> None:
        """Take in what another child tried."""
        self.inputs += other.inputs
        self.refused += other.refused
        if other.slowest_s > self.slowest_s:
            self.slowest_s, self.slowest = other.slowest_s, other.slowest
        if other.most_bytes > self.most_bytes:
            self.most_bytes, self.largest = other.most_bytes, other.largest
        for fault in other.faults:
            self.fault(fault["input"], fault["kind"], fault["words"])


def save(tally: Tally, path: Path) -> None:
    """Write the tally so that a reader sees the old one or the new one."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(tally)))
    os.replace(part, path)


def load(path: Path) -> Tally:
    """Return a tally that a child wrote; an empty one if it wrote none."""
    return Tally(**json.loads(path.read_text())) if path.exists() else Tally()


def _status(key: str) -> int:
    """Return a size of this process in bytes, by its name in /proc/self/status."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next((int(line.split()[1]) << 10 for line in status if line.startswith(key)), 0)


def _forget_peak() -> None:
    """Have the peak of memory begin anew from here."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
        peak.write("5")


def chance_of(seed: str, seam: str, index: int) -> random.Random:
    """Return what makes one input."""
    return random.Random(f"{seed} {seam} {index}")


def work(name: str, seed: str, first: int, count: int, seconds: float, folder: Path) -> None:
    """Try `count` inputs of a seam from number `first` on, or as many as fit into the seconds."""
    from tests.fuzz.seams import refused, seam_of

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    attack, place, tally = seam_of(name).attack(), Place(folder / "place"), Tally()
    files = folder / "files"
    files.mkdir(exist_ok=True)
    with contextlib.suppress(Exception):
        # What is imported at the first input is no cost of it.
        refused(attack, chance_of(seed, name, first), files)
    gc.collect()
    gc.freeze()
    limit = _status("VmSize") + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    began = saved = time.monotonic()
    for index in range(first, first + count):
        place.write(index)
        _forget_peak()
        before_bytes, before_s = _status("VmRSS"), time.process_time()
        try:
            tally.refused += refused(attack, chance_of(seed, name, index), files)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever escapes is what is looked for
            tally.fault(index, type(error).__name__, traceback.format_exc())
            saved = 0.0
        took_s, took_bytes = time.process_time() - before_s, _status("VmHWM") - before_bytes
        tally.inputs += 1
        if took_s > tally.slowest_s:
            tally.slowest_s, tally.slowest = took_s, index
        if took_bytes > tally.most_bytes:
            tally.most_bytes, tally.largest = took_bytes, index
        if took_s > LONGEST_S:
            tally.fault(index, "hang", f"{took_s:.1f} s of CPU")
        now = time.monotonic()
        if now - saved > _SAVE_S:
            save(tally, folder / "tally.json")
            saved = now
        if now - began > seconds:
            break
    place.write(-2)
    save(tally, folder / "tally.json")


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), Path(sys.argv[6]))
    sys.stdout.flush()
    os._exit(0)
