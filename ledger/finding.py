"""Findings: what an analysis has to say, with its evidence and what to do about it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

Severity = Literal["error", "warning", "info"]
"""error: results or the report are wrong. warning: time is lost. info: a choice worth knowing."""

Confidence = Literal["certain", "likely", "possible"]

KINDS: Final[dict[str, str]] = {
    "implicit-redistribute": "communication",
    "redundant-collective": "communication",
    "sync-every-microbatch": "communication",
    "latency-bound": "communication",
    "below-roofline": "communication",
    "exposed-communication": "communication",
    "serialized-collectives": "communication",
    "cross-node-traffic": "communication",
    "wide-dtype": "communication",
    "straggler": "communication",
    "duplicated-compute": "compute",
    "duplicated-data": "compute",
    "recompute": "compute",
    "wrong-gradient": "correctness",
    "replica-drift": "correctness",
    "unsynced-parameter": "correctness",
    "pipeline-bubble": "schedule",
    "pipeline-imbalance": "schedule",
    "data-stall": "schedule",
    "host-sync": "schedule",
    "transfer-stall": "schedule",
    "checkpoint-stall": "schedule",
    "unattributed-time": "trust",
    "unmatched-collectives": "trust",
    "incomplete-input": "trust",
    "clock-skew": "trust",
}
"""The closed list: kind -> family. A new kind comes with its analyzer, a test and a docs line."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One checkable fact: a label and a value with its unit."""

    label: str
    value: int | float | str | None
    unit: str | None = None
    """`ns`, `bytes`, `GB/s`, `FLOP`, `x`, ... None for plain text and counts."""

    def __post_init__(self) -> None:
        if isinstance(self.value, float) and not math.isfinite(self.value):
            raise ValueError(
                f"evidence {self.label!r} is {self.value}: say what that means in words, or None"
            )


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to change. A saving is only claimed against `counterfactual`."""

    text: str
    code: str | None = None
    """Code to write, where there is a short one."""
    counterfactual: str | None = None
    """What the saving is measured against, as `the same step without this all_gather`."""


@dataclass(frozen=True, slots=True)
class Where:
    """The place a finding speaks of; None where it does not apply or is not known."""

    phase: str | None = None
    module: str | None = None
    parameter: str | None = None
    op: str | None = None
    source: str | None = None
    group: str | None = None
    mesh_dim: str | None = None

    @classmethod
    def of_parameter(
        cls,
        name: str,
        *,
        phase: str | None = None,
        op: str | None = None,
        source: str | None = None,
        group: str | None = None,
        mesh_dim: str | None = None,
    ) -> Where:
        """Return the place of a parameter or buffer by its name, in the module that holds it."""
        module = name.rpartition(".")[0]
        return cls(phase, module, name, op, source, group, mesh_dim)

    def label(self) -> str:
        """Return the most telling part in few words: source line, else parameter, module, group."""
        for value in (self.source, self.parameter, self.module):
            if value:
                return value
        if self.mesh_dim or self.group:
            return f"group {self.mesh_dim or self.group}"
        return self.op or "whole step"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the bill. Times and bytes are per step, each on the rank where it is largest."""

    kind: str
    severity: Severity
    title: str
    """One plain sentence with the numbers that matter."""
    toll_ns: int | None
    """What it costs per step, on the rank where that is most: exposed plus duplicated compute; None unknown.

    Findings may cost most on different ranks, so their tolls do not add up to one rank's step."""
    floor_ns: int | None
    """The least the fabric allows for what is really needed; None unknown or not applicable."""
    saving_ns: int | None
    """Upper bound of the gain per step against the remedy's counterfactual; never above the toll."""
    bytes: int | None
    """Message bytes per step and rank; None where none are involved."""
    count: int
    """How many times per step and rank; what happens less than once a step counts 1."""
    ranks: tuple[int, ...]
    """Ranks it was seen on."""
    where: Where = field(default_factory=Where)
    evidence: tuple[Evidence, ...] = ()
    remedy: Remedy | None = None
    confidence: Confidence = "certain"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown finding kind {self.kind!r}")
        if self.severity not in get_args(Severity):
            raise ValueError(f"unknown severity {self.severity!r}")
        if self.confidence not in get_args(Confidence):
            raise ValueError(f"unknown confidence {self.confidence!r}")
        for name in ("toll_ns", "floor_ns", "saving_ns", "bytes", "count"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{self.kind}: {name} {value} < 0")
        if self.saving_ns is not None and (self.toll_ns is None or self.saving_ns > self.toll_ns):
            raise ValueError(f"{self.kind}: saving {self.saving_ns} ns above toll {self.toll_ns} ns")

    @property
    def family(self) -> str:
        """communication, compute, correctness, schedule or trust."""
        return KINDS[self.kind]
