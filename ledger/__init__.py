"""The shared record: what was measured, what was found, and how both lie on disk."""

from shardtoll.ledger.device_op import DeviceOp
from shardtoll.ledger.errors import (
    CheckFailed,
    FabricError,
    Interrupted,
    RunFolderError,
    SchemaError,
    ShardtollError,
    TraceError,
    UsageError,
)
from shardtoll.ledger.finding import KINDS, Confidence, Evidence, Finding, Remedy, Severity, Where
from shardtoll.ledger.ledger import Ledger, merge
from shardtoll.ledger.record import (
    PHASES,
    Collective,
    Compute,
    Count,
    Group,
    Notice,
    Run,
    Step,
    StepRows,
)
from shardtoll.ledger.report import SCHEMA_VERSION, FabricInfo, Report, analyze
from shardtoll.ledger.stall import STALL_KINDS, Leadup, Stall
from shardtoll.ledger.store import RankWriter, read_run
from shardtoll.ledger.value import SKETCH_COLUMNS, VALUE_KINDS, Parameter, Value

__all__ = [
    "KINDS",
    "PHASES",
    "SCHEMA_VERSION",
    "SKETCH_COLUMNS",
    "STALL_KINDS",
    "VALUE_KINDS",
    "CheckFailed",
    "Collective",
    "Compute",
    "Confidence",
    "Count",
    "DeviceOp",
    "Evidence",
    "FabricError",
    "FabricInfo",
    "Finding",
    "Group",
    "Interrupted",
    "Leadup",
    "Ledger",
    "Notice",
    "Parameter",
    "RankWriter",
    "Remedy",
    "Report",
    "Run",
    "RunFolderError",
    "SchemaError",
    "Severity",
    "ShardtollError",
    "Stall",
    "Step",
    "StepRows",
    "TraceError",
    "UsageError",
    "Value",
    "Where",
    "analyze",
    "merge",
    "read_run",
]
