"""What `benchmarks/forecasts/advice_gloo.py` measures of ranks that share cores."""

from __future__ import annotations

from pathlib import Path

import pytest

ALONE_S, LONGER_S, COMPUTE_S = 0.25, 8.0, 2.0


def test_a_collectives_wait_leaves_out_what_it_takes_alone(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4] / "benchmarks" / "forecasts"))
    import advice_gloo

    now, computed = 0.0, False

    def compute() -> None:
        nonlocal now, computed
        now, computed = now + COMPUTE_S, True

    def all_reduce(_: object) -> None:
        nonlocal now, computed
        now, computed = now + ALONE_S + (LONGER_S if computed else 0.0), False

    def barrier() -> None:
        nonlocal computed
        computed = False

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(torch.distributed, "barrier", barrier)
    monkeypatch.setattr(advice_gloo.time, "perf_counter", lambda: now)
    assert advice_gloo._wait_s(compute, count=4) == LONGER_S
