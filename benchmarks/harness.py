"""What every benchmark shares: its command line, its JSON file and the statistics of its figures.

A benchmark is one program in this folder. It hands `main` a function that measures and returns
figures; `main` gives it `-o x.json`, which writes `{figures, aims, machine}`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark measured, and what it hoped for."""

    figures: Mapping[str, float | None]
    """Name with its unit -> value; None where it could not be measured here."""
    aims: Mapping[str, float] = field(default_factory=dict)
    """Name of a figure -> the value it should not exceed (or reach, where the name says so)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of repeated measurements, in the unit of the samples."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Return the spread of at least one sample; that of a single one is the sample itself."""
        if len(samples) == 1:
            # Python before 3.13 refuses quantiles of one value.
            return cls(samples[0], samples[0], samples[0], 1)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high, len(samples))


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, cores, memory, Python, torch and the date."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    }


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def main(
    measure: Callable[[argparse.Namespace], Result],
    *,
    about: str,
    options: Callable[[argparse.ArgumentParser], None] | None = None,
    argv: Sequence[str] | None = None,
) -> None:
    """Run a benchmark as a program: parse its arguments, measure, print, and write JSON with `-o`.

    `about` is the program's docstring, `options` adds arguments of its own, `argv` stands in for
    the command line.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, metavar="x.json", help="write figures, aims and machine")
    if options:
        options(parser)
    arguments = parser.parse_args(argv)
    result = measure(arguments)
    print_aims(result)
    if arguments.output:
        document = {"figures": dict(result.figures), "aims": dict(result.aims), "machine": machine()}
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def print_aims(result: Result) -> None:
    """Print each aim beside the figure it speaks of."""
    for name, aim in result.aims.items():
        value = result.figures.get(name)
        shown = "not measured here" if value is None else f"{value:.3g}"
        print(f"{name}: {shown} (aim {aim:g})")
