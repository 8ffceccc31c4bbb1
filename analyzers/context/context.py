"""The input of every analysis: the ledger's tables as frames, the fabric, and the steps that count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from shardtoll.analyzers.context.align import align
from shardtoll.analyzers.context.as_watched import (
    computes_as_watched,
    exposed_as_watched,
    stalls_as_watched,
    surveyed_on_device,
)
from shardtoll.analyzers.context.clocks import Clocks, estimate
from shardtoll.analyzers.context.divided import divided
from shardtoll.analyzers.context.fill import add_busbw, add_floors, add_waits
from shardtoll.analyzers.context.held import places as places_from_root
from shardtoll.analyzers.context.match import Matches, match
from shardtoll.analyzers.context.refuted import Refuted, refute
from shardtoll.analyzers.roofline import Cost, Fabric, Placement, sizes_note
from shardtoll.analyzers.shared.memo import Memo, once
from shardtoll.analyzers.shared.tally import codes, keep
from shardtoll.ledger import Group, Ledger
from shardtoll.ledger.records.levels import (
    alike_steps,
    exposure_doubted,
    exposure_told,
    surveyed_steps,
    timed_steps,
)


@dataclass(frozen=True, slots=True)
class Context:
    """The input of an analysis; nothing in it may be changed."""

    ledger: Ledger
    """As it came, findings made while the job ran included."""
    fabric: Fabric
    collectives: pd.DataFrame
    """The ledger's table with wait, transfer, busbw and floor filled in; refuted floors are left out. Further
    columns: group_id, match_id, expected_latency_ns (the part of expected_ns that is latency), cost_id,
    arrival_ns, skew_ns, torn and `net`. `net` is the group's name for readers, as `mesh dim tp`, or `group 3`
    if it has no mesh dimension."""
    costs: tuple[Cost, ...]
    """The fabric's cost of each kind of collective; `cost_id` of the collectives is an index into it."""
    places: tuple[Placement, ...]
    """Positions of the ranks of each of `costs`, and how many groups share their network cards."""
    computes: pd.DataFrame
    step_rows: pd.DataFrame
    """The ledger's table, its steps as they are without a survey: see `divided`."""
    counts: pd.DataFrame
    notices: pd.DataFrame
    stalls: pd.DataFrame
    leadups: pd.DataFrame
    values: pd.DataFrame
    matches: Matches
    clocks: Clocks
    """Which ranks share a clock, and how far the clocks are apart."""
    refuted: tuple[Refuted, ...]
    """Floors that the job's own transfers lie below; the collectives do not have them."""
    steps: tuple[int, ...]
    """Numbers of the steps that at least one rank finished, surveyed or watched. Counts and bytes of what
    collectives alone tell are means over these."""
    alike: tuple[int, ...]
    """Those of them that all their ranks surveyed, or all watched; all steps where there are none such. In
    others the ranks that watched wait for the capture of those that surveyed. So waiting and transfer speeds
    are taken from these."""
    timed: tuple[int, ...]
    """Those of `alike` whose times are truest: the ones that all ranks watched, or all where there are none.
    The bars show these steps, and times are means over them, so that tolls are parts of the bars. A surveyed
    step is slower, and the first one sets things up."""
    surveyed: tuple[int, ...]
    """Those of them that all their ranks surveyed. Findings from operators, fingerprints, copies or idle time
    are means over these: watched steps record none of them."""
    step_ns: float | None
    """Mean duration of a step on the slowest rank, capture's own work left out; None without steps.

    Only steps that all ranks watched, if there are any. Capture hardly slows those, and they exclude the
    first step, which sets things up. A toll from surveyed steps may stand against it as a duration, not as a
    share: surveyed steps take longer."""
    memo: Memo = field(default_factory=dict, repr=False, compare=False)
    """Values that `once` has made of this context."""

    @property
    def parameters(self) -> pd.DataFrame:
        """The parameters that a check was to look at; `model` has all that are on record."""
        return _checked(self)

    @property
    def model(self) -> pd.DataFrame:
        """All parameters on record, also those of a run without checks."""
        return _model(self)

    @property
    def in_steps(self) -> pd.DataFrame:
        """The collectives inside steps; all others cost no step anything."""
        return _in_steps(self)

    @property
    def in_alike(self) -> pd.DataFrame:
        """The collectives inside the steps whose waiting can be compared: see `alike`."""
        return _in_alike(self)

    @property
    def in_timed(self) -> pd.DataFrame:
        """The collectives inside the steps whose times are truest: see `timed`."""
        return _in_timed(self)

    @property
    def in_surveyed(self) -> pd.DataFrame:
        """The collectives inside the surveyed steps, exposed as long as in watched ones: see `as_watched`."""
        return _in_surveyed(self)

    def tells(self, column: str) -> bool:
        """Return whether any collective inside the surveyed steps has a value in this column of the table."""
        return bool(self.in_surveyed[column].notna().any())

    @property
    def computes_in_steps(self) -> pd.DataFrame:
        """The operators inside the surveyed steps; in others they are on record of some ranks at most."""
        return _computes(self)

    @property
    def priced_computes(self) -> pd.DataFrame:
        """The same operators, for as long as they take in watched steps: see `as_watched`."""
        return _priced(self)

    @property
    def stalls_in_steps(self) -> pd.DataFrame:
        """Lost time inside the steps, as traces tell of it; without what surveying them adds to it."""
        return _stalls(self)

    @property
    def slowed_ranks(self) -> frozenset[int]:
        """The ranks of accelerators whose idle time is known of surveyed steps only, with the survey's in it.

        A survey slows the host that launches kernels, so that the device waits. How much of these ranks' idle
        time is the job's own is unknown.
        """
        rows = self.parts_rows
        if not surveyed_on_device(self.ledger):
            return frozenset()
        with_it = (rows["level"] == "survey") & (rows["idle_ns"] > 0) & (rows["capture_ns"] == 0)
        return frozenset(int(rank) for rank in rows.loc[with_it, "rank"])

    @property
    def surveyed_rows(self) -> pd.DataFrame:
        """The rows of the surveyed steps: those whose parts are all known."""
        return _surveyed(self)

    @property
    def parts_rows(self) -> pd.DataFrame:
        """The rows whose parts are those of steps without a survey: each rank's watched steps if they are
        divided, else its surveyed ones."""
        return _parts(self)

    @property
    def timed_rows(self) -> pd.DataFrame:
        """The rows of the steps whose times are truest: see `timed`."""
        return _timed(self)

    @property
    def told_rows(self) -> pd.DataFrame:
        """Those of `timed_rows` that tell how long communication was exposed; see `ledger.records.levels`."""
        return _told(self)

    def telling(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return those of some steps' rows that tell how long communication was exposed."""
        telling_steps = exposure_told(self.ledger.tables)
        if telling_steps.num_rows == self.ledger.tables["steps"].num_rows:
            return rows
        return keep(rows, _among(rows, telling_steps))

    def shown(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return those of some rows that are of the steps that the bars show: see `timed`."""
        return keep(rows, rows["step"].isin(self.timed))

    def in_part(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return those of some steps' rows whose exposed communication is a lower bound or unknown."""
        return keep(rows, _among(rows, exposure_doubted(self.ledger.tables)))

    @property
    def on_cpu(self) -> bool:
        """Whether ranks compute and communicate on the same cores, so that each delays the other.

        A device without a name is unknown, and no CPU: recordings without device work say `cpu`.
        """
        run = self.ledger.run
        return run.device == "cpu" or (run.device is None and "gloo" in (run.backend or ""))

    def fabric_words(self, places: npt.NDArray[np.int64]) -> str:
        """Return the fabric and what its prices rest on, for a finding on the collectives at these places.

        It warns of sizes of their groups that the fabric did not time, not of the job's other ones.
        """
        sizes = np.unique(_group_sizes(self)[places])
        note = sizes_note(self.fabric, sizes.tolist())
        whole = f"{self.fabric.name}: {self.fabric.provenance}"
        return f"{whole}; {note}" if note else whole

    @property
    def serves(self) -> bool:
        """Whether the job is inference: what is advised then is none of what a training loop can do."""
        return self.ledger.run.workload == "inference"

    def share(self, time_ns: float | None, steps: Sequence[int]) -> float | None:
        """Return a time, per step of `steps`, as a share of those very steps; None if either is unknown.

        Never above one: a time on one rank may hold waiting for capture on another.
        """
        lasted = self.lasted_ns(steps)
        return None if time_ns is None or not lasted else min(1.0, time_ns / lasted)

    def share_as_watched(self, time_ns: float | None) -> float | None:
        """Return a time of surveyed steps, priced as in watched ones, as a share of the latter."""
        lasted = _slowest_ns(self.parts_rows)
        return None if time_ns is None or not lasted else min(1.0, time_ns / lasted)

    def lasted_ns(self, steps: Sequence[int]) -> float | None:
        """Return how long `steps` took, as `step_ns` counts it; None if none of them is on record."""
        return _lasted(self, tuple(steps))

    def place_of(self, cost_id: Any) -> Placement | None:
        """Return where the ranks of a collective with that `cost_id` stand; None unknown."""
        return None if pd.isna(cost_id) else self.places[int(cost_id)]

    @property
    def members(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """The ranks, in order, of the group that a rank knows by a name; by name and rank."""
        return _members(self)

    def groups(self, name: str) -> list[Group]:
        """Return all groups of that name."""
        return [group for group in self.ledger.groups if group.name == name]


def make_context(ledger: Ledger, fabric: Fabric) -> Context:
    """Match the ranks' collectives, fill in what follows from that and the fabric."""
    collectives = ledger.frame("collectives")
    matches = match(ledger, collectives)
    clocks = estimate(ledger.run, collectives, matches)
    aligned = align(ledger.run, collectives, matches, clocks)
    if aligned is not matches:
        matches, clocks = aligned, estimate(ledger.run, collectives, aligned)
    place = places_from_root(collectives, matches, (*ledger.groups, *matches.undescribed), ledger.run)
    waited = add_waits(collectives, matches, clocks, live=ledger.run.source == "live", place=place)
    collectives, costs, places = add_floors(add_busbw(waited), matches, ledger.run, fabric)
    collectives["net"] = _nets(collectives)
    collectives, refuted = refute(collectives)
    step_rows = divided(ledger, ledger.frame("steps"))
    timed = timed_steps(ledger.tables["steps"])
    return Context(
        ledger=ledger,
        fabric=fabric,
        collectives=collectives,
        costs=costs,
        places=places,
        computes=ledger.frame("computes"),
        step_rows=step_rows,
        counts=ledger.frame("counts"),
        notices=ledger.frame("notices"),
        stalls=ledger.frame("stalls"),
        leadups=ledger.frame("leadups"),
        values=ledger.frame("values"),
        matches=matches,
        clocks=clocks,
        refuted=refuted,
        steps=tuple(sorted(int(step) for step in step_rows["step"].unique())),
        alike=alike_steps(ledger.tables["steps"]),
        timed=timed,
        surveyed=surveyed_steps(ledger.tables["steps"]),
        step_ns=_slowest_ns(keep(step_rows, step_rows["step"].isin(timed))),
    )


def _nets(collectives: pd.DataFrame) -> pd.api.extensions.ExtensionArray:
    """Return what a reader calls the group of each row."""
    columns = ["mesh_dim", "group"]
    number, keys = codes(collectives[columns], columns)
    pairs = zip(*(keys[name].tolist() for name in columns), strict=True)
    names = [f"group {group}" if pd.isna(dim) else f"mesh dim {dim}" for dim, group in pairs]
    nets: pd.api.extensions.ExtensionArray = pd.array(names, dtype=pd.StringDtype()).take(number)
    return nets


def _slowest_ns(step_rows: pd.DataFrame) -> float | None:
    """Return the mean duration on the slowest rank, without capture's own work."""
    own_work = step_rows["duration_ns"] - step_rows["capture_ns"]
    durations = own_work.groupby(step_rows["rank"]).mean().to_numpy(dtype=np.float64)
    return float(durations.max()) if len(durations) else None


def _lasted(context: Context, steps: tuple[int, ...]) -> float | None:
    key = (_lasted, steps)
    if key not in context.memo:
        rows = keep(context.step_rows, context.step_rows["step"].isin(steps))
        context.memo[key] = _slowest_ns(rows)
    lasted_ns: float | None = context.memo[key]
    return lasted_ns


@once
def _group_sizes(context: Context) -> npt.NDArray[np.int64]:
    return context.collectives["group_size"].to_numpy(dtype=np.int64)


@once
def _computes(context: Context) -> pd.DataFrame:
    return keep(context.computes, context.computes["step"].isin(context.surveyed))


@once
def _surveyed(context: Context) -> pd.DataFrame:
    return keep(context.step_rows, context.step_rows["step"].isin(context.surveyed))


@once
def _timed(context: Context) -> pd.DataFrame:
    return context.shown(context.step_rows)


@once
def _model(context: Context) -> pd.DataFrame:
    return context.ledger.frame("parameters")


@once
def _checked(context: Context) -> pd.DataFrame:
    # Older records have parameters only if a check was to look at them, and do not say so.
    return keep(context.model, context.model["checked"].fillna(True).astype(bool))


@once
def _parts(context: Context) -> pd.DataFrame:
    rows = context.step_rows
    divided_rows = rows["parts_error_ns"].notna()
    surveyed = rows["step"].isin(context.surveyed) & ~rows["rank"].isin(rows.loc[divided_rows, "rank"])
    return keep(rows, divided_rows | surveyed)


@once
def _stalls(context: Context) -> pd.DataFrame:
    inside = keep(context.stalls, context.stalls["step"].isin(context.steps))
    return stalls_as_watched(context.ledger, inside, context.step_rows)


@once
def _told(context: Context) -> pd.DataFrame:
    return context.telling(context.timed_rows)


def _among(rows: pd.DataFrame, table: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which rows are of a step and rank of the table."""
    if not table.num_rows:
        return np.zeros(len(rows), dtype=np.bool_)
    pairs = table.select(["step", "rank"]).to_pandas().astype("int64")
    places = pd.MultiIndex.from_frame(rows[["step", "rank"]].astype("int64"))
    among: npt.NDArray[np.bool_] = places.isin(pd.MultiIndex.from_frame(pairs))
    return among


@once
def _members(context: Context) -> dict[tuple[str, int], tuple[int, ...]]:
    # One tuple for all ranks of a group: of 16,384 ranks each would hold 16,384 numbers of its own.
    return {
        (group.name, rank): ranks
        for group in context.ledger.groups
        for ranks in [tuple(sorted(group.ranks))]
        for rank in ranks
    }


@once
def _in_steps(context: Context) -> pd.DataFrame:
    inside = context.collectives["step"].isin(context.steps)
    return context.collectives if inside.all() else keep(context.collectives, inside)


@once
def _in_alike(context: Context) -> pd.DataFrame:
    return _some(context.in_steps, context.alike, context.steps)


@once
def _in_timed(context: Context) -> pd.DataFrame:
    return _some(context.in_alike, context.timed, context.alike)


def _some(frame: pd.DataFrame, steps: Sequence[int], of: Sequence[int]) -> pd.DataFrame:
    """Return the rows of `frame`, which are of the steps `of`, that are of `steps` among these."""
    return frame if len(steps) == len(of) else keep(frame, frame["step"].isin(steps))


@once
def _in_surveyed(context: Context) -> pd.DataFrame:
    frame = context.in_steps
    if len(context.surveyed) == len(context.steps):
        return frame
    watched = set(context.alike) - set(context.surveyed)
    return exposed_as_watched(frame, context.surveyed, sorted(watched))


@once
def _priced(context: Context) -> pd.DataFrame:
    return computes_as_watched(
        context.computes_in_steps, context.step_rows, context.parts_rows, context.surveyed
    )
