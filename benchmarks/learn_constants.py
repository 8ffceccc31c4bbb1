"""Learn the constants of NCCL's model from measured sweeps, and write analyzers/roofline/libraries/nccl.toml.

Each constant starts from a prior (learn_priors) and moves as far as the sweeps call for: squared logarithmic
errors that grow linearly where they are large, plus squared distances from the priors. The widths of bands
are quantiles of the errors on sweeps whose source was left out of the learning, so that they hold elsewhere.

    python benchmarks/learn_constants.py --sweeps ../shared/sweeps -o analyzers/roofline/libraries/nccl.toml
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from learn_priors import ALGORITHMS, GENERATIONS, KNOWN, PRIORS, PROTOCOLS

from shardtoll.analyzers.roofline import Fabric, Quantity
from shardtoll.analyzers.roofline.evaluate.evaluate import fabric_of, timings_of
from shardtoll.analyzers.roofline.evaluate.sweep import Sweep, parse_sweep
from shardtoll.analyzers.roofline.machines.curve import curve_of
from shardtoll.analyzers.roofline.model.band import SIZES, UNKNOWN_WIDTH, size_name, where
from shardtoll.analyzers.roofline.model.correction import NOISE, Floats, minimise, soft
from shardtoll.analyzers.roofline.model.library import Library
from shardtoll.analyzers.roofline.model.model import Model
from shardtoll.analyzers.roofline.model.pricing import Pricing

FREE: Final = tuple(name for name, prior in PRIORS.items() if prior.spread > 0)
SPREADS: Final = np.array([PRIORS[name].spread for name in FREE])

FORCED: Final = ("ring", "minctas")
"""Words in the names of sweeps for which algorithm or channels were set by hand: as another library."""

HUGE: Final = 512 << 20
HUGE_WEIGHT: Final = 1.4
"""Weight of the errors of large messages, where bandwidth alone counts."""

KEPT_ERRORS: Final = 64
"""Errors of one sweep that are kept, each by the constants that it asks for."""

HOLDS: Final = (0.02, 0.97)
"""Quantiles of the errors that a band spans: 95 % of those it was made from, to hold 90 % elsewhere, and more
of them at the low end, which is the floor."""
LEAST_WIDTH: Final = 0.04
"""No band is narrower: a sound machine's runs differ by that (shared/reference/ROOFLINE.md)."""
ENOUGH: Final = 2
"""Sources from which on a class has its own width: how far sources lie apart, one does not tell."""
ALONE: Final = 1.5
"""What the width of all classes is multiplied with where one source, or none, measured the class."""
FEW: Final = 10
"""Of fewer errors than that, a class takes the width of all."""


@dataclass(frozen=True, slots=True)
class Case:
    """A sweep on its fabric."""

    name: str
    sweep: Sweep
    fabric: Fabric

    @property
    def source(self) -> str:
        """What is left out together: all sweeps of one publication."""
        return source_of(self.sweep)


def source_of(sweep: Sweep) -> str:
    """Return the publication that a sweep is from."""
    return sweep.source.split(":")[0].split("#")[0]


def read(folder: Path) -> list[Case]:
    """Return the cases of a folder of sweeps."""
    paths = sorted(path for path in folder.glob("*.csv") if path.name != "INDEX.csv")
    return cases_of({path.stem: parse_sweep(path.read_text(encoding="utf-8"), path.name) for path in paths})


def forced(name: str) -> bool:
    """Whether the name says that algorithm or channels were set by hand: the library as nobody has it."""
    return any(f"_{word}" in name for word in FORCED)


def cases_of(sweeps: Mapping[str, Sweep]) -> list[Case]:
    """Return the sweeps that show the library as it chooses by itself, each on the fabric it names."""
    found = []
    for name, sweep in sweeps.items():
        if forced(name):
            continue
        fabric, sure = fabric_of(sweep)
        if fabric is None:
            continue
        # Of a network that nobody named nothing can be learned.
        if not sweep.placement_on(fabric).spans_nodes or (
            fabric.inter is not None and not sure.startswith("assumed")
        ):
            found.append(Case(name, sweep, fabric))
    return found


def library_of(logs: Floats, bands: Mapping[str, Quantity] | None = None) -> Library:
    """Return the constants that lie `logs` (natural logarithms, in the order of `FREE`) from their priors."""
    numbers = {name: Quantity(prior.value, prior.source, "derived") for name, prior in PRIORS.items()}
    for name, log in zip(FREE, logs, strict=True):
        numbers[name] = replace(numbers[name], value=PRIORS[name].value * math.exp(log))
    for kind, (source, known) in KNOWN.items():
        numbers[f"known.{kind}"] = Quantity(1.0, source, "derived" if known else "GUESS")
    return Library("nccl", PROTOCOLS, ALGORITHMS, {**numbers, **(bands or {})}, (), GENERATIONS)


