"""Steps as they are without a survey: watched steps divided into parts, surveyed ones without its cost.

A watched step knows how long it took, how long communication was exposed and how long its thread slept. It
does not know how the rest divides into compute, copies and idle time. A surveyed step knows that, but the
survey slows it:

- a survey adds a cost to each operator, measured when the session began. It is scaled so that a surveyed step
  is awake for as long as the watched steps like it. This is `capture_ns`, and is excluded from compute and
  idle time;
- the watched steps' time awake is divided as that of such surveyed steps is, and their time asleep by itself.
  Steps that sleep longer than the surveyed ones are idle for longer; those that compute more are not;
- on an accelerator a survey slows the host and no kernel: a surveyed step takes longer than watched ones like
  it. The difference is idle time that the survey made, as far as its idle time is put down to the host. The
  idle time of a watched step is what remains after compute, copies and exposed communication.

Every figure stays whole: the parts of a row still add up to its duration.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.ledger import Ledger
from shardtoll.ledger.records.levels import exposure_doubted, exposure_told, in_steps, watched_steps

Array = npt.NDArray[np.float64]

LEAST_SCALE: Final = 0.5
MOST_SCALE: Final = 2.0
"""Bounds on what surveying an operator costs, in costs of a tiny one: beyond them steps themselves differ."""

BY_HOST: Final = ("launch", "host", "host-sync")
"""Kinds of lost time that grow with what a survey adds to each operator on the host."""

SPLIT_DOUBT: Final = 0.25
"""Part of the estimated cost of a survey that may stand in the wrong part."""

PARTS: Final = ("compute_ns", "idle_ns", "exposed_copy_ns", "unattributed_ns")
COLUMNS: Final = (*PARTS, "capture_ns", "slowed_compute_ns", "slowed_idle_ns", "parts_error_ns")
"""Columns of a row that are changed."""


def divided(ledger: Ledger, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table of steps with watched rows divided if surveyed ones tell how.

    Rows that no surveyed step speaks for, or whose exposed communication is not known, stay as they are.
    """
    if ledger.run.source != "live" or not (frame["level"] == "watch").any():
        return frame
    watched = _watched(ledger, frame)
    surveyed = (frame["level"] == "survey").to_numpy(dtype=bool) & (
        frame[["compute_ns", "idle_ns", "exposed_copy_ns"]].sum(axis=1) > 0
    ).to_numpy(dtype=bool)
    if not watched.any() or not surveyed.any():
        return frame
    rows = _Rows.of(frame)
    alike = _sequences(ledger, frame)
    on_cpu = ledger.run.device == "cpu"
    host = np.zeros(0) if on_cpu else _host_lost(ledger, frame)
    ranks = frame["rank"].to_numpy(dtype=np.int64)
    for rank in np.unique(ranks[watched]):
        surveyed_rows = np.flatnonzero(surveyed & (ranks == rank))
        if not len(surveyed_rows):
            continue
        light = np.flatnonzero(watched & (ranks == rank))
        if on_cpu:
            rows.rid(surveyed_rows, _settled(rows, surveyed_rows), light, alike)
        else:
            rows.rid_device(surveyed_rows, _settled(rows, surveyed_rows), light, alike, host)
        for sequence in np.unique(alike[light]):
            here = light[alike[light] == sequence]
            like = surveyed_rows[alike[surveyed_rows] == sequence]
            base = _settled(rows, like if len(like) else surveyed_rows)
            if on_cpu:
                rows.divide(here, base)
            else:
                rows.divide_device(here, base)
    return rows.written(frame)


def largest_error_ns(rows: pd.DataFrame) -> float:
    """Return how far compute and idle time per step may be off, on the worst of these steps' ranks that are
    divided; 0 if none is: then both were measured."""
    divided_rows = rows.dropna(subset=["parts_error_ns"])
    return float(divided_rows.groupby("rank")["parts_error_ns"].mean().max()) if len(divided_rows) else 0.0


