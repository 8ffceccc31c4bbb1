"""The report: a run, its steps and collectives, and the findings, in one object and one JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.answers.hta_figures import HtaFigures
from shardtoll.ledger.answers.overlap import Overlap
from shardtoll.ledger.answers.pipeline import Pipelines
from shardtoll.ledger.answers.step_roofline import StepRoofline, roofline_from_plain
from shardtoll.ledger.answers.traffic import SoundCheck, Traffic
from shardtoll.ledger.answers.unbilled import Unbilled
from shardtoll.ledger.answers.what_if import Foreseen, WhatIf
from shardtoll.ledger.foreign.plain import from_plain, to_plain
from shardtoll.ledger.foreign.regular import read_regular, unzipped
from shardtoll.ledger.records.errors import SchemaError, first_line
from shardtoll.ledger.records.finding import Finding, ranked
from shardtoll.ledger.records.one_cause import of_one_parameter, one_change
from shardtoll.ledger.records.record import Group, Notice, Run
from shardtoll.ledger.records.remedy_key import with_keys
from shardtoll.ledger.report.entry_points import EntryPoint
from shardtoll.ledger.report.older import with_unsplit
from shardtoll.ledger.tables import table_decode
from shardtoll.ledger.tables.equal_ranks import without_repeated
from shardtoll.ledger.tables.ledger import Ledger
from shardtoll.ledger.tables.table_json import rows_json
from shardtoll.ledger.tables.tables import (
    BEFORE,
    DRY,
    LATER,
    NOT_IN_JSON,
    SCHEMAS,
    check,
    check_ranks,
    check_values,
    empty_table,
    to_frame,
    to_records,
)
from shardtoll.ledger.words import human
from shardtoll.ledger.words.names import shortened

if TYPE_CHECKING:
    import pandas as pd

    from shardtoll.ledger.answers.budget import Budget
    from shardtoll.ledger.answers.overrun import BudgetCheck

_T = TypeVar("_T")

SCHEMA_VERSION: Final = 1
_ANSWERS: Final = (
    *("findings", "roofline", "pipelines", "unbilled", "traffic", "sound_checks", "foreseen", "overlaps"),
)
"""Answers of analyses, apart from the tables, in the order of the JSON file."""
MOST_BYTES: Final = 2_000_000_000
"""Bytes of a report file that is read: some 3.5 million collectives; a million take about 570 MB."""


@dataclass(frozen=True, slots=True)
class FabricInfo:
    """Which fabric the floors were computed for, and where its numbers come from."""

    name: str
    provenance: str
    """`measured on this machine ...` or the source of the shipped numbers."""


@dataclass(frozen=True, slots=True)
class Report:
    """The cost of a run, and its causes. Findings stand by severity, then by saving: see `ranked`."""

    run: Run
    fabric: FabricInfo
    groups: tuple[Group, ...]
    tables: Mapping[str, pa.Table]
    """The ledger's tables; `collectives` with wait, transfer, busbw and floor filled in."""
    findings: tuple[Finding, ...] = field(default=())
    headline: str | None = None
    """Whether the network or a rank is at fault, in one sentence; None if neither is known."""
    roofline: StepRoofline | None = None
    """Least time that accelerator and fabric allow the steps; None in reports of earlier versions, or without
    steps."""
    pipelines: Pipelines | None = None
    """The job's pipelines and what their stages lose; None without any, or in reports of earlier versions."""
    unbilled: Unbilled | None = None
    """Time of a rank's step that no finding prices, of the rank with most of it. None if it is a small share,
    or in reports of earlier versions."""
    traffic: tuple[Traffic, ...] = ()
    """Bytes that a step sends, by operation and group; empty without finished steps, or in reports of earlier
    versions."""
    sound_checks: tuple[SoundCheck, ...] = ()
    """Checks that ran and found nothing wrong; empty in reports of earlier versions."""
    foreseen: Foreseen | None = None
    """Result of replaying the first steps: findings and the critical path. None if no step can be replayed,
    or in reports of earlier versions."""
    overlaps: tuple[Overlap, ...] = ()
    """Findings about the same time; empty in reports of earlier versions."""
    hta: HtaFigures | None = None
    """Holistic Trace Analysis of the traces; None if it was not asked for (`--hta`)."""

    def __post_init__(self) -> None:
        # A finding's number on the bill is its place here, so nobody orders them again.
        object.__setattr__(self, "findings", ranked(self.findings))
        for name in SCHEMAS:
            check(name, self.tables[name])
            check_ranks(name, self.tables[name], self.run)
        last = pc.max(self.tables["collectives"].column("group_id")).as_py()
        if last is not None and last >= len(self.groups):
            raise ValueError(f"collectives.group_id holds {last} of {len(self.groups)} groups")

    @property
    def verdict(self) -> str:
        """First sentences of every renderer: errors, or a doubt that ranks train together, then `headline`;
        without all of these the first finding.

        A job that hangs has nothing else to say: what its last steps cost does not matter then.
        """
        errors = [finding for finding in self.findings if finding.severity == "error"]
        if errors:
            hang = next((error for error in errors if error.kind == "hang"), None)
            title = (hang or errors[0]).title.rstrip(".")
            text = f"{human.plural(len(errors), 'error')}{self._of_one_cause(errors)} to fix first: {title}."
            return text if self.headline is None or hang is not None else f"{text} {self.headline}"
        doubt = next((finding for finding in self.findings if finding.doubts_training), None)
        if doubt is not None:
            text = f"To check first: {doubt.title.rstrip('.')}."
            return text if self.headline is None else f"{text} {self.headline}"
        if self.headline is not None:
            return self.headline
        if not self.findings:
            return "Nothing found."
        first = self.findings[0]
        cost = "cost unknown" if first.toll_ns is None else f"{human.duration(first.toll_ns)} per step"
        return f"First on the bill: {first.title.rstrip('.')} ({cost})."

    @staticmethod
    def _of_one_cause(errors: Sequence[Finding]) -> str:
        """Return ` of one cause`, with the parameters if they are several, if one change fixes all errors."""
        causes = of_one_parameter(errors)
        roots = [error for place, error in enumerate(errors) if place not in causes]
        changes = {one_change(error) for error in roots}
        if len(errors) < 2 or (len(roots) > 1 and (len(changes) > 1 or None in changes)):
            return ""
        names = [error.where.parameter for error in roots if error.where.parameter]
        return f" of one cause ({shortened(names)})" if len(set(names)) > 1 else " of one cause"

    @property
    def steps(self) -> pd.DataFrame:
        """One row per step and rank: the parts of its duration."""
        return to_frame(self.tables["steps"])

    @property
    def collectives(self) -> pd.DataFrame:
        """One row per collective and rank; the columns are the fields of `record.Collective`."""
        return to_frame(self.tables["collectives"])

    @property
    def computes(self) -> pd.DataFrame:
        """One row a matmul-like operator and rank."""
        return to_frame(self.tables["computes"])

    @property
    def stalls(self) -> pd.DataFrame:
        """One row per step, rank and reason for lost time; the columns are those of `stall.Stall`."""
        return to_frame(self.tables["stalls"])

    @property
    def leadups(self) -> pd.DataFrame:
        """One row per collective and rank: the rank's work before it joined; see `stall.Leadup`."""
        return to_frame(self.tables["leadups"])

    @property
    def values(self) -> pd.DataFrame:
        """One row a tensor, step and rank that `audit(checks=...)` looked at; see `value.Value`."""
        return to_frame(self.tables["values"])

    @property
    def parameters(self) -> pd.DataFrame:
        """One row per parameter and rank, if `audit(checks=...)` asked for them; see `value.Parameter`."""
        return to_frame(self.tables["parameters"])

    @property
    def device_ops(self) -> pd.DataFrame:
        """One row per step, rank, operator and kind of inputs, from traces; see `event.DeviceOp`."""
        return to_frame(self.tables["device_ops"])

    @property
    def notices(self) -> list[Notice]:
        """Notices of the capture about itself."""
        return to_records("notices", self.tables["notices"])

    def show(self, width: int | None = None) -> None:
        """Print the ranked bill; `width` in columns, by default the terminal's."""
        SHOW.load()(self, width=width)

    def to_wandb(self, run: object = None, step: int | None = None) -> None:
        """Log the bill to a Weights & Biases run, by default the one that `wandb.init()` began.

        Numbers and the table of findings stand at `step`, the page is an artifact of the run. Raises
        UsageError without wandb or a run.
        """
        WANDB.load()(self, run, step)

    def to_mlflow(self, run: object = None, step: int | None = None) -> None:
        """Log the bill to an MLflow run (or the id of one), by default the one that is active.

        Numbers stand at `step`; the findings and the page are artifacts. Raises UsageError without
        mlflow or a run.
        """
        MLFLOW.load()(self, run, step)

    def to_tensorboard(self, writer: object, step: int = 0) -> None:
        """Log the bill for TensorBoard: `writer` is a SummaryWriter, or the folder to write events into.

        Raises UsageError if the folder needs tensorboard, which is not installed.
        """
        TENSORBOARD.load()(self, writer, step)

    def whatif(self, *fixes: int, **changes: Any) -> WhatIf:
        """Return the step after fixing these findings, by number on the bill, and after other changes.

        `changes` are those of `shardtoll whatif`: `without=("all_gather@train.py:12",)`, `network=2.0`,
        `gpu=1.3` or `"b200-sxm"`, `ranks=(3,)`, `fabric="h100x8"`, `dtype="bf16"`, `bucket_bytes=25 << 20`,
        `micro_batches=16`, `batch_ready=True`, `async_copies=True`, `no_recompute=True`, `first=3`. Raises
        UsageError if nothing is asked for or the run cannot be replayed.
        """
        return WHAT_IF.load()(self, fixes, **changes)

    def to_json(self) -> str:
        """Return the report as JSON, schema version 1. Unknown is null."""
        return "".join(self.json_pieces())

    def json_pieces(self) -> Iterator[str]:
        """Yield that text in pieces: of a long run it is larger than the report itself."""
        head = {
            "schema_version": SCHEMA_VERSION,
            "run": to_plain(self.run),
            "fabric": to_plain(self.fabric),
            "headline": self.headline,
            "groups": to_plain(self.groups),
        }
        tail = {name: to_plain(getattr(self, name)) for name in _ANSWERS}
        if self.hta is not None:
            tail["hta"] = to_plain(self.hta)
        yield _dumps(head)[:-1]
        for name in SCHEMAS:
            if name in NOT_IN_JSON or (name in DRY and not self.tables[name].num_rows):
                continue
            yield f",{_dumps(name)}:"
            rows = self.tables[name]
            yield from rows_json(without_repeated(rows) if name == "parameters" else rows)
        yield f",{_dumps(tail)[1:]}"

    @classmethod
    def from_json(cls, text: str, where: str = "report") -> Report:
        """Return the report written by `to_json`; `where` names the input in messages.

        Raises SchemaError when the text is no report or has a newer schema.
        """
        try:
            document = _read(text)
            version = document["schema_version"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SchemaError(
                f"{where} is not a shardtoll report", "write one with `-o report.json`"
            ) from error
        if version != SCHEMA_VERSION:
            raise SchemaError(
                f"{where} has schema version {version}, this shardtoll reads {SCHEMA_VERSION}",
                "upgrade shardtoll, or write the report again with this version",
            )
        roofline = document.get("roofline")
        try:
            return cls(
                headline=_optional(str, document, "headline"),
                hta=_optional(HtaFigures, document, "hta"),
                roofline=None if roofline is None else roofline_from_plain(roofline),
                pipelines=_optional(Pipelines, document, "pipelines"),
                unbilled=_optional(Unbilled, document, "unbilled"),
                traffic=_optional(tuple[Traffic, ...], document, "traffic") or (),
                sound_checks=_optional(tuple[SoundCheck, ...], document, "sound_checks") or (),
                foreseen=_optional(Foreseen, document, "foreseen"),
                overlaps=_optional(tuple[Overlap, ...], document, "overlaps") or (),
                run=from_plain(Run, document["run"]),
                fabric=from_plain(FabricInfo, document["fabric"]),
                groups=from_plain(tuple[Group, ...], document["groups"]),
                tables=_tables_from_json(document),
                findings=_findings(document["findings"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, pa.ArrowException) as error:
            raise SchemaError(
                f"{where} is damaged ({error})", "write it again with `-o report.json`"
            ) from error

    @classmethod
    def load(cls, path: Path) -> Report:
        """Return the report in a JSON file, packed or not; SchemaError if it is none or cannot be read."""
        try:
            data = unzipped(read_regular(path, MOST_BYTES), MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise OSError(f"unpacked, larger than {MOST_BYTES:,} bytes")
            text = data.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise SchemaError(
                f"{path} cannot be read as a report ({first_line(error)})",
                "write one with `-o report.json`, or name the run's folder",
            ) from error
        return cls.from_json(text, str(path))

    def __repr__(self) -> str:
        run, kinds = self.run, [finding.kind for finding in self.findings]
        return f"<Report of {len(run.ranks_seen)}/{run.world_size} ranks, {len(kinds)} findings: {kinds[:5]}>"

    def _repr_html_(self) -> str:
        return NOTEBOOK.load()(self)


def _dumps(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _findings(written: Any) -> tuple[Finding, ...]:
    """Return the findings; those of reports of before get the keys of their remedies."""
    findings = from_plain(tuple[Finding, ...], written)
    remedies = [each.get("remedy") or {"key": None} for each in written]
    return findings if all("key" in remedy for remedy in remedies) else tuple(with_keys(findings))


def _optional(kind: type[_T], document: Mapping[str, object], name: str) -> _T | None:
    data = document.get(name)
    return None if data is None else from_plain(kind, data)


def _read(text: str) -> Any:
    """Return the JSON document, with tables already made of those that can be made at once."""
    try:
        members = table_decode.split(text)
        return {
            name: table_decode.table_of(name, value) if name in SCHEMAS else json.loads(bytes(value))
            for name, value in members.items()
        }
    except (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException):
        # Read again in full, to say in words where it is wrong.
        return json.loads(text)


def _tables_from_json(document: Mapping[str, Any]) -> dict[str, pa.Table]:
    tables = {name: _table_from_json(name, document) for name in SCHEMAS}
    return {**tables, "steps": with_unsplit(tables["steps"])}


def _table_from_json(name: str, document: Mapping[str, object]) -> pa.Table:
    made = document.get(name)
    if isinstance(made, pa.Table):
        check(name, made)
        check_values(name, made)
        return made
    if name not in document and name in LATER:
        return empty_table(name)
    rows = document[name]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{name} is no list of objects")
    earlier = {column: word for column, word in BEFORE.items() if column in SCHEMAS[name].names}
    table = pa.Table.from_pylist([{**earlier, **row} for row in rows], schema=SCHEMAS[name])
    check(name, table)
    check_values(name, table)
    return table


def analyze(ledger: Ledger, fabric: object | None = None) -> Report:
    """Run every analysis over the ledger; `fabric` None lets the analyzers choose one."""
    return ANALYZE.load()(ledger, fabric)


class Analyze(Protocol):
    """Runs every analysis; `fabric` None chooses one."""

    def __call__(self, ledger: Ledger, fabric: Any = None) -> Report:
        """Return the report."""


class Show(Protocol):
    """Prints the report, `width` columns wide."""

    def __call__(self, report: Report, width: int | None = None) -> None:
        """Print it."""


class Track(Protocol):
    """Logs the report to an experiment tracker's run, by default the active one."""

    def __call__(self, report: Report, run: Any = None, step: int | None = None) -> None:
        """Log it."""


class WhatIfs(Protocol):
    """Replays a report's steps with changes."""

    def __call__(
        self,
        report: Report,
        fixes: Sequence[int] = (),
        *,
        first: int | None = None,
        name: str = "the run",
        **asked: Any,
    ) -> WhatIf:
        """Return the step after them."""


class Judge(Protocol):
    """Holds a report to a budget."""

    def __call__(
        self,
        report: Report,
        budget: Budget,
        *,
        run: str = "the run",
        budget_name: str = "the budget",
        allow_unknown: bool = False,
    ) -> BudgetCheck:
        """Return what exceeds the budget."""


ANALYZE: Final = EntryPoint[Analyze]("shardtoll.analyzers.analyses:run")
SHOW: Final = EntryPoint[Show]("shardtoll.dashboards.terminal.terminal:show")
NOTEBOOK: Final = EntryPoint[Callable[[Report], str]]("shardtoll.dashboards.page.notebook:render")
WANDB: Final = EntryPoint[Track]("shardtoll.dashboards.exports.to_wandb:log")
MLFLOW: Final = EntryPoint[Track]("shardtoll.dashboards.exports.to_mlflow:log")
TENSORBOARD: Final = EntryPoint[Callable[[Report, Any, int], None]](
    "shardtoll.dashboards.exports.to_tensorboard:log"
)
JUDGE: Final = EntryPoint[Judge]("shardtoll.analyzers.budget.against_budget:judge")
WHAT_IF: Final = EntryPoint[WhatIfs]("shardtoll.analyzers.whatif.answer:what_if")
BUDGET_LINES: Final = EntryPoint[Callable[["BudgetCheck"], list[str]]](
    "shardtoll.dashboards.check.words:lines"
)