def predicted_ns(library: Library, case: Case) -> Floats:
    """Return the times of the case's sizes by the model alone."""
    sizes = np.array([point.message_bytes for point in case.sweep.points], dtype=np.float64)
    times = (
        Model(case.fabric, case.sweep.op, case.sweep.placement_on(case.fabric), library).choose(sizes).time_ns
    )
    return np.maximum(times, case.sweep.least_ns(library))


def measured_ns(case: Case) -> Floats:
    """Return what the case's sizes took."""
    return np.array([point.time_ns for point in case.sweep.points], dtype=np.float64)


def learn(cases: Sequence[Case], rounds: int = 25) -> Floats:
    """Return how far the constants lie from their priors, in logarithms, for these sweeps."""
    asked = [_asked(case) for case in cases]
    known: list[dict[bytes, Floats]] = [{} for _ in cases]

    def error(place: int, logs: Floats, library: Library) -> Floats:
        # A slope moves one constant, and a sweep asks for a third of them: the others' errors stay.
        key = logs[asked[place]].tobytes()
        found, case = known[place].get(key), cases[place]
        if found is None:
            if len(known[place]) > KEPT_ERRORS:
                known[place].clear()
            found = known[place][key] = np.log(predicted_ns(library, case) / measured_ns(case)) / NOISE
        return found

    def residuals(logs: Floats) -> Floats:
        library = library_of(logs)
        errors = []
        for place, case in enumerate(cases):
            large = np.array([point.message_bytes >= HUGE for point in case.sweep.points])
            # The errors of one sweep go together: a sweep of four times the sizes counts twice.
            errors.append(
                error(place, logs, library) * len(large) ** -0.25 * np.where(large, HUGE_WEIGHT, 1.0)
            )
        return np.concatenate([soft(np.concatenate(errors)), logs / SPREADS])

    return minimise(residuals, np.zeros(len(FREE)), rounds)


def _asked(case: Case) -> npt.NDArray[np.intp]:
    """Return which constants the case's prediction asks for, as places in `FREE`."""
    numbers = {name: Quantity(prior.value, prior.source, "GUESS") for name, prior in PRIORS.items()}
    library = Library("nccl", PROTOCOLS, ALGORITHMS, numbers, (), GENERATIONS)
    # Each candidate names the guesses it was made of; here all constants are.
    model = Model(case.fabric, case.sweep.op, case.sweep.placement_on(case.fabric), library)
    names = {name for candidate in model.candidates for name in candidate.guesses}
    return np.array([place for place, name in enumerate(FREE) if name in names or name.startswith("host_")])


def without(cases: Sequence[Case], source: str) -> Library:
    """Return the constants learned from all sweeps but those of one source."""
    return library_of(learn([case for case in cases if case.source != source]))


Errors: TypeAlias = dict[str, dict[tuple[str, str], dict[str, list[float]]]]
"""log(measured / predicted) by basis, place and size, and source."""


def errors_of(cases: Sequence[Case], libraries: Mapping[str, Library]) -> Errors:
    """Return the errors of predictions, each with constants that never saw the source."""
    found: Errors = {"model": {}, "transferred": {}}
    for case in cases:
        library = libraries[case.source]
        at = case.sweep.placement_on(case.fabric)
        place = where(Model(case.fabric, case.sweep.op, at, library).machine)
        _add(found["model"], place, case, predicted_ns(library, case))
        for other in cases:
            timings = timings_of(other.sweep, case.fabric) if _is_neighbour(other, case) else None
            if timings is None:
                continue
            pricing = Pricing(replace(case.fabric, curves=(curve_of(timings),)), library)
            sizes = [point.message_bytes for point in case.sweep.points]
            times = [price.time_ns for _, price in pricing.prices(case.sweep.op, sizes, at)]
            _add(found["transferred"], place, case, np.array(times))
    return found


def _is_neighbour(other: Case, case: Case) -> bool:
    """Whether the other is of the same cluster, of another collective or group that is not far larger."""
    one, two = other.sweep, case.sweep
    if one.hardware != two.hardware or other is case or (one.nodes > 1) != (two.nodes > 1):
        return False
    if max(one.nodes, two.nodes) > 8 * min(one.nodes, two.nodes):
        return False
    return (one.op, one.ranks, one.nodes) != (two.op, two.ranks, two.nodes)


