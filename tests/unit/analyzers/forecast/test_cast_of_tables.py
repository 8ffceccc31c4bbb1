"""What is taken off measured products in 8 bits for the packaged tables: the cast, nothing of the product."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

ROWS = (256, 1024, 4096, 16384)
SIDES = (512, 1024, 4096, 16384)
OWN_US = 3.0
CACHED = 4 << 20


def cast_us(elements: int) -> float:
    """8 us, and an element takes three times as long where the cache does not hold it."""
    return 8.0 + 2.5e-6 * min(elements, CACHED) + 7.5e-6 * max(0, elements - CACHED)


@pytest.mark.parametrize("ps_each", [0.1, 2.0])
def test_the_cast_of_measured_products_is_found_at_each_size(ps_each: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4] / "benchmarks" / "forecasts"))
    import forecast_grids

    places = list(product(ROWS, SIDES, SIDES))
    wide = {(m, n, k): OWN_US + ps_each * 1e-6 * m * n * k / 1000 for m, n, k in places}
    narrow = {(m, n, k): cast_us(m * k) + OWN_US + (time - OWN_US) / 2 for (m, n, k), time in wide.items()}
    own_us = forecast_grids._own_us(wide)
    assert own_us == pytest.approx(OWN_US)
    found = forecast_grids._cast_us(narrow, own_us)
    assert found == {elements: pytest.approx(cast_us(elements)) for elements in found}
    assert set(found) == {m * k for m, _, k in places}
