"""Fit the forecast's constants to published step times, and say what it took.

    python benchmarks/forecasts/forecast_fit.py FOLDER/forecast            # writes
    analyzers/forecast/data/forecast_constants.json
    python benchmarks/forecasts/forecast_fit.py FOLDER/forecast --only composer --leave-out h100
    (one framework, a part left out)

FOLDER has e2e_train.csv. Frameworks are fitted one after another; what one says of a GPU is the prior of the
next.
Residuals are logarithms of predicted over measured time, with Huber weights; Levenberg-Marquardt on the
logarithms
of the constants, with a prior for each.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from shardtoll.analyzers.forecast.plan.constants import START, Constants
from shardtoll.analyzers.forecast.plan.price import band_scope, price_parts, slope_width
from shardtoll.analyzers.forecast.plan.traits import TRAITS, traits_of
from shardtoll.analyzers.forecast.rows.measured_step import measured_step_ns
from shardtoll.analyzers.forecast.rows.parse import Abstain, ReadRow, read_row

CONSTANTS: Final = Path(__file__).resolve().parents[2] / "analyzers/forecast/data/forecast_constants.json"
ROUNDS: Final = 15
HUBER: Final = 0.04
"""Residuals beyond this count linearly: single slow runs shall not decide."""


@dataclass(frozen=True)
class Measured:
    """One row that can be priced."""

    row: dict[str, str]
    read: ReadRow
    step_ns: float
    framework: str


@dataclass(frozen=True)
class Stage:
    """One framework's fit: which constants, each with the width of its prior (a logarithm)."""

    framework: str
    free: dict[str, float]
    every: int = 1
    """Each so many rows are used: no divisor of what the rows' settings repeat by."""


FIXED: Final = {
    "recompute.vtrain": 1.0,
    "recompute.megatron": 1.0,
    "recompute.nemo": 1.0,
    "recompute.nanotron": 1.0,
    "staged_us.nanotron": 200.0,
}
"""Megatron's reentrant checkpoint repeats the whole forward; torch's newer one stops at the last saved
tensor. The last one is where its fit starts."""

GPUS_OF_NEMO: Final = ("h100-sxm", "b200-sxm", "gb200", "gb300")

STAGES: Final = (
    Stage(
        "nemo",
        {
            **{f"sustained.nemo.{gpu}.float8": 0.05 for gpu in GPUS_OF_NEMO},
            "sustained.nemo.h100-sxm.bfloat16": 0.05,
            "attention.nemo": 0.3, "memory.nemo": 0.2, "tensor_exposed.nemo": 0.7,
            "context_exposed.nemo": 0.7, "expert_exposed.nemo": 0.5,
            "expert_gradient.nemo": 0.7,
        },
    ),
    Stage(
        "composer",
        {
            "sustained.composer.a100-sxm-40gb.bfloat16": 0.3,
            "sustained.composer.a100-sxm-80gb.bfloat16": 0.3,
            "sustained.composer.h100-sxm.bfloat16": 0.05, "sustained.composer.h100-sxm.float8": 0.2,
            "attention.composer.a100-sxm-40gb": 0.2, "attention.composer.a100-sxm-80gb": 0.2,
            "attention.composer.h100-sxm": 0.5, "memory.composer.a100-sxm-40gb": 0.25,
            "memory.composer.a100-sxm-80gb": 0.25, "memory.composer.h100-sxm": 0.25, "host_us.composer": 0.5,
            "step_ms.composer": 1.0, "contention.composer": 0.3, "near.composer": 0.2, "net.composer": 0.2,
            "recompute.composer": 0.05,
        },
    ),
    Stage(
        "vtrain",
        {
            "sustained.vtrain.a100-sxm-80gb": 0.2, "attention.vtrain": 0.2, "memory.vtrain": 0.3,
            "host_us.vtrain": 0.7, "call_us.vtrain": 0.8, "near.vtrain": 0.4, "step_ms.vtrain": 1.0,
            "send_us.vtrain": 0.5, "head.vtrain": 0.3,
        },
        every=7,
    ),
    Stage(
        "nanotron",
        {
            "sustained.nanotron.h100-sxm": 0.1, "attention.nanotron": 0.4, "memory.nanotron": 0.4,
            "host_us.nanotron": 0.7, "call_us.nanotron": 0.8, "near.nanotron": 0.4, "net.nanotron": 0.6,
            "step_ms.nanotron": 1.0, "send_us.nanotron": 0.8, "staged_us.nanotron": 1.0,
        },
    ),
    Stage(
        "jax",
        {
            "sustained.jax.h100-sxm": 0.05, "attention.jax": 0.3, "memory.jax": 0.4, "near.jax": 0.4,
            "net.jax": 0.4,
        },
    ),
)  # fmt: skip


