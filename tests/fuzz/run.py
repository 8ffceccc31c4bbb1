"""The parent: gives the seams their turns, ends what hangs, and adds up what the children found."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.fuzz.child import LONGEST_S, MOST_BYTES, Place, Tally, load
from tests.fuzz.seams import SEAMS

ROOT: Final = Path(__file__).resolve().parents[2]
_POLL_S: Final = 0.2
_WALL_S: Final = 10 * LONGEST_S
"""An input that sleeps or waits takes no CPU: it hangs after this long by the clock."""
_STARTING_S: Final = 300.0
_ENVIRONMENT: Final = {
    # Arrow's own pool reserves a GB of addresses at once; threads reserve their stacks and arenas.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
}


@dataclass(slots=True)
class SeamResult:
    """All that was tried of one seam."""

    tally: Tally = field(default_factory=Tally)
    crashes: int = 0
    hangs: int = 0
    seconds: float = 0.0
    next_input: int = 0


def turn(
    seam: str,
    seed: str,
    result: SeamResult,
    count: int,
    seconds: float,
    folder: Path,
    *,
    wall_s: float = _WALL_S,
) -> None:
    """Give a seam one child, and add what it found. An input may take `wall_s` seconds by the clock."""
    place_file, tally_file = folder / "place", folder / "tally.json"
    for file in (place_file, tally_file):
        file.unlink(missing_ok=True)
    place = Place(place_file)
    place.write(-1)
    first, began = result.next_input, time.monotonic()
    said = folder / "said.txt"
    with said.open("wb") as out:
        command = [sys.executable, "-m", "tests.fuzz.child", seam, seed, str(first), str(count), str(seconds)]
        environment = {**os.environ, **_ENVIRONMENT}
        child = subprocess.Popen(
            [*command, str(folder)], cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    hung = _watch(child, place, wall_s)
    tally = load(tally_file)
    index, _ = place.read()
    done = index == -2 and child.returncode == 0
    last = said.read_text(errors="replace")[-1_500:]
    if not done:
        # Those since the last save were tried too.
        tally.inputs = max(tally.inputs, index - first + 1 if index >= 0 else 0)
        kind = "hang" if hung else "crash"
        tally.fault(index, kind, f"child ended with {child.returncode}: {last}")
        result.hangs += hung
        result.crashes += not hung
    result.next_input = first + tally.inputs if index < 0 else index + 1
    result.hangs += sum(fault["kind"] == "hang" for fault in tally.faults) if done else 0
    result.tally.add(tally)
    result.seconds += time.monotonic() - began


def _watch(child: subprocess.Popen[bytes], place: Place, wall_s: float) -> bool:
    """Wait for the child; end it, and return True, if one input takes too long."""
    seen, cpu_then = -1, 0.0
    started = time.monotonic()
    while child.poll() is None:
        time.sleep(_POLL_S)
        index, began = place.read()
        if index == -2:
            began = time.monotonic() if seen != -2 else began
        if index != seen:
            seen, cpu_then = index, _cpu_s(child.pid)
            continue
        waited_s = time.monotonic() - (began if index >= 0 else started)
        limit_s = wall_s if index >= 0 else _STARTING_S
        if waited_s > limit_s or (index >= 0 and _cpu_s(child.pid) - cpu_then > 1.2 * LONGEST_S):
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return True
    return False


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(
    seed: str,
    *,
    inputs: int,
    seconds: float,
    turn_s: float,
    only: Sequence[str] = (),
    told: Callable[[str], None] = lambda _: None,
    save: Path | None = None,
) -> dict[str, SeamResult]:
    """Try about `inputs` inputs over the seams, or as many as fit into `seconds`.

    The seam with the least time so far is next, for a turn of `turn_s` seconds. A seam is given up after 50
    crashes and hangs: those say enough.
    """
    names = [seam.name for seam in SEAMS if not only or seam.name in only]
    results = {name: SeamResult() for name in names}
    deadline = time.monotonic() + seconds
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="shardtoll-fuzz-", dir=memory) as folder:
        while time.monotonic() < deadline:
            left = inputs - sum(result.tally.inputs for result in results.values())
            able = [name for name in names if results[name].crashes + results[name].hangs < 50]
            if left <= 0 or not able:
                break
            name = min(able, key=lambda each: results[each].seconds)
            span_s = min(turn_s, max(0.5, deadline - time.monotonic()))
            turn(name, seed, results[name], left, span_s, Path(folder))
            told(line(name, results[name]))
            if save is not None:
                save.parent.mkdir(parents=True, exist_ok=True)
                save.write_text(json.dumps(sheet(seed, results), indent=1) + "\n")
    return results


def line(name: str, result: SeamResult) -> str:
    """Return one seam's figures in words."""
    tally = result.tally
    escaped = sum(fault["kind"] not in ("crash", "hang") for fault in tally.faults)
    return (
        f"{name:<11} {tally.inputs:>9,} inputs  {tally.refused:>9,} refused  {result.crashes} crashes  "
        f"{result.hangs} hangs  {escaped} other faults  slowest {tally.slowest_s:.2f} s "
        f"(input {tally.slowest})  most {tally.most_bytes / 1e6:,.0f} MB (input {tally.largest})"
    )


def sheet(seed: str, results: dict[str, SeamResult]) -> dict[str, Any]:
    """Return the figures of a run as JSON values."""
    tallies = [result.tally for result in results.values()]
    return {
        "what": "mutated inputs through every seam that reads what others wrote",
        "seed": seed,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{os.cpu_count()} cores of {_processor()}, Python {platform.python_version()}",
        "limits": {"cpu_s_per_input": LONGEST_S, "bytes_per_input": MOST_BYTES},
        "inputs": sum(tally.inputs for tally in tallies),
        "refused": sum(tally.refused for tally in tallies),
        "crashes": sum(result.crashes for result in results.values()),
        "hangs": sum(result.hangs for result in results.values()),
        "faults": sum(len(tally.faults) for tally in tallies),
        "slowest_s": max((tally.slowest_s for tally in tallies), default=0.0),
        "most_bytes": max((tally.most_bytes for tally in tallies), default=0),
        "seams": {
            name: {
                **asdict(result.tally),
                "crashes": result.crashes,
                "hangs": result.hangs,
                "seconds": result.seconds,
            }
            for name, result in results.items()
        },
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (each.partition(":")[2].strip() for each in lines if each.startswith("model name")), "unknown"
    )
