"""What each way of looking at a training step adds to its time, and what it counts.

Four programs (tensor parallel, sequence parallel, FSDP2, plain operators on DTensors), 64 wide, on two
real gloo ranks and on a fake process group of eight, where nothing is transferred and a step is pure
Python and small kernels: the worst case. DDP on gloo, and on the fake group a step of nothing but tiny
collectives and one of tiny operators.

All tools take turns in every repeat, in rotating order, each with a block of steps; figures are seconds
a step on the slower rank. `ratio` and `added` compare with the bare block of the same repeat.
`watch` and `survey` include all that `session.step()` does at both ends, not opening and closing the
session; their blocks come after the session's first steps, whose rows are made at once, and end with
making the rows of all their steps, which in a job waits for up to a second. `survey_first` is a session's
first step, where places in the source are resolved. CommDebugMode and DebugMode get a context each step, as
CommDebugMode fails with two steps in one; torch.profiler starts and stops outside the time. `schedule` is
many steps of one open session at the default level over as many bare ones, in alternating blocks.

The floors of the mechanisms: `dispatch_mode` passes every operator through a mode that does nothing,
`wrappers` does nothing around the entry points of collectives, `sequence_reads` reads every group's
sequence number before and after the step.

`flight` is what the flight file of `shardtoll hang` costs the training thread for each collective: issued,
returned, waited for and done, beside one system call that writes as much.

Counts compare CommDebugMode with the ledger on the same program; `mixed` adds one with DDP, point to
point, an object and a barrier, to show what CommDebugMode does not see.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

from harness import Result, Spread, main
from overheads.cases import build
from overheads.counts import count, disagreeing, missed
from overheads.flight import AIM_US
from overheads.flight import figures as flight_figures
from overheads.ranks import RANKS, Samples, run_case
from overheads.tools import CPU_TIME, NAMES, schedule, session, turns

WARM_UP: Final = 3
"""Steps before anything is counted: DDP broadcasts its new buckets in its second step."""
KINDS: Final = ("tp", "sp", "fsdp2", "implicit")
CASES: Final = (
    *(f"{backend}-{kind}" for backend in RANKS for kind in KINDS),
    *("gloo-ddp", "fake-collectives", "fake-operators", "gloo-mixed"),
)
AIMS: Final = {
    "gloo": {"watch_ratio": 1.03, "schedule_ratio": 1.02},
    "fake": {"watch_ratio": 1.10},
}
SURVEY_AIM: Final = 0.5
"""At most half of what CommDebugMode adds."""


def _measure(kind: str, ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return one rank's samples and counts; one round before the first repeat is not counted."""
    program = build(kind, ranks)
    samples: Samples = {}
    for _ in range(WARM_UP):
        program.step()
    theirs, ours = count(program, lambda: session(program, "survey"))
    if kind != "mixed":
        tools = turns(program, options.block)
        for repeat in range(-1, options.repeats):
            first = repeat % len(tools)
            for turn in tools[first:] + tools[:first]:
                for name, value in turn().items():
                    if repeat >= 0:
                        samples.setdefault(name, []).append(value)
        for repeat in range(options.schedule_repeats):
            for name, value in schedule(program, options.schedule_steps, repeat % 2 == 1).items():
                samples.setdefault(name, []).append(value)
    return {"samples": samples, "theirs": theirs, "ours": ours}


def _spread(name: str, values: list[float] | None) -> dict[str, float | None]:
    if values is None:
        return {name: None, f"{name}_q1": None, f"{name}_q3": None}
    spread = Spread.of(values)
    return {name: spread.median, f"{name}_q1": spread.low, f"{name}_q3": spread.high}


def _figures(case: str, samples: Samples) -> dict[str, float | None]:
    """Return ratio and added time of every tool, None for those that were not measured."""
    figures = _spread(f"{case}.bare_ms", [1e3 * value for value in samples["bare"]])
    for name in (*NAMES, "schedule"):
        bare = samples["schedule_bare" if name == "schedule" and name in samples else "bare"]
        pairs = list(zip(samples[name], bare, strict=True)) if name in samples else None
        ratios = None if pairs is None else [tool / without for tool, without in pairs]
        added_ms = None if pairs is None else [1e3 * (tool - without) for tool, without in pairs]
        figures |= _spread(f"{case}.{name}_ratio", ratios) | _spread(f"{case}.{name}_added_ms", added_ms)
    peer = figures[f"{case}.commdebug_added_ms"]
    for name in ("survey", "survey_first"):
        ours = figures[f"{case}.{name}_added_ms"]
        known = ours is not None and peer is not None and peer > 0
        figures[f"{case}.{name}_added_over_commdebug"] = ours / peer if known else None  # type: ignore[operator]
    return figures


