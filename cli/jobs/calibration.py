"""Measured times as a fabric: of a job of ranks on this machine, of its points, or of nccl-tests' files."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shardtoll.analyzers.roofline import UNKNOWN, Fabric, Quantity, calibrated, choose_fabric, load_fabric
from shardtoll.analyzers.roofline.machines.curve import Curve
from shardtoll.cli.jobs.ranks import RunsJobs, run_job
from shardtoll.ledger import Run, UsageError
from shardtoll.ledger.measured.measured import Timings

MOST_BYTES: Final = 64 << 20
"""Size of one file that is read here."""
_POLL_S: Final = 0.2
_FIELDS: Final = ("op", "ranks", "nodes", "sharing", "source", "times_ns")

Told = Callable[[Mapping[str, Any]], None]
"""Gets a calibration's progress after each round."""


def measure_fabric(
    ranks: int,
    *,
    seconds: float,
    folder: Path,
    limit_s: float,
    options: Sequence[str] = (),
    on_round: Told | None = None,
    run: RunsJobs = run_job,
) -> Fabric:
    """Return the fabric of `ranks` gloo processes on this machine; points and output stay in `folder`.

    `run` runs the job. Measures for about `seconds` after its start. Raises JobError when a rank fails.
    """
    points_file, progress = folder / "calibration.json", folder / "calibration.progress"
    done = threading.Event()
    watcher = threading.Thread(target=_follow, args=(progress, done, on_round), daemon=True)
    arguments = ["-o", str(points_file), "--limit-s", str(seconds), *options]
    if on_round is not None:
        watcher.start()
        arguments += ["--progress", str(progress)]
    try:
        run(
            "shardtoll.profiler.calibrate",
            arguments,
            ranks=ranks,
            limit_s=limit_s,
            log=folder / "calibration.log",
        )
    finally:
        done.set()
        if on_round is not None:
            watcher.join()
        progress.unlink(missing_ok=True)
    return fabric_of_points(points_file, load_fabric("loopback-gloo"))


def fabric_of_points(path: Path, base: Fabric | None) -> Fabric:
    """Return the fabric of the points that `shardtoll.profiler.calibrate -o points.json` wrote.

    Its links are those of `base`, without one those of the fabric that fits the job. Raises UsageError
    for a file that is none.
    """
    hint = "give the file that shardtoll.profiler.calibrate -o points.json wrote"
    try:
        data = json.loads(read_text(path))
        facts, provenance = dict(data["facts"]), str(data["provenance"])
        timings = [_timings(timing) for timing in data["timings"]]
        device, backend = str(facts["device"]), str(facts["backend"])
        hosts, world = tuple(str(host) for host in facts["hosts"]), int(facts["world_size"])
        base = base or _fitting(device, backend, hosts, world)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} holds no points of a calibration ({str(error)[:60]})", hint) from error
    if not timings:
        raise UsageError(f"{path} holds no points", hint)
    made = replace(calibrated(base, timings, provenance), hosts=hosts)
    return _named(made, f"{backend} between {world} ranks, measured")


def _timings(data: Any) -> Timings:
    if set(data) != set(_FIELDS):
        raise ValueError(f"a timing has {', '.join(_FIELDS)}")
    times: dict[int, list[int]] = {}
    for size, samples in data["times_ns"].items():
        if not all(type(sample) is int and 0 < sample < 1 << 62 for sample in samples):
            raise ValueError("a time is no whole number of ns")
        times[int(size)] = samples
    numbers = (data["ranks"], data["nodes"], data["sharing"])
    if not all(type(number) is int for number in numbers):
        raise ValueError("ranks, nodes and sharing are whole numbers")
    return Timings(str(data["op"]), numbers[0], numbers[1], times, str(data["source"]), numbers[2])


