"""The parts of shardtoll by name, found when they are used.

The ledger imports none of its users, and the profiler must not import the analyzers. Yet
`session.report()` runs the analyses and `report.show()` prints. This file is the one place that
names those parts; nothing is imported before it is called.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any, Final

PARTS: Final[dict[str, str]] = {
    "analyze": "shardtoll.analyzers:run",
    "terminal": "shardtoll.dashboards.terminal:show",
    "page": "shardtoll.dashboards.page:render",
    "notebook": "shardtoll.dashboards.notebook:render",
    "wandb": "shardtoll.dashboards.to_wandb:log",
    "mlflow": "shardtoll.dashboards.to_mlflow:log",
    "tensorboard": "shardtoll.dashboards.to_tensorboard:log",
    "over_budget": "shardtoll.analyzers.over_budget:judge",
    "budget_lines": "shardtoll.dashboards.check_words:lines",
}


def part(name: str) -> Callable[..., Any]:
    """Return the callable that plays this part; KeyError for a name not in `PARTS`."""
    found: Callable[..., Any] = pkgutil.resolve_name(PARTS[name])
    return found