def load(path: Path) -> list[Measured]:
    """Return the rows of a file that were measured, are not marked as excluded, and can be priced."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    measured = []
    for row in rows:
        if row["split"] != "train" or row["status"] != "ok":
            continue
        try:
            read = read_row(row)
        except Abstain:
            continue
        step_ns = measured_step_ns(row, read.plan)
        if step_ns is not None:
            measured.append(Measured(row, read, step_ns, traits_of(read.plan.framework).name))
    return measured


def residuals(rows: Sequence[Measured], constants: Constants) -> Any:
    """Return log(predicted / measured) of each row."""
    return np.array(
        [
            math.log(price_parts(each.read.plan, each.read.network, constants).step_ns / each.step_ns)
            for each in rows
        ]
    )


def fit(
    rows: Sequence[Measured], start: Constants, free: dict[str, float], rounds: int = ROUNDS
) -> Constants:
    """Return the constants with the free ones fitted to the rows."""
    names = list(free)
    prior = np.log([_value(start, name) for name in names])
    width = np.array([free[name] for name in names])
    place = prior.copy()
    damping = 1e-2

    def at(values: Any) -> Constants:
        return start.with_(dict(zip(names, np.exp(values).tolist(), strict=True)))

    def cost(errors: Any, values: Any) -> float:
        size = np.abs(errors)
        huber = np.where(size < HUBER, errors**2, 2 * HUBER * size - HUBER**2)
        return float(huber.sum() / 0.04**2 + (((values - prior) / width) ** 2).sum())

    errors = residuals(rows, at(place))
    for _ in range(rounds):
        columns = []
        for index in range(len(names)):
            moved = place.copy()
            moved[index] += 0.03
            columns.append((residuals(rows, at(moved)) - errors) / 0.03)
        jacobian = np.array(columns).T
        weight = np.minimum(1.0, HUBER / np.maximum(np.abs(errors), 1e-9)) / 0.04**2
        normal = (jacobian * weight[:, None]).T @ jacobian + np.diag(1 / width**2)
        slope = (jacobian * weight[:, None]).T @ errors + (place - prior) / width**2
        before = cost(errors, place)
        for _ in range(_TRIES):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slope)
            moved = place + np.clip(step, -0.5, 0.5)
            new = residuals(rows, at(moved))
            if cost(new, moved) < before:
                place, errors, damping = moved, new, damping / 3
                break
            damping *= 4
        if before - cost(errors, place) < 1e-3 * before:
            break
    return at(place)


_TRIES: Final = 12
"""Dampings that are tried before a place counts as the best: they grow by 4 each."""


def _value(constants: Constants, name: str) -> float:
    """Return a constant's value before the fit: its own, else that of the widest scope that has one."""
    head, *scopes = name.split(".")
    candidates = [".".join(scopes), ".".join(scopes[1:]), ".".join(scopes[:-1]), *scopes]
    return constants.get(head, *(each for each in candidates if each))


SLOPES: Final = {"host": 0.08, "net": 0.2, "exposed": 0.08, "experts": 0.12}
"""Logarithms that the band gains if a step is all host time, collectives between nodes, or waits; for experts
of a framework whose experts no fit has seen."""
UNSEEN: Final = 0.13
"""Width for a framework that no fit has seen: what frameworks are off by that are left out of the fit."""
COVERED: Final = 0.93
"""Share of fitted rows on each side; of unseen rows fewer lie inside, so that about 80 % remain."""


def fit_bands(rows: Sequence[Measured], constants: Constants) -> dict[str, float]:
    """Return the numbers of the bands: how far rows were faster and slower than expected, by framework."""
    over: dict[str, list[tuple[float, float]]] = {}
    for each in rows:
        parts = price_parts(each.read.plan, each.read.network, constants)
        error = math.log(parts.step_ns / each.step_ns)
        more = slope_width(parts, SLOPES)
        over.setdefault(band_scope(each.read.plan), []).append((error - more, -error - more))
    bands = {**SLOPES, "faster": UNSEEN, "slower": UNSEEN, "anchored": 0.6, "anchored_difference": 0.2}
    for scope, sides in over.items():
        for place, name in enumerate(("faster", "slower")):
            width = float(np.quantile([each[place] for each in sides], COVERED))
            bands[f"{name}.{scope}"] = float(f"{max(0.03, width):.3g}")
    return bands


def summary(errors: Any) -> str:
    """Return count, bias, mean, median and 90th percentile of the errors in words."""
    if not len(errors):
        return "no row"
    size = 100 * np.abs(np.exp(errors) - 1)
    return (
        f"{len(errors)} rows: bias {100 * float(np.median(errors)):+.1f} %, mean {size.mean():.1f} %, "
        f"median {np.median(size):.1f} %, p90 {np.quantile(size, 0.9):.1f} %, max {size.max():.1f} %"
    )