def fabric_of_nccl_tests(
    paths: Iterable[Path],
    base: Fabric | None,
    *,
    op: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
) -> tuple[Fabric, tuple[str, ...]]:
    """Return the fabric that files of nccl-tests show, and the parts that were left out, one line each.

    Its links are those of `base`, without one those of the fabric that fits the device they name. Raises
    TraceError as `read_nccl_tests`, UsageError for a file that cannot be read.
    """
    from shardtoll.profiler.calibrate.nccl_tests import read_nccl_tests

    timings: list[Timings] = []
    notes: list[str] = []
    device, hosts, most, times, sizes = None, dict[str, None](), 0, 0, 0
    names = []
    for path in paths:
        read = read_nccl_tests(
            read_text(path), path.name, file_name=path.name, op=op, ranks=ranks, nodes=nodes
        )
        timings += read.timings
        notes += read.notes
        device, most = device or read.device, max(most, read.ranks)
        hosts.update(dict.fromkeys(read.hosts))
        names.append(path.name)
        sizes += sum(len(timing.times_ns) for timing in read.timings)
        times += sum(len(each) for timing in read.timings for each in timing.times_ns.values())
    if base is None:
        base = _fitting(device or "unknown", "nccl", tuple(hosts), most)
    if base.ranks_per_node is None and hosts and most % len(hosts) == 0:
        counted = Quantity(float(most // len(hosts)), f"the Rank lines of {names[0]}", "measured")
        base = replace(base, ranks_per_node=counted)
    files = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    where = f" on {device}" if device else ""
    provenance = f"measured by nccl-tests{where}: {_count(sizes, 'size')}, {_count(times, 'time')} in {files}"
    made = replace(calibrated(base, timings, provenance), hosts=tuple(hosts))
    return _named(made, f"{device or 'nccl-tests'}, {most} ranks, measured"), tuple(notes)


def medians(fabric: Fabric) -> str:
    """Return in words how much the fabric has measured."""
    curves = own_curves(fabric)
    points = sum(len(curve.points) for curve in curves)
    return f"{_count(points, 'median')} in {_count(len(curves), 'curve')}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def own_curves(fabric: Fabric) -> tuple[Curve, ...]:
    """Return the fabric's curves but the receives whose times are those of their messages' sends."""
    return tuple(
        curve
        for curve in fabric.curves
        if curve.op != "recv" or not any(_is_its_send(curve, other) for other in fabric.curves)
    )


def _is_its_send(recv: Curve, other: Curve) -> bool:
    received, sent = ((each.ranks, each.nodes, each.sharing, each.points) for each in (recv, other))
    return other.op == "send" and received == sent


def read_text(path: Path) -> str:
    """Return a file's text, whatever is not UTF-8 replaced; UsageError if it cannot be read or is huge."""
    from shardtoll.ledger.foreign.regular import read_regular

    try:
        data = read_regular(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read ({why})", "give the tests' output alone") from error
    return data.decode("utf-8", errors="replace")


def _fitting(device: str, backend: str, hosts: tuple[str, ...], world: int) -> Fabric:
    """Return the fabric whose links serve for unmeasured links; one without links if none fits."""
    per_host = world // len(hosts) if hosts and world % len(hosts) == 0 else None
    run = Run(
        world_size=max(world, 1),
        backend=backend,
        device=device,
        torch=None,
        hosts=hosts,
        mesh={},
        source="trace",
        ranks_seen=tuple(range(max(world, 1))),
        ranks_per_host=per_host,
    )
    fitting = choose_fabric(run)
    return replace(fitting, name="measured") if fitting.name == UNKNOWN.name else fitting


def _named(fabric: Fabric, title: str) -> Fabric:
    return replace(fabric, title=title)


def _follow(progress: Path, done: threading.Event, on_round: Told | None) -> None:
    read = 0
    while not done.wait(_POLL_S):
        if on_round is None or not progress.exists():
            continue
        lines = progress.read_text(encoding="utf-8").splitlines()
        if len(lines) > read:
            read = len(lines)
            try:
                on_round(json.loads(lines[-1]))
            except ValueError:
                read -= 1  # the last line is still being written
