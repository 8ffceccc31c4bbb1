"""Measures what collectives cost on the process groups of this job.

    torchrun --nproc-per-node 8 -m shardtoll.profiler.calibrate -o fabric.toml
    torchrun --nproc-per-node 8 -m shardtoll.profiler.calibrate --mesh dp=2,tp=4 -o fabric.toml

A `.toml` is a fabric that `shardtoll report --fabric` reads: times and bands of every op and size. A `.json`
holds the samples themselves; `shardtoll calibrate --from-points` makes a fabric of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from shardtoll.ledger import ShardtollError, UsageError
from shardtoll.ledger.measured.curve_toml import measured_toml
from shardtoll.ledger.measured.measured import Timings
from shardtoll.profiler.calibrate.circumstances import facts_of, provenance
from shardtoll.profiler.calibrate.mesh import parse_mesh
from shardtoll.profiler.calibrate.ops import TIMED
from shardtoll.profiler.calibrate.progress import watching
from shardtoll.profiler.calibrate.sweep import Sweep, sweep
from shardtoll.profiler.calibrate.timed_groups import choose_device, host_names, make_groups

CPU_SIZES_BYTES: Final = tuple(64 * 6**power for power in range(8))
"""64 B to 18 MB, most no power of two: from where only latency counts to where bandwidth does."""
DEVICE_SIZES_BYTES: Final = tuple(64 * 4**power for power in range(13))
"""64 B to 1 GB."""
DEFAULT_LIMIT_S: Final = 30.0
DEFAULT_TARGET: Final = 0.05
_FAR_OFF: Final = 10
"""An interval of a median that is so many times the median on either side has no width worth a number."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Join the job that torchrun describes, measure, and write the fabric on rank 0."""
    chosen = _parser().parse_args(arguments)
    device = choose_device()
    torch.set_num_threads(1)
    code = 0
    try:
        if chosen.output.suffix not in (".toml", ".json"):
            raise UsageError(f"{chosen.output} is neither .toml nor .json", "name the output fabric.toml")
        if "RANK" not in os.environ:
            raise UsageError(
                "this is no job of several ranks", "start it with torchrun, or use shardtoll calibrate"
            )
        world = int(os.environ["WORLD_SIZE"])
        mesh = parse_mesh(chosen.mesh, world) if chosen.mesh else {}
        ops, sizes = _ops(chosen.ops), _sizes(chosen.sizes)
        if os.environ["RANK"] == "0":
            _make_folder(chosen.output)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=300))
        _measure(chosen, ops, mesh, sizes or _default_sizes(device), device)
    except ShardtollError as error:
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"shardtoll: {error.message}; {error.hint}\n")
        code = error.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    # Interpreter shutdown with gloo's threads alive sometimes aborts after all is written.
    os._exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shardtoll.profiler.calibrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write on rank 0")
    parser.add_argument("--mesh", default="", help="measure the groups of each dimension, as dp=2,tp=4")
    parser.add_argument("--ops", default=",".join(TIMED), help="collectives to measure")
    parser.add_argument("--sizes", default="", help="message sizes in bytes, as 1024,65536")
    parser.add_argument(
        "--limit-s", type=float, default=DEFAULT_LIMIT_S, help="seconds to measure for at most"
    )
    parser.add_argument(
        "--target",
        type=float,
        default=DEFAULT_TARGET,
        help="share of itself to which each median shall be sure",
    )
    parser.add_argument("--extends", default="", help="fabric whose links serve for what is not measured")
    parser.add_argument("--progress", type=Path, help="file that gets a line of JSON a round")
    return parser


def _ops(text: str) -> tuple[str, ...]:
    ops = tuple(dict.fromkeys("send" if part == "recv" else part for part in text.split(",") if part))
    for op in ops:
        if op not in TIMED:
            raise UsageError(f"--ops has no collective {op!r:.40}", f"choose of {', '.join(TIMED)}")
    if not ops:
        raise UsageError("--ops names no collective", f"choose of {', '.join(TIMED)}")
    return ops


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and 0 < int(part) <= 1 << 36 for part in parts):
        raise UsageError(f"--sizes {text!r:.60} are not bytes", "write whole numbers, as 1024,65536")
    return tuple(sorted({int(part) for part in parts}))