def fit_all(
    rows: Sequence[Measured], keep: Callable[[Measured], bool] = lambda _: True, only: str | None = None,
    rounds: int = ROUNDS, start: Constants | None = None, quiet: bool = False,
) -> Constants:  # fmt: skip
    """Return the constants fitted to the rows that `keep` lets through."""
    constants = start or Constants({**START, **FIXED})
    for stage in STAGES:
        if only is not None and stage.framework not in only.split(","):
            continue
        chosen = [each for each in rows if each.framework == stage.framework and keep(each)][:: stage.every]
        if not chosen:
            continue
        began = time.perf_counter()
        constants = fit(chosen, constants, stage.free, rounds)
        if not quiet:
            took = time.perf_counter() - began
            print(f"{stage.framework}: {summary(residuals(chosen, constants))}; {took:.0f} s", flush=True)
            print(
                "  "
                + ", ".join(
                    f"{name} {constants.get(name):.3g}" for name in stage.free if name in constants.values
                ),
                flush=True,
            )
    return constants.with_({**_kept(constants), **unseen(constants)})


_COMMON: Final = ("attention", "memory", "near", "net", "contention")
"""Constants that say more of GPUs and networks than of a framework's host code."""


def _kept(constants: Constants) -> dict[str, float]:
    """Return the common values that frameworks were fitted with and have no own value of, as their own."""
    named = {tuple(name.split(".")[:2]) for name in constants.values}
    return {
        f"{head}.{stage.framework}": constants.get(head)
        for stage in STAGES
        for head in _COMMON
        if any((free.split(".")[0], stage.framework) in named for free in stage.free)
        and (head, stage.framework) not in named
    }


def unseen(constants: Constants) -> dict[str, float]:
    """Return what a framework that no fit has seen gets: the geometric mean of those that one has.

    What a GPU sustains is told by GPU and kind of product, as kernels and power limits decide it.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for name, value in constants.values.items():
        head, framework, *rest = [*name.split("."), ""][:4]
        if framework not in TRAITS:
            continue
        if head == "sustained" and rest[0]:
            kind = name.split(".")[3] if name.count(".") > 2 else "bfloat16"
            name = f"sustained.{rest[0]}.{kind}"
        elif head in _COMMON and not (head == "attention" and TRAITS[framework].unfused_attention):
            name = head
        else:
            continue
        found.setdefault(name, {}).setdefault(framework, []).append(math.log(value))
    return {
        name: math.exp(statistics.fmean(statistics.fmean(logs) for logs in by_framework.values()))
        for name, by_framework in found.items()
    }


def packaged_start(constants: Mapping[str, float]) -> Constants:
    """Return the packaged values of what stages fit; one new to a stage starts where every fit does."""
    names = [name for stage in STAGES for name in stage.free if name in constants]
    return Constants({**START, **FIXED, **{name: float(constants[name]) for name in names}})


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="frameworks, comma separated; others keep what is packaged")
    parser.add_argument("--leave-out", help="a word in source, model or GPU of rows that are not fitted")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    parser.add_argument("-o", "--output", type=Path, default=CONSTANTS, help="the packaged file if omitted")
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows = load(arguments.folder / "e2e_train.csv")
    packaged = json.loads(CONSTANTS.read_text(encoding="utf-8"))

    def kept(each: Measured) -> bool:
        words = arguments.leave_out
        text = f"{each.row['source']} {each.row['model']} {each.read.plan.gpu}".casefold()
        return not words or words.casefold() not in text

    start = None
    if arguments.only:
        # Only what was fitted: what follows from it is made anew.
        start = packaged_start(packaged["constants"])
    constants = fit_all(rows, kept, arguments.only, arguments.rounds, start)
    if arguments.leave_out:
        left = [
            each
            for each in rows
            if not kept(each) and (arguments.only is None or each.framework in arguments.only)
        ]
        print(f"left out: {summary(residuals(left, constants))}")
    if not arguments.dry:
        packaged["constants"] = {name: float(f"{value:.4g}") for name, value in constants.values.items()}
        packaged["bands"] = fit_bands(rows, constants)
        by = "benchmarks/forecasts/forecast_fit.py"
        packaged["source"] = f"fitted to e2e_train.csv (published step times) by {by}"
        packaged["rows"] = len(rows)
        packaged["seconds"] = round(time.perf_counter() - began)
        arguments.output.write_text(json.dumps(packaged, indent=1) + "\n", encoding="utf-8")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
