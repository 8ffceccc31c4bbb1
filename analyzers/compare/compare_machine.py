"""Whether the machine was slower, or the program: by the operators whose work did not change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from shardtoll.analyzers.compare.modules import Module
from shardtoll.analyzers.two_runs.intervals import Pair, intervals
from shardtoll.analyzers.two_runs.judges import Floor, Judge, Rows
from shardtoll.ledger.answers.comparison import Machine, ModuleChange

VOUCHED: Final = 4
"""A module must lie so many standard deviations off the others of equal work."""
LEAST: Final = 4
"""Modules of equal work needed: of fewer, one that changed may be the middle one."""
LEAST_SHARE: Final = 0.005
"""Part of the computing from which a module's time says something."""
APART: Final = 3
"""Standard errors from which the machine counts as another."""
ALIKE: Final = 0.9
"""Share of the modules that must lie near the middle one for it to speak of all."""
_MAD: Final = 1.4826
"""Standard deviations in a median absolute deviation of normal values."""

Array = npt.NDArray[np.float64]


class State(Struct, frozen=True):
    """The machine of the run after against that of the run before."""

    machine: Machine | None
    names: tuple[str, ...] = ()
    """The modules whose work did not change."""
    spread: float = 0.0
    """How much their factors differ from each other beyond what their steps vary: a standard deviation."""
    pace: tuple[Array, Array] | None = None
    """How slow the machine was in each step of each run, 1 in a mean step of the run before."""

    @property
    def off(self) -> float:
        """By how much a shared machine differs; 0 of others, whose speed is a part of what is compared."""
        if self.machine is None or not self.machine.shared:
            return 0.0
        # As far one way as the other, for runs that are swapped.
        return max(self.machine.factor, 1 / self.machine.factor) - 1


def state(
    before: Mapping[str, Module], after: Mapping[str, Module], guide: tuple[Array, Array], noise: float,
    *, shared: bool,
) -> State:  # fmt: skip
    """Return how much longer equal work took, and how evenly.

    One changed module does not move the middle of many. A change of all by one factor is the machine, its
    clock or settings. `noise`: the share by which runs of one program differ on one machine.
    """
    both = {name: (before[name], after[name]) for name in before if name in after}
    rows = {
        name: (was.time, now.time)
        for name, (was, now) in both.items()
        if was.time is not None and now.time is not None and was.time.mean() > 0 and now.time.mean() > 0
        and was.signature == now.signature and abs(was.flops.mean() - now.flops.mean()) < 0.5
    }  # fmt: skip
    whole = sum(float(was.mean()) for was, _ in rows.values())
    rows = {name: pair for name, pair in rows.items() if pair[0].mean() >= LEAST_SHARE * whole}
    if len(rows) < LEAST or min(map(len, guide)) < 2:
        return State(None)
    was = np.array([pair[0] for pair in rows.values()])
    now = np.array([pair[1] for pair in rows.values()])
    ratios = np.log(now.mean(axis=1) / was.mean(axis=1))
    middle = float(np.median(ratios))
    # The middle one of each step: what one module does by itself does not move it.
    means = was.mean(axis=1)[:, None]
    paces = [np.median(times / means, axis=0) for times in (was, now)]
    usual = float(paces[0].mean())
    if usual <= 0 or min(float(pace.min()) for pace in paces) <= 0:
        return State(None)
    pace = (paces[0] / usual, paces[1] / usual)
    # All of them together vary as the machine does; each by itself beyond that.
    tried = [
        np.vstack([times / each, times.sum(axis=0)]) for times, each in zip((was, now), pace, strict=True)
    ]
    error = intervals([Pair(tried[0], tried[1], guide, np.zeros(len(was) + 1))])[0].error
    of_modules = error[:-1] / means[:, 0]
    spread = _MAD * float(np.median(np.abs(ratios - middle)))
    spread = max(0.0, spread**2 - float(np.median(of_modules)) ** 2) ** 0.5
    sure = APART * float(error[-1] / now.sum(axis=0).mean())
    factor = float(np.exp(middle))
    near = np.abs(ratios - middle) <= max(abs(middle) / 2, noise)
    alike = float(near.mean()) >= ALIKE
    apart = abs(middle) > max(noise, sure)
    if apart and not alike and not shared:
        # Some modules changed, not the device: each is judged by itself.
        return State(Machine(factor, len(rows), shared, apart=False, alike=False))
    machine = Machine(factor, len(rows), shared, apart, alike)
    return State(machine, tuple(rows), spread, pace)


def module_judges(
    rows: Rows,
    was: Mapping[str, Module],
    now: Mapping[str, Module],
    machine: State,
    floor: Floor,
    scale: float,
) -> list[Callable[[], ModuleChange]]:
    """Add a row for each module's time and FLOPs and return what judges them.

    `scale`: what FLOPs after are times, for as much work as before.
    """
    counts = [len(guide) for guide in rows.guide]
    if not all(counts):
        return []
    judges: list[Callable[[], ModuleChange]] = []
    for name in {**was, **now}:
        pair = was.get(name), now.get(name)
        # A module that does not run takes no time.
        times = [
            np.zeros(n) if module is None else module.time for module, n in zip(pair, counts, strict=True)
        ]
        work = [
            np.zeros(n) if module is None else module.flops for module, n in zip(pair, counts, strict=True)
        ]
        wide, pace = floor.of(times[0], times[1]), None
        if name in machine.names:
            wide = floor.share_of(floor.noise + VOUCHED * machine.spread, times[0], times[1])
            pace = None if machine.pace is None else (machine.pace[0], machine.pace[1] * scale)
        time = rows.timed(name, times[0], times[1], wide, pace=pace)
        flops = rows.exact(name, *work, unit="FLOP", scale=scale)
        formats = None
        if pair[0] and pair[1] and pair[0].formats != pair[1].formats:
            formats = pair[0].formats, pair[1].formats
        judges.append(partial(_module_change, name, time, flops, formats))
    return judges


def _module_change(name: str, time: Judge, flops: Judge, formats: tuple[str, str] | None) -> ModuleChange:
    return ModuleChange(name, time(), flops(), formats)
