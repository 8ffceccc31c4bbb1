"""How fast and in how much memory a trace becomes figures, beside Holistic Trace Analysis 0.5.0.

Traces of 100 MB and 500 MB of JSON are made from a real one: its events are repeated as text, later and
later, with ids of their own. Each measurement is a fresh process that has imported what it needs: HTA
loads a trace and computes its overlap of communication and computation, we read it and work out the
rank's ledger, whose overlap is part of it. Added memory is the peak minus what was in use after the
imports. Then the whole way to a report, with and without the cache, and ranks by the dozen.

Needs the real traces: set SHARDTOLL_SHARED.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from harness import Result, main

AIMS: Final = {
    "faster_than_hta_100mb": 15.0,
    "faster_than_hta_500mb": 18.0,
    "memory_less_than_hta_100mb": 10.0,
    "memory_less_than_hta_500mb": 25.0,
    "first_report_100mb_s": 1.0,
    "cached_report_100mb_s": 0.3,
    "time_per_rank_64_over_8": 1.2,
}
"""Ratios over HTA are to be reached, the others not to be exceeded."""

SOURCE: Final = "hta_nccl_data_rank0of2.json.gz"
RANK_COUNTS: Final = (1, 8, 64)
_IDS: Final = re.compile(rb'("(?:External id|correlation|id)": ?)(\d+)')
_TS: Final = re.compile(rb'("ts": ?)(\d+)')
_ID_STEP: Final = 10_000_000

_BASELINE: Final = """
import json, os, sys, time
def spent():
    return sum(os.times()[:4])
def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024
def resident():
    return status("VmRSS")
def added(before):
    return status("VmHWM") - before
"""
"""Not ru_maxrss: a process inherits that from the one that started it."""

_HTA: Final = (
    _BASELINE
    + """
import warnings, logging
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
before, used, begun = resident(), spent(), time.perf_counter()
found = TraceAnalysis(trace_dir=sys.argv[1]).get_comm_comp_overlap(visualize=False)
took = time.perf_counter() - begun
cpu = spent() - used
print(json.dumps({"s": took, "cpu_s": cpu, "bytes": added(before), "overlap": str(found.iloc[0, 1])}))
"""
)

_OURS: Final = (
    _BASELINE
    + """
import pandas  # pyarrow imports it as soon as it is handed a numpy array, so it belongs to the imports
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.rank.rank import rank_ledger
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import find
(file,) = find([sys.argv[1]])
table = load_table()
before, used, begun = resident(), spent(), time.perf_counter()
trace = read_trace(file)
read = time.perf_counter() - begun
ledger = rank_ledger(trace, table)
took = time.perf_counter() - begun
cpu, steps = spent() - used, ledger.tables["steps"].num_rows
print(json.dumps({"s": took, "cpu_s": cpu, "read_s": read, "bytes": added(before), "steps": steps}))
"""
)

_REPORT: Final = (
    _BASELINE
    + """
