"""Common parts of experiment trackers: their clients, imported when used, and names of logged values."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from shardtoll.dashboards.facts.figures_of_run import scalars
from shardtoll.dashboards.facts.finding_table import finding_table
from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.records.errors import first_line

FOLDER: Final = "shardtoll"
"""Prefix of all names."""


def client(name: str, asked: str, *, package: str | None = None) -> Any:
    """Return a client's module; UsageError if it is not installed, or cannot be imported.

    `asked` is what needs it, as `report.to_wandb()`.
    """
    package = package or name
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == package:
            raise UsageError(
                f"{asked} needs {package}, which is not installed", f"pip install {package}"
            ) from None
        raise UsageError(
            f"{package} cannot be imported ({first_line(error)})", "mend its installation"
        ) from error
    except ImportError as error:
        raise UsageError(
            f"{package} cannot be imported ({first_line(error)})", "mend its installation"
        ) from error


def numbers(report: Report) -> dict[str, float]:
    """Return name -> number: seconds, bytes, counts and shares; unknown ones are left out."""
    return {f"{FOLDER}/{name}": value for name, value in scalars(report).items()}


def findings(report: Report) -> dict[str, list[Any]]:
    """Return the findings column by column, in the order of the bill."""
    columns: dict[str, list[Any]] = finding_table(report).to_pydict()
    return columns
