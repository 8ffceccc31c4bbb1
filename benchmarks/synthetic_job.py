"""Writes the Kineto traces of a made-up job of any size into OUT, and what is true of it into OUT.truth.json.

With `--format sqlite` the same job as Nsight Systems exports it.

Every rank is simulated: a host thread that launches ahead of a device with several streams. A collective
starts on a rank when it was launched and its stream is free, and ends on all ranks together: when the last
one has arrived and the bytes are through. So exposed time, waits, late ranks, clocks and idle time are
known without any analysis. The same arguments write the same files.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from dataclasses import MISSING, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

from synthetic.nsys import Export, NsysSink
from synthetic.pipeline import groups_of
from synthetic.programs import train
from synthetic.rank import Arrival, Program, Rank
from synthetic.spec import CAUSES, FORMATS, LAYOUTS, SCHEMAS, STRATEGIES, TRANSPORTS, Spec
from synthetic.truth import Key, Meeting, account, clocks, collective, plain
from synthetic.words import Call, distributed_info
from synthetic.write import Sink

HELD_BYTES: Final = 128 << 20
"""Text that waits to be written, all ranks together."""


def simulate(ranks: list[Rank]) -> dict[Key, Meeting]:
    """Run all ranks to their end and return their collectives in order of completion."""
    meetings: dict[Key, Meeting] = {}
    programs: list[Program] = [train(rank) for rank in ranks]
    waiting: dict[Key, list[int]] = {}
    ready: list[tuple[int, int | None]] = [(rank, None) for rank in range(len(ranks))]
    while ready:
        rank, end = ready.pop()
        try:
            arrival = next(programs[rank]) if end is None else programs[rank].send(end)
        except StopIteration:
            continue
        there = waiting.setdefault(arrival.key, [])
        there.append(rank)
        meeting = _meet(meetings, arrival, rank)
        if len(there) == len(arrival.ranks):
            meeting.end_ns = max(meeting.start_ns.values()) + meeting.transfer_ns
            ready += [(other, meeting.end_ns) for other in waiting.pop(arrival.key)]
    if waiting:
        raise RuntimeError(f"the programs of the ranks do not fit: {next(iter(waiting))} was never complete")
    return meetings


def _meet(meetings: dict[Key, Meeting], arrival: Arrival, rank: int) -> Meeting:
    call = arrival.call
    meeting = meetings.get(arrival.key)
    if meeting is None:
        dtype = {"Float": "float32", "BFloat16": "bfloat16"}[call.dtype]
        op = "send" if call.peer is not None else call.op
        meeting = Meeting(op, dtype, call.message_bytes, arrival.ranks, arrival.step, arrival.transfer_ns)
        meetings[arrival.key] = meeting
    meeting.start_ns[rank] = arrival.start_ns
    return meeting


_EXAMPLE = 3
"""The straggler where none is named, so that the example tells something."""


def write_job(folder: Path, spec: Spec) -> dict[str, Any]:
    """Write a job's traces into a folder, which is made, and the truth beside it; return the truth.

    The truth lies in `<folder>.truth.json` (`<folder>.<prefix>.truth.json` of a second job), times in
    true ns, so that the folder holds nothing but what a job would leave.
    """
    folder.mkdir(parents=True, exist_ok=True)
    windows = _windows(spec) if spec.trim else {}
    flush = max(64 << 10, min(4 << 20, HELD_BYTES // spec.ranks))
    ranks = []
    exports: dict[int, Export] = {}
    for rank in range(spec.ranks):
        path = None if rank in spec.missing else folder / f"{spec.prefix}{rank}.{spec.format}"
        sink = _sink(spec, rank, path, flush, exports)
        sink.window = windows.get(rank)
        ranks.append(Rank(spec, rank, sink))
        if path is not None:
            _open(spec, rank, sink)
    meetings = simulate(ranks)
    steps = []
    for simulated in ranks:
        steps += account(simulated.work, simulated.rank, meetings)
        if simulated.sink.path is not None:
            simulated.sink.instant("Record Window End", simulated.drained_ns)
            simulated.sink.end()
    for host, export in exports.items():
        export.write(folder / f"host{host}.sqlite")
    for rank, kind in spec.damage:
        _damage(folder / f"{spec.prefix}{rank}.{spec.format}", kind)
    truth = {
        "spec": plain(spec),
        "epoch_ns": spec.epoch_ns,
        "clocks": clocks(spec),
        "windows": {str(rank): window for rank, window in windows.items()},
        "steps": steps,
        "collectives": [
            collective(key, meeting) for key, meeting in meetings.items() if spec.transport == "device"
        ],
    }
    truth_path(folder, spec).write_text(json.dumps(truth), encoding="utf-8")
    return cast(dict[str, Any], json.loads(json.dumps(truth)))


def _sink(
    spec: Spec, rank: int, path: Path | None, flush: int, exports: dict[int, Export]
) -> Sink | NsysSink:
    """Return what takes the events of a rank; exports of a host are put into `exports`."""
    if spec.format != "sqlite":
        return Sink(spec, rank, path, flush)
    if not spec.one_file:
        return NsysSink(spec, rank, path)
    export = exports.setdefault(spec.host_of(rank), Export(old=spec.schema == "old"))
    return NsysSink(spec, rank, path, export)


def truth_path(folder: Path, spec: Spec) -> Path:
    """Return where the truth of a job in this folder lies."""
    second = "" if spec.prefix == "rank" else f".{spec.prefix}"
    return folder.with_name(f"{folder.name}{second}.truth.json")


def _open(spec: Spec, rank: int, sink: Sink | NsysSink) -> None:
    """Begin a rank's file: what the profiler says before the first event."""
    known = {"0": Call("all_reduce", "0", tuple(range(spec.ranks)), 0)}
    travelling = spec.strategy in ("pipeline", "chain")
    if travelling:
        known |= groups_of(spec, rank, str(1 + 10 * spec.port))
    first = "mesh_tp" if spec.strategy == "tp" else "extra_1"
    for number, description in ((1, first), (2, "extra_2")):
        if description.startswith("mesh") or (spec.serialized and not (travelling and number == 1)):
            name = str(number + 10 * spec.port)
            known[name] = Call("all_reduce", name, tuple(range(spec.ranks)), 0, description=description)
    if spec.port:
        known[str(10 * spec.port)] = replace(known.pop("0"), group=str(10 * spec.port))
    device = {
        "id": rank % 8,
        "name": "Tesla V100-SXM2-32GB" if spec.schema == "old" else "NVIDIA H100 80GB HBM3",
    }
    metadata: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [device],
        "distributedInfo": distributed_info(spec, rank, known),
        "record_shapes": 1,
        "with_stack": int(spec.stacks),
        "trace_id": f"{spec.seed:08X}{rank:024X}",
    }
    if (rank, "no-rank") in spec.damage:
        del metadata["distributedInfo"]
    if spec.schema == "seq":
        metadata["host_name"] = f"node{spec.host_of(rank)}"
    if spec.layout in ("compact", "torch213", "metadata-first") and spec.schema != "old":
        metadata |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": 1_767_189_312_000_000_000}
    sink.begin(metadata)
    sink.meta("process_name", sink.pid, {"name": "python3"})
    sink.meta("process_labels", rank % 8, {"labels": f"GPU {rank % 8}"})
    sink.instant("Iteration Start: PyTorch Profiler", spec.epoch_ns)


