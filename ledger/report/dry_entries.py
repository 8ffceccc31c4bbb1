"""Questions of a dry run to the forecast, by name: which machine it plays, and how long its step takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shardtoll.ledger.answers.dry_step import DryMachine, DryStep
from shardtoll.ledger.report.entry_points import EntryPoint
from shardtoll.ledger.tables.ledger import Ledger

MACHINE: Final = EntryPoint[Callable[[str, str | None], DryMachine]](
    "shardtoll.analyzers.forecast.dry.played_machine:machine_of"
)
"""GPU and fabric (None: the usual one) -> the machine; UsageError or FabricError for an unknown one."""

PRICE: Final = EntryPoint[Callable[[Ledger], tuple[Ledger, DryStep]]](
    "shardtoll.analyzers.forecast.dry.priced:price_on_record"
)
"""Ledger of a dry run -> the ledger with times, and the forecast of its last step."""
