"""What each check of `audit(checks=...)` adds to a training step that it looks at.

Four programs of overhead.py (tensor parallel, sequence parallel, FSDP2, plain operators on DTensors),
`--width` wide, on two real gloo ranks and on a fake process group of eight, whose step is pure Python and
small kernels: the worst case. Each check is asked for alone and all of them together, at every step;
a job with `check_every=k` pays it in one step of k.

All take turns in every repeat, in rotating order, each with a block of steps; figures are seconds a step on
the slower rank, with all that `session.step()` does at both ends, as checks of replicas run after the step.
`_over_bare` compares with the bare block of the same repeat, `_over_watch` with a watched one without
checks, `survey_checks_over_survey` a surveyed step with all checks with one without.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from harness import Result, Spread, main
from overheads import cases as overhead_cases
from overheads.ranks import RANKS, Samples, run_case
from overheads.tools import timed, within

from shardtoll.profiler import audit
from shardtoll.profiler.live.session.schedule import CHECKS, Level

WARM_UP: Final = 3
KINDS: Final = ("tp", "sp", "fsdp2", "implicit")
CASES: Final = tuple(f"{backend}-{kind}" for backend in RANKS for kind in KINDS)
TURNS: Final[dict[str, tuple[Level, tuple[str, ...]] | None]] = {
    "bare": None,
    "watch": ("watch", ()),
    **{name: ("watch", (name,)) for name in CHECKS},
    "all": ("watch", CHECKS),
    "survey": ("survey", ()),
    "survey_checks": ("survey", CHECKS),
}
"""Name -> level and checks of a session; None without one."""
PAIRS: Final = (
    *((name, "bare") for name in TURNS if name != "bare"),
    *((name, "watch") for name in (*CHECKS, "all")),
    ("survey_checks", "survey"),
)


def _measure(kind: str, ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return one rank's samples; one round before the first repeat is not counted."""
    overhead_cases.WIDTH = options.width  # type: ignore[misc]
    program = overhead_cases.build(kind, ranks)
    for _ in range(WARM_UP):
        program.step()
    samples: Samples = {name: [] for name in TURNS}
    names = list(TURNS)
    for repeat in range(-1, options.repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            seconds = _turn(program, name, options.block)
            if repeat >= 0:
                samples[name].append(seconds)
    return {"samples": samples}


def _turn(program: overhead_cases.Program, name: str, block: int) -> float:
    asked = TURNS[name]
    if asked is None:
        return timed(program.step, block)
    level, checks = asked
    with audit(program.model, level=level, checks=checks) as opened:
        one = within(opened, program.step)
        one()
        return timed(one, block)


def measure(arguments: argparse.Namespace) -> Result:
    """Run the chosen cases one after the other and print what each found."""
    print(f"ratios: median (quartiles) of {arguments.repeats} interleaved repeats")
    figures: dict[str, float | None] = {}
    for case in arguments.case or CASES:
        samples: Samples = run_case(case, _measure, arguments)["samples"]
        bare_ms = Spread.of([1e3 * value for value in samples["bare"]]).median
        figures[f"{case}.bare_ms"] = bare_ms
        print(f"\n{case}: a bare step takes {bare_ms:.2f} ms")
        for name, against in PAIRS:
            pairs = list(zip(samples[name], samples[against], strict=True))
            ratio = Spread.of([with_it / without for with_it, without in pairs])
            added = Spread.of([1e3 * (with_it - without) for with_it, without in pairs])
            key = f"{case}.{name}_over_{against}"
            figures |= {key: ratio.median, f"{key}_q1": ratio.low, f"{key}_q3": ratio.high}
            figures[f"{key}_added_ms"] = added.median
            shown = f"x {ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
            print(f"  {name:13} over {against:6} {shown}  added {added.median:+.3f} ms", flush=True)
    return Result(figures)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=15, help="at least 15 for figures worth quoting")
    parser.add_argument("--block", type=int, default=10, help="steps a turn")
    parser.add_argument("--width", type=int, default=overhead_cases.WIDTH, help="of the programs' layers")
    parser.add_argument("--case", action="append", choices=CASES, help="one case (repeatable); default all")


if __name__ == "__main__":
    main(measure, about=__doc__ or "", options=_options)