def _windows(spec: Spec) -> dict[int, tuple[int, int]]:
    """Return for each rank the part of the job its file shows; most collectives are in all."""
    ranks = [Rank(spec, rank, Sink(spec, rank, None)) for rank in range(spec.ranks)]
    ends = sorted(meeting.end_ns for meeting in simulate(ranks).values())
    most = max(len(ends) // 4, 1)
    return {
        rank: (ends[(rank * 5 + 1) % most] + 1, ends[len(ends) - 1 - (rank * 3) % most])
        for rank in range(spec.ranks)
    }


def _damage(path: Path, kind: str) -> None:
    """Spoil a file that was written; `no-rank` was left out on the way."""
    data = path.read_bytes()
    if kind == "cut":
        path.write_bytes(data[: len(data) * 2 // 3])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_bytes(b"this is no trace\n")
    elif kind in ("nan", "negative"):
        _respell(path, '"dur": NaN' if kind == "nan" else '"dur": -5.000')


def _respell(path: Path, duration: str) -> None:
    """Give every two-hundredth event of a gzip or plain file another duration."""
    import gzip
    import re

    packed = path.suffix == ".gz"
    text = gzip.decompress(path.read_bytes()).decode() if packed else path.read_text()
    count = iter(range(1, 1 << 60))
    text = re.sub(r'"dur": ?[\d.]+', lambda found: found.group() if next(count) % 200 else duration, text)
    path.write_bytes(gzip.compress(text.encode(), 1) if packed else text.encode())


def _said() -> dict[str, str]:
    """Return what the spec's source says of each knob below it."""
    source = Path(sys.modules[Spec.__module__].__file__ or "").read_text(encoding="utf-8")
    parsed = ast.parse(source).body
    (body,) = (node.body for node in parsed if isinstance(node, ast.ClassDef))
    said = {}
    for knob, text in pairwise(body):
        if isinstance(knob, ast.AnnAssign) and isinstance(text, ast.Expr):
            said[ast.unparse(knob.target)] = ast.literal_eval(text.value).replace("\n    ", " ")
    return said


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="folder for the traces; the truth goes to OUT.truth.json"
    )
    choices = {
        "strategy": STRATEGIES,
        "schema": SCHEMAS,
        "layout": LAYOUTS,
        "format": FORMATS,
        "cause": CAUSES,
        "transport": TRANSPORTS,
    }
    said = _said()
    for knob in fields(Spec):
        told = f"{said.get(knob.name, '')} (default {knob.default})".strip().replace("%", "%%")
        option = f"--{knob.name.replace('_', '-')}"
        default = None if knob.default is MISSING else knob.default
        if knob.name == "missing":
            parser.add_argument(option, default="", metavar="R,R", help="ranks that leave no file")
        elif knob.name == "slow_steps":
            parser.add_argument(option, default="", metavar="S,S", help="the straggler's slow steps")
        elif knob.name == "damage":
            parser.add_argument(
                option,
                default="",
                metavar="R:KIND,..",
                help="files to spoil: cut, empty, text, nan, negative, no-rank",
            )
        elif isinstance(default, bool):
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=default, help=told)
        elif knob.name in choices:
            parser.add_argument(option, choices=choices[knob.name], default=default, help=told)
        else:
            kind = {str: str, float: float}.get(type(default), int)
            parser.add_argument(option, type=kind, default=default, metavar="N", help=told)
    parser.set_defaults(straggler=_EXAMPLE)  # so that the example tells something; -1 for none
    return parser


def main(argv: list[str] | None = None) -> None:
    """Write the job that the command line describes."""
    parser = _parser()
    given = vars(parser.parse_args(argv))
    out: Path = given.pop("out")
    for name in ("missing", "slow_steps"):
        given[name] = tuple(int(number) for number in given[name].split(",") if number)
    pairs = [pair.partition(":") for pair in given["damage"].split(",") if pair]
    given["damage"] = tuple((int(rank), kind) for rank, _, kind in pairs)
    straggler = given["straggler"]
    if straggler == -1 or (straggler == _EXAMPLE and given["ranks"] <= _EXAMPLE):
        given["straggler"] = None
    elif not 0 <= straggler < given["ranks"]:
        parser.error(f"--straggler {straggler} is no rank of {given['ranks']}; -1 for none")
    spec = Spec(**given)
    truth = write_job(out, spec)
    size = sum(path.stat().st_size for path in out.glob(f"{spec.prefix}*.{spec.format}"))
    count = len(truth["collectives"])
    print(f"{out}: {spec.ranks - len(spec.missing)} traces, {size / 1e6:.1f} MB, {count} collectives")
    print(f"what is true of them: {truth_path(out, spec)}")


if __name__ == "__main__":
    main()