def _watched(ledger: Ledger, frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which rows are of watched steps that know all of their exposed communication."""
    numbers = watched_steps(ledger.tables["steps"])
    exposed_steps = in_steps(exposure_told(ledger.tables), numbers).select(["step", "rank"]).to_pandas()
    part = in_steps(exposure_doubted(ledger.tables), numbers).select(["step", "rank"]).to_pandas()
    places = pd.MultiIndex.from_frame(frame[["step", "rank"]].astype("int64"))
    divisible = places.isin(pd.MultiIndex.from_frame(exposed_steps)) & ~places.isin(
        pd.MultiIndex.from_frame(part)
    )
    light: npt.NDArray[np.bool_] = divisible & (frame["level"] == "watch").to_numpy(dtype=bool)
    return light


def _host_lost(ledger: Ledger, frame: pd.DataFrame) -> Array:
    """Return the idle time of each row that is put down to its host."""
    stalls = ledger.tables["stalls"].select(["step", "rank", "kind", "lost_ns"]).to_pandas()
    stalls = stalls.loc[stalls["kind"].isin(BY_HOST) & stalls["step"].notna()]
    sums = stalls.astype({"step": "int64", "rank": "int64"}).groupby(["step", "rank"])["lost_ns"].sum()
    places = pd.MultiIndex.from_frame(frame[["step", "rank"]].astype("int64"))
    lost: Array = sums.reindex(places).fillna(0).to_numpy(dtype=np.float64)
    return lost


def _sequences(ledger: Ledger, frame: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return a number for each row, equal if steps issued as many collectives and bytes."""
    calls = ledger.tables["collectives"].group_by(["step", "rank"])
    sums = calls.aggregate([("message_bytes", "sum"), ([], "count_all")]).to_pandas()
    joined = frame[["step", "rank"]].astype("int64").merge(sums.dropna(subset=["step"]), how="left")
    signature = joined[["count_all", "message_bytes_sum"]].fillna(0)
    numbers, _ = pd.factorize(pd.MultiIndex.from_frame(signature))
    sequences: npt.NDArray[np.int64] = numbers.astype(np.int64)
    return sequences


def _settled(rows: _Rows, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the places without the run's first step, which sets things up, where there are others."""
    later = places[rows.step[places] > rows.step.min()]
    return later if len(later) else places


class _Rows(Struct, frozen=True):
    """The columns of the steps' table that are read or changed, as numbers; NaN unknown."""

    step: npt.NDArray[np.int64]
    duration: Array
    exposed: Array
    asleep: Array
    """Time asleep, not for a collective."""
    compute: Array
    idle: Array
    copy: Array
    rest: Array
    """Unattributed, without capture."""
    capture: Array
    slowed_compute: Array
    slowed_idle: Array
    error: Array

    @classmethod
    def of(cls, frame: pd.DataFrame) -> _Rows:
        def column(name: str) -> Array:
            values: Array = frame[name].to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
            return values

        capture, exposed = column("capture_ns"), column("exposed_comm_ns")
        rest = column("unattributed_ns") - capture
        return cls(
            step=frame["step"].to_numpy(dtype=np.int64),
            duration=column("duration_ns"),
            exposed=exposed,
            asleep=np.maximum(0.0, column("asleep_ns") - exposed),
            compute=column("compute_ns"),
            idle=column("idle_ns"),
            copy=column("exposed_copy_ns"),
            rest=rest,
            capture=capture,
            slowed_compute=column("slowed_compute_ns"),
            slowed_idle=column("slowed_idle_ns"),
            error=np.full(len(frame), np.nan),
        )

    def own(self, places: npt.NDArray[np.int64]) -> Array:
        """Return the time that is neither capture's nor exposed communication."""
        own_ns: Array = np.maximum(0.0, (self.duration - self.capture - self.exposed)[places])
        return own_ns

    def awake(self, places: npt.NDArray[np.int64]) -> Array:
        """Return how much of that the thread was awake; all of it if that is unknown."""
        own_ns = self.own(places)
        awake: Array = np.subtract(own_ns, np.minimum(own_ns, np.nan_to_num(self.asleep[places])))
        return awake

    def rid(
        self,
        told: npt.NDArray[np.int64],
        settled: npt.NDArray[np.int64],
        light: npt.NDArray[np.int64],
        alike: npt.NDArray[np.int64],
    ) -> None:
        """Scale what surveying a rank's operators cost, so that `settled` steps take what watched ones do."""
        slowed = np.nan_to_num(self.slowed_compute + self.slowed_idle)
        cost = float(slowed[settled].mean())
        if cost <= 0:
            return
        like = light[np.isin(alike[light], alike[settled])]
        if not len(like):
            like = light
        surplus = float(self.awake(settled).mean() + cost - np.median(self.awake(like)))
        # Watched steps that take longer than surveyed ones would do so without a survey, too.
        scale = min(MOST_SCALE, surplus / cost) if surplus >= LEAST_SCALE * cost else 1.0
        # Never more than there is.
        awake = np.maximum(0.0, self.idle[told] - np.nan_to_num(self.asleep[told]))
        slowed_compute, slowed_idle = self.slowed_compute[told], self.slowed_idle[told]
        compute = np.minimum(scale * slowed_compute, self.compute[told] + slowed_compute)
        idle = np.minimum(scale * slowed_idle, awake + slowed_idle)
        compute, idle = np.nan_to_num(compute), np.nan_to_num(idle)
        more_compute = compute - np.nan_to_num(slowed_compute)
        more_idle = idle - np.nan_to_num(slowed_idle)
        self.compute[told] -= more_compute
        self.idle[told] -= more_idle
        self.capture[told] += more_compute + more_idle
        self.slowed_compute[told], self.slowed_idle[told] = compute, idle

    def rid_device(
        self,
        told: npt.NDArray[np.int64],
        settled: npt.NDArray[np.int64],
        light: npt.NDArray[np.int64],
        alike: npt.NDArray[np.int64],
        host: Array,
    ) -> None:
        """Take out of idle time what surveyed steps of a device take longer than watched ones like them.

        `host`: idle time that is put down to the host, of each row; a survey makes no other. The first step
        loses no more than later ones do: what else it takes longer, as setting things up, is its own.
        """
        cost = np.zeros(len(self.idle))
        for place in told:
            like = light[alike[light] == alike[place]]
            usual = float(np.median(self.own(like if len(like) else light)))
            surplus = float(self.own(np.array([place]))[0]) - usual
            cost[place] = min(max(0.0, surplus), host[place], self.idle[place])
        first = np.setdiff1d(told, settled)
        if len(settled):
            cost[first] = np.minimum(cost[first], cost[settled].max())
        self.idle[told] -= cost[told]
        self.capture[told] += cost[told]

    def divide(self, here: npt.NDArray[np.int64], base: npt.NDArray[np.int64]) -> None:
        """Divide watched steps of a host that computes as the `base` steps divide."""
        parts = np.array([self.idle, self.compute, self.copy, self.rest])[:, base].mean(axis=1).clip(0)
        if not parts.any():
            # All of their time was the survey's: nothing tells how these divide.
            return
        left = float(np.minimum(np.nan_to_num(self.asleep[base]), self.own(base)).mean())
        asleep = np.zeros(len(parts))
        # Waiting for an earlier step's collective is sleep; then what is idle is, before what computes.
        for part in (3, 0, 2, 1):
            asleep[part] = min(left, parts[part])
            left -= asleep[part]
        if not asleep.any():
            asleep[0] = 1.0
        busy = parts - asleep if parts.sum() > asleep.sum() else parts
        own_ns = self.own(here)
        awake = self.awake(here)
        sleep_is_known = bool(np.isfinite(self.asleep[here]).all() and np.isfinite(self.asleep[base]).all())
        by_part = (
            np.outer(busy / busy.sum(), awake) + np.outer(asleep / asleep.sum(), own_ns - awake)
            if sleep_is_known and busy.sum() > 0
            else np.outer(parts / parts.sum(), own_ns)
        )
        self._set(here, by_part)
        cost = float(np.nan_to_num(self.slowed_compute + self.slowed_idle)[base].mean())
        unexplained = abs(float(self.awake(base).mean() - np.median(awake)))
        spread = float(np.std(self.compute[base])) if len(base) > 1 else 0.0
        doubt = SPLIT_DOUBT * cost + unexplained * _mixed(busy) + spread
        self.error[here] = np.minimum(own_ns, doubt)

    def divide_device(self, here: npt.NDArray[np.int64], base: npt.NDArray[np.int64]) -> None:
        """Divide watched steps of a device: a survey slows its host, not its kernels; the rest is idle."""
        own_ns = self.own(here)
        compute = np.minimum(own_ns, float(self.compute[base].mean()))
        copy = np.minimum(own_ns - compute, float(self.copy[base].mean()))
        self._set(here, np.array([own_ns - compute - copy, compute, copy, np.zeros(len(here))]))
        self.error[here] = np.minimum(own_ns, float(np.std(self.compute[base])))

    def _set(self, here: npt.NDArray[np.int64], by_part: Array) -> None:
        self.idle[here], self.compute[here], self.copy[here], self.rest[here] = by_part

    def written(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the frame with the columns that changed, in whole ns whose sums are as they were."""

        def whole(values: Array) -> pd.arrays.IntegerArray:
            unknown = np.isnan(values)
            return pd.arrays.IntegerArray(np.rint(np.where(unknown, 0, values)).astype(np.int64), unknown)

        part_columns = ["compute_ns", "idle_ns", "exposed_copy_ns", "unattributed_ns"]
        whole_ns = frame[part_columns].sum(axis=1).to_numpy(dtype=np.int64)
        compute, copy, capture = (
            np.rint(values).astype(np.int64) for values in (self.compute, self.copy, self.capture)
        )
        unattributed = np.rint(self.rest).astype(np.int64) + capture
        # Parts keep their sum: idle time takes what rounding leaves.
        idle = whole_ns - compute - copy - unattributed
        compute, idle = compute + np.minimum(0, idle), np.maximum(0, idle)
        changed: dict[str, Any] = {
            "compute_ns": pd.array(compute, dtype="Int64"),
            "idle_ns": pd.array(idle, dtype="Int64"),
            "exposed_copy_ns": pd.array(copy, dtype="Int64"),
            "unattributed_ns": pd.array(unattributed, dtype="Int64"),
            "capture_ns": pd.array(capture, dtype="Int64"),
            "slowed_compute_ns": whole(self.slowed_compute),
            "slowed_idle_ns": whole(self.slowed_idle),
            "parts_error_ns": whole(self.error),
        }
        made: pd.DataFrame = frame.assign(**changed)
        return made


def _mixed(busy: Array) -> float:
    """Return how much a wrong division can matter: nothing if all is one part, a half if two are even."""
    total = float(busy.sum())
    return 1.0 - float(busy.max()) / total if total > 0 else 0.0