def _add(
    into: dict[tuple[str, str], dict[str, list[float]]], place: str, case: Case, predicted: Floats
) -> None:
    for point, time in zip(case.sweep.points, predicted, strict=True):
        of_source = into.setdefault((place, size_name(point.message_bytes)), {})
        of_source.setdefault(case.source, []).append(math.log(point.time_ns / time))


def bands_of(errors: Errors) -> dict[str, Quantity]:
    """Return the widths of the bands by basis, end, size and place, in logarithms.

    A place that several sources measured has its own. The others have the width over all places, wider by
    `ALONE`, and at least their own where there is one.
    """
    numbers = {}
    for basis, by_class in errors.items():
        for size, _ in SIZES:
            places = {place: found for (place, name), found in by_class.items() if name == size}
            every: dict[str, list[float]] = {}
            for found in places.values():
                for source, values in found.items():
                    every.setdefault(source, []).extend(values)
            least = [ALONE * width for width in _ends(every)]
            for place, found in {**places, "default": every}.items():
                count, ends = sum(map(len, found.values())), _ends(found)
                if place == "default" or len(found) < ENOUGH or count < FEW:
                    ends = [max(both) for both in zip(ends, least, strict=True)]
                source = f"{count} errors on sweeps of {len(found)} sources, each left out of the learning"
                for end, width in zip(("low", "high"), ends, strict=True):
                    numbers[f"band.{basis}.{end}.{size}.{place}"] = Quantity(
                        round(width, 3), source, "derived"
                    )
    return numbers


def _ends(found: Mapping[str, Sequence[float]]) -> list[float]:
    """Return how far the band reaches below and above; a source of four times the sizes counts twice."""
    if not any(found.values()):
        return [UNKNOWN_WIDTH, UNKNOWN_WIDTH]
    errors = np.array([error for values in found.values() for error in values])
    weights = np.array([len(values) ** -0.5 for values in found.values() for _ in values])
    order = np.argsort(errors)
    below = np.cumsum(weights[order]) - weights[order] / 2
    low, high = np.interp(HOLDS, below / weights.sum(), errors[order])
    return [max(LEAST_WIDTH, -float(low)), max(LEAST_WIDTH, float(high))]


def to_toml(library: Library) -> str:
    """Return the library as TOML, one number a line."""
    lines = [
        "# NCCL: what its algorithms and protocols need. Written by benchmarks/learn_constants.py from",
        "# priors and measured sweeps; do not edit by hand: change the priors and learn again.",
        f"protocols = {json.dumps(list(library.protocols))}",
        f"algorithms = {json.dumps(list(library.algorithms))}",
        "",
        "[generations]",
        *(f"{name} = {json.dumps(value)}" for name, value in library.generations.items()),
    ]
    tables: dict[str, list[str]] = {}
    for name, number in library.numbers.items():
        table, _, key = name.rpartition(".")
        line = f"{key} = {{ value = {number.value:.4g}, source = {json.dumps(number.source)}, "
        tables.setdefault(table, []).append(line + f"confidence = {json.dumps(number.confidence)} }}")
    for table, rows in tables.items():
        lines += ["", f"[numbers.{table}]", *rows]
    return "\n".join(lines) + "\n"


def described(library: Library, cases: Sequence[Case]) -> Library:
    """Return the library with the source of each number: its prior, and that it was moved by sweeps."""
    numbers = dict(library.numbers)
    learned = f"learned from {len(cases)} sweeps (benchmarks/learn_constants.py)"
    for name, prior in PRIORS.items():
        told = f"{learned}; before: {prior.value:g} ({prior.source})" if prior.spread else prior.source
        guess = not prior.spread and not prior.sourced
        numbers[name] = replace(numbers[name], source=told, confidence="GUESS" if guess else "derived")
    return replace(library, numbers=numbers)


def main() -> None:
    """Learn, and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = Path(os.environ.get("SHARDTOLL_SHARED", "shared"))
    parser.add_argument("--sweeps", type=Path, default=shared / "sweeps", help="folder of sweeps as CSV")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the TOML file to write")
    options = parser.parse_args()
    cases = read(options.sweeps)
    if not cases:
        raise SystemExit(f"no sweep in {options.sweeps}: name their folder with --sweeps")
    libraries = {source: without(cases, source) for source in sorted({case.source for case in cases})}
    bands = bands_of(errors_of(cases, libraries))
    options.output.write_text(to_toml(described(library_of(learn(cases), bands), cases)), encoding="utf-8")
    print(f"{len(FREE)} constants and {len(bands)} widths from {len(cases)} sweeps -> {options.output}")


if __name__ == "__main__":
    main()
