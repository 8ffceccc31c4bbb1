"""Where a fit of some frameworks starts (`benchmarks/forecasts/forecast_fit.py --only`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest


def test_a_constant_that_is_new_to_a_stage_starts_where_every_fit_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4] / "benchmarks" / "forecasts"))
    import forecast_fit

    first = forecast_fit.STAGES[0]
    wider = replace(first, free={**first.free, "contention.nemo": 0.3})
    monkeypatch.setattr(forecast_fit, "STAGES", (wider, *forecast_fit.STAGES[1:]))
    start = forecast_fit.packaged_start({"memory.nemo": 0.5})
    assert start.values["memory.nemo"] == 0.5
    assert "contention.nemo" not in start.values
    assert forecast_fit._value(start, "contention.nemo") == forecast_fit.START["contention"]
