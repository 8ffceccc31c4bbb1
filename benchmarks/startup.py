"""How long whole commands take, beside the same commands of the commit before the rooms (a1a80a6).

The benchmark checks that commit out of git's history, into a folder it removes again. Both trees run under
this interpreter, so that libraries are the same, in turn: once each per round. Times are wall clock of the
whole process. The first round fills the file cache, the bytecode and the cache of what was read and, by now,
found; it is not counted. The `..._no_cache` commands do that work in every round.
`..._cpu_ratio` is that of the processors' seconds, with which a machine that others use interferes less.
Modules are those that `-X importtime` names.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Final

from harness import Result, Spread, main

ROOT: Final = Path(__file__).resolve().parents[1]
BEFORE: Final = "a1a80a6"
SHARED: Final = Path(os.environ.get("SHARDTOLL_SHARED", ROOT.parent / "shared"))
TRACE: Final = "traces/hta_sampled_rank1of128.json.gz"
"""The smallest of the shared traces."""
RECORDED: Final = "shardtoll.samples.dit_modulation.dtensor"
"""The program whose run folder is reported, compared and checked."""
ROOTS: Final = ("ledger", "profiler", "analyzers", "dashboards", "cli", "samples")
AIMS: Final = {
    "report_ratio": 0.6,
    "check_ratio": 0.6,
    "compare_ratio": 0.6,
    "report_modules": 700.0,
    "help_s": 0.35,
}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=15, help="counted runs of each command and tree")
    parser.add_argument("--before", default=BEFORE, help="the commit to compare with")
    parser.add_argument("--command", action="append", help="one of them, may be repeated")
    parser.add_argument("--trace", type=Path, default=SHARED / TRACE, help="the trace to report")


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """Give a folder from which `shardtoll` of a commit can be imported."""
    packed = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name, "tree")
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(tree)
        yield _importable(tree, Path(name, "path"))


def _importable(tree: Path, path: Path) -> Path:
    """Return a folder for PYTHONPATH, where the tree's root folders lie in a namespace `shardtoll`."""
    (path / "shardtoll").mkdir(parents=True)
    for root in ROOTS:
        (path / "shardtoll" / root).symlink_to(tree / root)
    return path


def _environment(path: Path, cache: Path) -> dict[str, str]:
    """Return the environment of a tree's commands: its own modules, cache of traces and bytecode."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SHARDTOLL"))}
    return {**kept, "PYTHONPATH": str(path), "SHARDTOLL_CACHE": str(cache)}


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the seconds that a command took, by the clock and of processors; RuntimeError if it failed."""
    begun, before = time.perf_counter(), _children_s()
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    seconds = time.perf_counter() - begun
    # `check` exits with 1 if the run is over its budget, which is what it was asked.
    if done.returncode not in (0, 1) or b"Traceback" in done.stderr:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode(errors='replace')[-2000:]}")
    return seconds, _children_s() - before


def _children_s() -> float:
    used = os.times()
    return used.children_user + used.children_system


def _modules(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Return how many modules a command imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return sum(line.startswith("import time:") for line in done.stderr.splitlines()) - 1


def _commands(folder: Path, trace: Path, environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Return what is timed, name -> arguments; writes the run folder and the budget that they read."""
    run, budget = folder / "run", folder / "budget.toml"
    job = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    _run([*job, "-m", RECORDED, "--out", str(run), "--steps", "10", "--hidden", "64"], environment)
    budget.write_text("max_collectives = 1\n", encoding="utf-8")
    shardtoll = ["-m", "shardtoll.cli"]
    return {
        "help": [*shardtoll, "--help"],
        "report": [*shardtoll, "report", str(trace)],
        "report_no_cache": [*shardtoll, "report", str(trace), "--no-cache"],
        "report_run_no_cache": [
            *shardtoll,
            *("report", str(run), "-q", "-o", str(folder / "bill.json"), "--no-cache"),
        ],
        "report_run": [*shardtoll, "report", str(run), "-q", "-o", str(folder / "bill.json")],
        "compare": [*shardtoll, "compare", str(run), str(run)],
        "compare_no_cache": [*shardtoll, "compare", str(run), str(run), "--no-cache"],
        "check": [*shardtoll, "check", str(run), "--budget", str(budget)],
        "check_no_cache": [*shardtoll, "check", str(run), "--budget", str(budget), "--no-cache"],
    }


def measure(chosen: argparse.Namespace) -> Result:
    """Time every command of both trees in turn; the tree that goes first changes every round."""
    figures: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as name, _checkout(chosen.before) as before:
        folder = Path(name)
        now = _importable(ROOT, folder / "now")
        trees = {
            "before": _environment(before, folder / "cache-before"),
            "now": _environment(now, folder / "cache-now"),
        }
        commands = _commands(folder, chosen.trace, trees["before"])
        if chosen.command:
            commands = {name: commands[name] for name in chosen.command}
        taken_s: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for repeat in range(chosen.repeats + 1):
            for command, arguments in commands.items():
                for tree in list(trees)[:: 1 if repeat % 2 else -1]:
                    taken = _run(arguments, trees[tree])
                    if repeat:
                        taken_s.setdefault((command, tree), []).append(taken)
        for command, arguments in commands.items():
            for tree, environment in trees.items():
                figures[f"{command}_modules_{tree}"] = _modules(arguments, environment)
            clock, processor = (
                [[each[part] for each in taken_s[command, tree]] for tree in ("before", "now")]
                for part in range(2)
            )
            figures |= _compared(command, *clock)
            old, new = (statistics.median(values) for values in processor)
            figures[f"{command}_cpu_s"], figures[f"{command}_cpu_ratio"] = new, new / old
            print(f"    processors {old:.3f} s -> {new:.3f} s: {new / old:.2f} times")
            figures[f"{command}_modules"] = figures.pop(f"{command}_modules_now")
            print(f"    modules {figures[f'{command}_modules_before']} -> {figures[f'{command}_modules']}")
    return Result(figures, AIMS)


def _compared(command: str, before: Sequence[float], now: Sequence[float]) -> dict[str, float | None]:
    """Return and print a command's figures; the ratio's spread is that of the rounds' own ratios."""
    first, second = Spread.of(before), Spread.of(now)
    rounds = Spread.of([new / old for old, new in zip(before, now, strict=True)])
    ratio = second.median / first.median
    print(
        f"{command:16s} {first.median:.3f} s -> {second.median:.3f} s "
        f"({second.low:.3f} to {second.high:.3f}): {ratio:.2f} times ({rounds.low:.2f} to {rounds.high:.2f})"
    )
    return {
        f"{command}_before_s": first.median,
        f"{command}_s": second.median,
        f"{command}_q1_s": second.low,
        f"{command}_q3_s": second.high,
        f"{command}_ratio": ratio,
        f"{command}_ratio_q1": rounds.low,
        f"{command}_ratio_q3": rounds.high,
    }


if __name__ == "__main__":
    main(measure, about=__doc__, options=_options)
