"""The report: a run, its steps and collectives, and the findings, in one object and one JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from shardtoll.ledger import table_decode
from shardtoll.ledger.codec import (
    finding_from_json,
    finding_to_json,
    group_from_json,
    group_to_json,
    run_from_json,
    run_to_json,
)
from shardtoll.ledger.errors import SchemaError, first_line
from shardtoll.ledger.finding import Finding
from shardtoll.ledger.hta_figures import HtaFigures, hta_from_json, hta_to_json
from shardtoll.ledger.ledger import Ledger
from shardtoll.ledger.record import Group, Notice, Run
from shardtoll.ledger.regular import read_regular
from shardtoll.ledger.step_roofline import StepRoofline, roofline_from_json, roofline_to_json
from shardtoll.ledger.table_json import rows_json
from shardtoll.ledger.tables import BEFORE, LATER, SCHEMAS, check, check_values, to_frame, to_records
from shardtoll.ledger.typed import typed
from shardtoll.ledger.wiring import part

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION: Final = 1
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
    """What a run cost and why. Findings stand by toll, dearest first, errors before all."""

    run: Run
    fabric: FabricInfo
    groups: tuple[Group, ...]
    tables: Mapping[str, pa.Table]
    """The ledger's tables; `collectives` with wait, transfer, busbw and floor filled in."""
    findings: tuple[Finding, ...] = field(default=())
    headline: str | None = None
    """Whether the network or a rank is at fault, in one sentence; None where nothing can be said."""
    roofline: StepRoofline | None = None
    """What accelerator and fabric allow the steps; None in reports of earlier versions, or without steps."""
    hta: HtaFigures | None = None
    """What Holistic Trace Analysis says of the traces; None where it was not asked (`--hta`)."""

    def __post_init__(self) -> None:
        for name in SCHEMAS:
            check(name, self.tables[name])

    @property
    def steps(self) -> pd.DataFrame:
        """One row a step and rank: the parts its duration divides into."""
        return to_frame(self.tables["steps"])

    @property
    def collectives(self) -> pd.DataFrame:
        """One row a collective and rank; the columns are the fields of `record.Collective`."""
        return to_frame(self.tables["collectives"])

    @property
    def computes(self) -> pd.DataFrame:
        """One row a matmul-like operator and rank."""
        return to_frame(self.tables["computes"])

    @property
    def stalls(self) -> pd.DataFrame:
        """One row a step, rank and reason for which time was lost; the columns are those of `stall.Stall`."""
        return to_frame(self.tables["stalls"])

    @property
    def leadups(self) -> pd.DataFrame:
        """One row a collective and rank: what the rank did before it joined; see `stall.Leadup`."""
        return to_frame(self.tables["leadups"])

    @property
    def values(self) -> pd.DataFrame:
        """One row a tensor, step and rank that `audit(checks=...)` looked at; see `value.Value`."""
        return to_frame(self.tables["values"])

    @property
    def parameters(self) -> pd.DataFrame:
        """One row a parameter and rank, where `audit(checks=...)` asked for them; see `value.Parameter`."""
        return to_frame(self.tables["parameters"])

    @property
    def device_ops(self) -> pd.DataFrame:
        """One row a step, rank, operator and kind of inputs, as traces tell; see `device_op.DeviceOp`."""
        return to_frame(self.tables["device_ops"])

    @property
    def notices(self) -> list[Notice]:
        """What the capture had to say about itself."""
        return to_records("notices", self.tables["notices"])

    def show(self, width: int | None = None) -> None:
        """Print the ranked bill; `width` in columns, by default the terminal's."""
        part("terminal")(self, width=width)

    def to_wandb(self, run: object = None, step: int | None = None) -> None:
        """Log the bill to a Weights & Biases run, by default the one that `wandb.init()` began.

        Numbers and the table of findings stand at `step`, the page is an artifact of the run. Raises
        UsageError without wandb or a run.
        """
        part("wandb")(self, run, step)

    def to_mlflow(self, run: object = None, step: int | None = None) -> None:
        """Log the bill to an MLflow run (or the id of one), by default the one that is active.

        Numbers stand at `step`; the findings and the page are artifacts. Raises UsageError without
        mlflow or a run.
        """
        part("mlflow")(self, run, step)

    def to_tensorboard(self, writer: object, step: int = 0) -> None:
        """Log the bill for TensorBoard: `writer` is a SummaryWriter, or the folder to write events into.

        Raises UsageError where the folder needs tensorboard, which is not installed.
        """
        part("tensorboard")(self, writer, step)

    def to_json(self) -> str:
        """Return the report as JSON, schema version 1. Unknown is null."""
        return "".join(self.json_pieces())

    def json_pieces(self) -> Iterator[str]:
        """Yield that text in pieces: of a long run it is larger than the report itself."""
        head = {
            "schema_version": SCHEMA_VERSION,
            "run": run_to_json(self.run),
            "fabric": asdict(self.fabric),
            "headline": self.headline,
            "groups": [group_to_json(group) for group in self.groups],
        }
        tail: dict[str, object] = {"findings": [finding_to_json(finding) for finding in self.findings]}
        tail["roofline"] = None if self.roofline is None else roofline_to_json(self.roofline)
        if self.hta is not None:
            tail["hta"] = hta_to_json(self.hta)
        yield _dumps(head)[:-1]
        for name in SCHEMAS:
            yield f",{_dumps(name)}:"
            yield from rows_json(self.tables[name])
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
        try:
            return cls(
                headline=_text_or_none(document.get("headline")),
                hta=None if document.get("hta") is None else hta_from_json(document["hta"]),
                roofline=_roofline(document.get("roofline")),
                run=run_from_json(document["run"]),
                fabric=typed(FabricInfo(**document["fabric"])),
                groups=tuple(group_from_json(group) for group in document["groups"]),
                tables={name: _table_from_json(name, document) for name in SCHEMAS},
                findings=tuple(finding_from_json(finding) for finding in document["findings"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, pa.ArrowException) as error:
            raise SchemaError(
                f"{where} is damaged ({error})", "write it again with `-o report.json`"
            ) from error

    @classmethod
    def load(cls, path: Path) -> Report:
        """Return the report in a JSON file; SchemaError when it is none or cannot be read."""
        try:
            text = read_regular(path, MOST_BYTES).decode()
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
        html: str = part("notebook")(self)
        return html


def _dumps(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _text_or_none(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"headline is {type(value).__name__}, not text")
    return value


def _roofline(value: object) -> StepRoofline | None:
    if value is not None and not isinstance(value, dict):
        raise TypeError(f"roofline is {type(value).__name__}, no object")
    return None if value is None else roofline_from_json(value)


def _read(text: str) -> Any:
    """Return the JSON document, with tables already made of those that can be made at once."""
    try:
        members = table_decode.split(text)
        return {
            name: table_decode.table_of(name, value) if name in SCHEMAS else json.loads(bytes(value))
            for name, value in members.items()
        }
    except (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException):
        # Read again in full, for the words of what is wrong with it.
        return json.loads(text)


def _table_from_json(name: str, document: Mapping[str, object]) -> pa.Table:
    made = document.get(name)
    if isinstance(made, pa.Table):
        check(name, made)
        check_values(name, made)
        return made
    rows = document.get(name, []) if name in LATER else document[name]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{name} is no list of objects")
    earlier = {column: word for column, word in BEFORE.items() if column in SCHEMAS[name].names}
    table = pa.Table.from_pylist([{**earlier, **row} for row in rows], schema=SCHEMAS[name])
    check(name, table)
    check_values(name, table)
    return table


def analyze(ledger: Ledger, fabric: object | None = None) -> Report:
    """Run every analysis over the ledger; `fabric` None lets the analyzers choose one."""
    report: Report = part("analyze")(ledger, fabric)
    return report