def _show(case: str, figures: dict[str, float | None]) -> None:
    print(f"\n{case}: a bare step takes {figures[f'{case}.bare_ms']:.2f} ms")
    for name in (*NAMES, "schedule"):
        parts = [f"{what}{part}" for what in ("ratio", "added_ms") for part in ("", "_q1", "_q3")]
        row = [value for part in parts if (value := figures[f"{case}.{name}_{part}"]) is not None]
        if not row:
            print(f"  {name:15} not measured here")
        else:
            shown = "x {:.3f} ({:.3f} to {:.3f})  added {:+.3f} ms ({:+.3f} to {:+.3f})".format(*row)
            print(f"  {name:15} {shown}")


def measure(arguments: argparse.Namespace) -> Result:
    """Run the chosen cases one after the other and print what each found."""
    if arguments.cpu_time:
        # The ranks are processes of their own.
        os.environ[CPU_TIME] = "1"
    print(f"seconds a step: median (quartiles) of {arguments.repeats} interleaved repeats")
    figures: dict[str, float | None] = {}
    aims: dict[str, float] = {}
    if arguments.flight or not arguments.case:
        figures |= flight_figures(max(arguments.repeats, 99))
        aims |= {"flight.collective_us": AIM_US}
        shown = (
            "collective_us",
            "collective_us_q1",
            "collective_us_q3",
            "collective_us_least",
            "over_pwrite",
        )
        line = "flight file: {:.2f} us a collective ({:.2f} to {:.2f}, least {:.2f}), x {:.2f} of one pwrite"
        print(line.format(*(figures[f"flight.{name}"] for name in shown)))
        line = "  {:.2f} us beyond 512 kinds, {:.2f} us for a new one; a beat of the watchdog takes {:.0f} us"
        also = ("many_kinds_us", "new_kind_us", "beat_us")
        print(line.format(*(figures[f"flight.{name}"] for name in also)))
    for case in () if arguments.flight else arguments.case or CASES:
        found = run_case(case, _measure, arguments)
        if found["samples"]:
            mine = _figures(case, found["samples"])
            _show(case, mine)
            figures |= mine
            wanted = AIMS[case.partition("-")[0]]
            wanted = {**wanted, "survey_added_over_commdebug": SURVEY_AIM}
            wanted["survey_first_added_over_commdebug"] = SURVEY_AIM
            aims |= {f"{case}.{name}": aim for name, aim in wanted.items()}
        theirs, ours = found["theirs"], found["ours"]
        wrong, unseen = disagreeing(theirs, ours), missed(theirs, ours)
        print(f"{case}: CommDebugMode counts {theirs}, the ledger has {ours}")
        print(f"  counts that differ (CommDebugMode, ledger): {wrong or 'none'}")
        print(f"  not seen by CommDebugMode: {unseen or 'nothing'}", flush=True)
        figures[f"{case}.counts_differing"] = len(wrong)
        figures[f"{case}.missed_by_commdebug"] = sum(unseen.values())
        aims[f"{case}.counts_differing"] = 0
    return Result(figures, aims)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cpu-time", action="store_true", help="time that the training thread ran, on a machine in use"
    )
    parser.add_argument("--repeats", type=int, default=21, help="at least 15 for figures worth quoting")
    parser.add_argument("--block", type=int, default=20, help="steps a turn; a quarter for the dear tools")
    parser.add_argument("--schedule-steps", type=int, default=100, help="steps of a session")
    parser.add_argument("--schedule-repeats", type=int, default=7, help="sessions of so many")
    parser.add_argument("--flight", action="store_true", help="only what the flight file costs a collective")
    parser.add_argument("--case", action="append", choices=CASES, help="one case (repeatable); default all")


if __name__ == "__main__":
    main(measure, about=__doc__ or "", options=_options)