def _default_sizes(device: torch.device) -> tuple[int, ...]:
    if device.type != "cuda":
        return CPU_SIZES_BYTES
    # Input and output together may take half of the free memory on the fullest device.
    free = torch.tensor([torch.cuda.mem_get_info(device)[0] // 4], device=device)
    dist.all_reduce(free, op=dist.ReduceOp.MIN)
    return tuple(size for size in DEVICE_SIZES_BYTES if size <= int(free.item()))


def _measure(
    chosen: argparse.Namespace,
    ops: Sequence[str],
    mesh: dict[str, int],
    sizes: Sequence[int],
    device: torch.device,
) -> None:
    if dist.get_world_size() < 2:
        raise UsageError(
            "one rank has nobody to send to", "start two or more, as torchrun --nproc-per-node 2"
        )
    # Making the groups is a part of the time that measuring may take.
    begun_s = time.monotonic()
    hosts = host_names()
    kinds = make_groups(mesh, hosts)
    first = dist.get_rank() == 0
    with contextlib.ExitStack() as stack:
        show = stack.enter_context(watching(chosen.limit_s, chosen.progress)) if first else None
        result = sweep(
            kinds,
            ops,
            sizes,
            device,
            limit_s=chosen.limit_s,
            target=chosen.target,
            begun_s=begun_s,
            progress=show,
        )
    failed = ""
    if first:
        try:
            _write(chosen, result, facts_of(hosts, device))
        except OSError as error:
            failed = f"{chosen.output} cannot be written ({error.strerror or error})"
    dist.barrier()
    if failed:
        raise UsageError(failed, "name another file with -o")


def _write(chosen: argparse.Namespace, result: Sweep, facts: dict[str, Any]) -> None:
    samples = sum(len(times) for times in result.samples)
    provided = provenance(facts, samples)

    def source(groups: str) -> str:
        return f"{provided}; groups of {groups}, {result.rounds} rounds"

    timings = result.timings(source)
    if chosen.output.suffix == ".json":
        text = json.dumps(
            {"facts": facts, "provenance": provided, "timings": [_plain(each) for each in timings]}
        )
    else:
        text = measured_toml(_head(chosen, facts, provided), timings)
    chosen.output.write_text(text, encoding="utf-8")
    for line in _summary(chosen, result):
        sys.stdout.write(line + "\n")


def _make_folder(output: Path) -> None:
    """Make the output's folder before anything is measured. Raises UsageError if that fails."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.is_dir() or not os.access(output.parent, os.W_OK | os.X_OK):
            raise PermissionError(None, "not writable")
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"{output} cannot be written ({why})", "name another file with -o") from error


def _plain(timings: Timings) -> dict[str, Any]:
    return {
        "op": timings.op,
        "ranks": timings.ranks,
        "nodes": timings.nodes,
        "sharing": timings.sharing,
        "source": timings.source,
        "times_ns": {str(size): list(times) for size, times in timings.times_ns.items()},
    }


def _head(chosen: argparse.Namespace, facts: dict[str, Any], provided: str) -> dict[str, str | list[str]]:
    head: dict[str, str | list[str]] = {}
    on_cpu = facts["device"] == "cpu"
    # The links of processes on one host serve for unmeasured ones; between hosts nothing is known.
    base = chosen.extends or ("loopback-gloo" if on_cpu and len(facts["hosts"]) == 1 else "")
    if base:
        head["extends"] = base
    head["name"] = chosen.output.stem
    head["title"] = f"{facts['device']} on {facts['hosts'][0]}, measured"
    head["provenance"] = provided
    head["library"] = "gloo" if on_cpu else ("rccl" if torch.version.hip else "nccl")
    if on_cpu:
        head["backends"] = ["gloo"]
    else:
        head["device_names"] = [facts["device"]]
    head["hosts"] = facts["hosts"]
    return head


def _summary(chosen: argparse.Namespace, result: Sweep) -> list[str]:
    lines = [f"wrote {chosen.output}: {len(result.cases)} collectives, {result.rounds} rounds"]
    wide = sorted(result.wide(chosen.target), key=lambda pair: -(pair[1] or 0))
    if wide:
        case, width = wide[0]
        lines.append(
            f"stopped at the time limit: {len(wide)} of {len(result.cases)} medians are less sure than "
            f"{chosen.target:.0%}, the least {case} ({_width(width)}); each size's band says how wide it is"
        )
        lines.append("to be surer: a larger --limit-s, no more ranks than cores on a host, a quiet machine")
    else:
        lines.append(f"every median is sure to {chosen.target:.0%}")
    if result.left_out:
        lines.append(
            f"left out, as the time did not suffice: groups of {', '.join(result.left_out)}; their floors "
            "are extrapolated; to measure them, give more time"
        )
    if result.unsupported:
        lines.append(f"not done by this backend: {', '.join(result.unsupported)}")
    return lines


def _width(width: float | None) -> str:
    if width is None:
        return "nothing is known of it"
    return f"+- more than {_FAR_OFF}x" if width > _FAR_OFF else f"+- {width:.0%}"


if __name__ == "__main__":
    main()
