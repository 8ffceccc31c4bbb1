"""The fitted constants of the forecast, from the packaged data; a fit or a calibration passes its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final

DATA: Final = "shardtoll.analyzers.forecast.data"

START: Final[Mapping[str, float]] = {
    "sustained": 0.9,
    "attention": 0.9,
    "memory": 0.7,
    "host_us": 8.0,
    "step_ms": 10.0,
    "near": 1.4,
    "net": 1.1,
    "call_us": 12.0,
    "staged_us": 0.0,
    "contention": 0.4,
    "tensor_exposed": 0.35,
    "context_exposed": 0.3,
    "expert_exposed": 1.0,
    "expert_gradient": 1.0,
    "send_us": 20.0,
    "selective": 0.5,
    "recompute": 0.9,
    "head": 1.0,
}
"""Values before any fit, and of frameworks that no fit has: the middle of those that were fitted.

`sustained`: share of a kernel's rate that a whole step keeps. `attention`, `memory`: share of the table's
rate, and of memory bandwidth over the table's. `host_us`: host time of one kernel launch. `step_ms`: further
cost of each step. `near`, `net`: factor on times of collectives inside a node and beyond. `call_us`: host and
launch time of a collective. `staged_us`: further host time of a tensor-parallel collective for each rank of
its group, if pipeline stages stand on several nodes. `contention`: cost of overlap, as a share of the shorter
side. `*_exposed`: share of such collectives that overlap does not hide. `expert_gradient`: cost of adding up
an expert's gradient, relative to another parameter's. `selective`, `recompute`: share of a forward that
selective and full checkpointing repeat. `head`: factor on the output projection and the loss."""


@dataclass(frozen=True)
class Constants:
    """Values by dotted name: `host_us.vtrain` stands before `host_us`."""

    values: Mapping[str, float] = field(default_factory=dict)

    def get(self, name: str, *scopes: str) -> float:
        """Return the value of the first scope that has one, else the general one."""
        for scope in scopes:
            value = self.values.get(f"{name}.{scope}")
            if value is not None:
                return value
        value = self.values.get(name)
        return START[name] if value is None else value

    def with_(self, values: Mapping[str, float]) -> Constants:
        """Return the constants with these in place of their own."""
        return Constants({**self.values, **values})


@cache
def _packaged() -> dict[str, Any]:
    text = resources.files(DATA).joinpath("forecast_constants.json").read_text(encoding="utf-8")
    packaged: dict[str, Any] = json.loads(text)
    return packaged


@cache
def fitted() -> Constants:
    """Return the constants that are shipped."""
    return Constants({name: float(value) for name, value in _packaged()["constants"].items()})


@cache
def widths() -> Mapping[str, float]:
    """Return the fitted numbers of the bands."""
    return {name: float(value) for name, value in _packaged()["bands"].items()}
