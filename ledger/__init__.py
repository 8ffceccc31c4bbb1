"""The shared record: measurements, findings, and how both lie on disk.

It may import nothing of ours.
Start reading in `records.record`.
"""

from typing import TYPE_CHECKING

from shardtoll.ledger.lazy import exports

if TYPE_CHECKING:
    from shardtoll.ledger.disk.run_reader import read_run as read_run
    from shardtoll.ledger.disk.run_writer import RankWriter as RankWriter
    from shardtoll.ledger.records.errors import CheckFailed as CheckFailed
    from shardtoll.ledger.records.errors import FabricError as FabricError
    from shardtoll.ledger.records.errors import Interrupted as Interrupted
    from shardtoll.ledger.records.errors import RunFolderError as RunFolderError
    from shardtoll.ledger.records.errors import SchemaError as SchemaError
    from shardtoll.ledger.records.errors import ShardtollError as ShardtollError
    from shardtoll.ledger.records.errors import TraceError as TraceError
    from shardtoll.ledger.records.errors import UsageError as UsageError
    from shardtoll.ledger.records.event import DeviceOp as DeviceOp
    from shardtoll.ledger.records.finding import KINDS as KINDS
    from shardtoll.ledger.records.finding import Cause as Cause
    from shardtoll.ledger.records.finding import Confidence as Confidence
    from shardtoll.ledger.records.finding import Evidence as Evidence
    from shardtoll.ledger.records.finding import Figure as Figure
    from shardtoll.ledger.records.finding import Finding as Finding
    from shardtoll.ledger.records.finding import Occurrence as Occurrence
    from shardtoll.ledger.records.finding import Remedy as Remedy
    from shardtoll.ledger.records.finding import Rows as Rows
    from shardtoll.ledger.records.finding import Severity as Severity
    from shardtoll.ledger.records.finding import Where as Where
    from shardtoll.ledger.records.finding import ranked as ranked
    from shardtoll.ledger.records.record import PHASES as PHASES
    from shardtoll.ledger.records.record import Collective as Collective
    from shardtoll.ledger.records.record import Compute as Compute
    from shardtoll.ledger.records.record import Count as Count
    from shardtoll.ledger.records.record import Group as Group
    from shardtoll.ledger.records.record import Notice as Notice
    from shardtoll.ledger.records.record import Run as Run
    from shardtoll.ledger.records.record import Step as Step
    from shardtoll.ledger.records.stall import STALL_KINDS as STALL_KINDS
    from shardtoll.ledger.records.stall import Leadup as Leadup
    from shardtoll.ledger.records.stall import Stall as Stall
    from shardtoll.ledger.records.step_rows import StepRows as StepRows
    from shardtoll.ledger.records.value import SKETCH_COLUMNS as SKETCH_COLUMNS
    from shardtoll.ledger.records.value import VALUE_KINDS as VALUE_KINDS
    from shardtoll.ledger.records.value import Parameter as Parameter
    from shardtoll.ledger.records.value import Value as Value
    from shardtoll.ledger.report.report import SCHEMA_VERSION as SCHEMA_VERSION
    from shardtoll.ledger.report.report import FabricInfo as FabricInfo
    from shardtoll.ledger.report.report import Report as Report
    from shardtoll.ledger.report.report import analyze as analyze
    from shardtoll.ledger.tables.ledger import Ledger as Ledger
    from shardtoll.ledger.tables.ledger import merge as merge
else:
    __getattr__, __dir__ = exports(
        __name__,
        {
            "disk.run_reader": "read_run",
            "disk.run_writer": "RankWriter",
            "records.event": "DeviceOp",
            "records.errors": "CheckFailed FabricError Interrupted RunFolderError SchemaError "
            "ShardtollError TraceError UsageError",
            "records.finding": "KINDS Cause Confidence Evidence Figure Finding Occurrence Remedy Rows "
            "Severity Where ranked",
            "records.record": "PHASES Collective Compute Count Group Notice Run Step",
            "records.stall": "STALL_KINDS Leadup Stall",
            "records.step_rows": "StepRows",
            "records.value": "SKETCH_COLUMNS VALUE_KINDS Parameter Value",
            "report.report": "SCHEMA_VERSION FabricInfo Report analyze",
            "tables.ledger": "Ledger merge",
        },
    )