from shardtoll.analyzers import run
from shardtoll.profiler.traces.job.job import read_traces
used, begun = spent(), time.perf_counter()
(job,) = read_traces([sys.argv[1]], jobs=int(sys.argv[2]))
read = time.perf_counter() - begun
report = run(job.ledger)
took = time.perf_counter() - begun
print(json.dumps({"s": took, "cpu_s": spent() - used, "read_s": read, "ranks": len(job.files)}))
"""
)


def make(source: Path, target: Path, size_bytes: int) -> None:
    """Write a trace of about that size: the events of `source` again and again, later, with other ids."""
    text = gzip.decompress(source.read_bytes())
    first = text.index(b"[", text.index(b'"traceEvents"')) + 1
    last = first + _length_of_events(text[first:])
    body = text[first:last]
    stamps = [int(found[2]) for found in _TS.finditer(body)]
    span_us = max(stamps) - min(stamps) + 1000
    with target.open("wb") as out:
        out.write(text[:first])
        turn = 0
        while turn == 0 or out.tell() < size_bytes:
            out.write(b"," if turn else b"")
            out.write(_shifted(body, turn * span_us, turn * _ID_STEP))
            turn += 1
        out.write(text[last:])


def _length_of_events(text: bytes) -> int:
    """Return where the list of events ends in text that begins after its bracket."""
    listed = "[" + text.decode("utf-8", "surrogateescape")
    _, end = json.JSONDecoder().raw_decode(listed)
    return len(listed[1 : end - 1].encode("utf-8", "surrogateescape"))


def _shifted(body: bytes, by_us: int, by_id: int) -> bytes:
    if not by_us:
        return body
    later = _TS.sub(lambda found: found[1] + b"%d" % (int(found[2]) + by_us), body)
    return _IDS.sub(lambda found: found[1] + b"%d" % (int(found[2]) + by_id), later)


def _run(script: str, *arguments: str, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def beside_hta(trace: Path, label: str, repeats: int) -> dict[str, float | None]:
    """Measure HTA and ourselves in turn on one trace; HTA once on the large one, it takes minutes."""
    folder = trace.parent / f"hta {label}"
    folder.mkdir()
    (folder / "rank0.json").symlink_to(trace)
    rounds = [
        (_run(_HTA, str(folder)) if turn == 0 or repeats > 1 else None, _run(_OURS, str(trace)))
        for turn in range(repeats)
    ]
    theirs = [hta for hta, _ in rounds if hta is not None]
    ours = [own for _, own in rounds]
    figures: dict[str, float | None] = {}
    medians: dict[str, float] = {}
    for name, runs in (("hta", theirs), ("shardtoll", ours)):
        medians[f"{name} s"] = statistics.median(run["s"] for run in runs)
        medians[f"{name} bytes"] = statistics.median(run["bytes"] for run in runs)
        medians[f"{name} cpu s"] = statistics.median(run["cpu_s"] for run in runs)
        figures[f"{name}_{label}_s"] = medians[f"{name} s"]
        figures[f"{name}_{label}_cpu_s"] = medians[f"{name} cpu s"]
        figures[f"{name}_{label}_added_bytes"] = medians[f"{name} bytes"]
    figures[f"shardtoll_{label}_read_only_s"] = statistics.median(run["read_s"] for run in ours)
    faster = medians["hta s"] / medians["shardtoll s"]
    # Processor time too: other work on the machine does not distort it.
    figures[f"faster_than_hta_{label}_cpu"] = medians["hta cpu s"] / medians["shardtoll cpu s"]
    smaller = medians["hta bytes"] / medians["shardtoll bytes"]
    figures[f"faster_than_hta_{label}"] = faster
    figures[f"memory_less_than_hta_{label}"] = smaller
    for name in ("hta", "shardtoll"):
        print(f"{label}: {name} {medians[f'{name} s']:.2f} s, {medians[f'{name} bytes'] / 1e6:.0f} MB added")
    print(f"{label}: in processor time {figures[f'faster_than_hta_{label}_cpu']:.1f} times faster")
    print(f"{label}: {faster:.1f} times faster, {smaller:.1f} times less memory")
    return figures


def reports(trace: Path, repeats: int) -> dict[str, float | None]:
    """Time from a path to a report, first without and then with results in the cache, on one core."""
    first, again = [], []
    cpu: list[float] = []
    for turn in range(repeats):
        cache = str(trace.parent / f"cache {turn}")
        made = _run(_REPORT, str(trace), "1", SHARDTOLL_CACHE=cache)
        first.append(made["s"])
        cpu.append(made["cpu_s"])
        again.append(_run(_REPORT, str(trace), "1", SHARDTOLL_CACHE=cache)["s"])
    figures: dict[str, float | None] = {
        "first_report_100mb_s": statistics.median(first),
        "first_report_100mb_cpu_s": statistics.median(cpu),
        "cached_report_100mb_s": statistics.median(again),
    }
    print(
        f"report of one 100 MB rank: {figures['first_report_100mb_s']:.2f} s, "
        f"cached {figures['cached_report_100mb_s']:.2f} s"
    )
    return figures


def many_ranks(source: Path, folder: Path, repeats: int) -> dict[str, float | None]:
    """Time per rank of jobs of 1, 8 and 64 ranks of about 10 MB each, on all cores."""
    figures: dict[str, float | None] = {}
    text = gzip.decompress(source.read_bytes())
    for count in RANK_COUNTS:
        place = folder / f"{count} ranks"
        place.mkdir()
        for rank in range(count):
            (place / f"rank{rank}.json").write_bytes(_as_rank(text, rank, count))
        taken = []
        for turn in range(repeats):
            cache = str(folder / f"cache {count} {turn}")
            found = _run(_REPORT, str(place), str(os.cpu_count() or 1), SHARDTOLL_CACHE=cache)
            assert found["ranks"] == count
            taken.append((found["s"], found["read_s"], found["cpu_s"]))
            shutil.rmtree(cache, ignore_errors=True)
        shutil.rmtree(place)
        whole, read, cpu = (statistics.median(times) for times in zip(*taken, strict=True))
        figures[f"ranks_{count}_s"] = whole
        figures[f"ranks_{count}_read_s"] = read
        figures[f"ranks_{count}_cpu_s"] = cpu
        figures[f"ranks_{count}_read_per_rank_s"] = read / count
        print(f"{count} ranks: {whole:.2f} s, {read:.2f} s of it reading ({read / count:.3f} s each)")
    per_rank = figures["ranks_8_read_per_rank_s"] or 1
    figures["time_per_rank_64_over_8"] = (figures["ranks_64_read_per_rank_s"] or 0) / per_rank
    cpu_per_rank = (figures["ranks_8_cpu_s"] or 1) / 8
    figures["cpu_per_rank_64_over_8"] = (figures["ranks_64_cpu_s"] or 0) / 64 / cpu_per_rank
    return figures


def _as_rank(text: bytes, rank: int, count: int) -> bytes:
    """Return a trace as another rank of a larger job would have written it."""
    ranks = b"[" + b", ".join(b"%d" % one for one in range(count)) + b"]"
    for pattern, put in (
        (rb'"rank": ?0, ?"world_size": ?2', b'"rank": %d, "world_size": %d' % (rank, count)),
        (rb'"pg_size": ?2, ?"ranks": ?\[0, ?1\]', b'"pg_size": %d, "ranks": %s' % (count, ranks)),
        (rb'"Process Group Ranks": ?"\[0, ?1\]"', b'"Process Group Ranks": "%s"' % ranks),
        (rb'"Group size": ?2\b', b'"Group size": %d' % count),
    ):
        text = re.sub(pattern, put, text)
    return text


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3, help="runs of each measurement")
    parser.add_argument(
        "--skip-500", action="store_true", help="leave out the 500 MB trace (HTA takes minutes)"
    )


def measure(chosen: argparse.Namespace) -> Result:
    """Make the traces, measure, and say what came out."""
    shared = Path(os.environ.get("SHARDTOLL_SHARED", str(Path(__file__).resolve().parents[2] / "shared")))
    source = shared / "traces" / SOURCE
    if not source.exists():
        raise SystemExit(f"no {source}: set SHARDTOLL_SHARED to the folder that holds traces/{SOURCE}")
    figures: dict[str, float | None] = dict.fromkeys(AIMS)
    with tempfile.TemporaryDirectory(prefix="shardtoll-bench-") as name:
        folder = Path(name)
        small = folder / "rank0.json"
        make(source, small, 100_000_000)
        figures |= beside_hta(small, "100mb", chosen.repeats)
        figures |= reports(small, chosen.repeats)
        small.unlink()
        figures |= many_ranks(source, folder, chosen.repeats)
        if not chosen.skip_500:
            large = folder / "rank0 large.json"
            make(source, large, 500_000_000)
            figures |= beside_hta(large, "500mb", 1)
    return Result(figures, AIMS)


if __name__ == "__main__":
    main(measure, about=__doc__, options=_options)
