"""Records whose nodes wait for each other are not replayed, and end no report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardtoll.analyzers import run
from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.recorded import from_points
from shardtoll.analyzers.recorded.record_graph import recorded_graph, short_record
from shardtoll.analyzers.replay.events.event_order import DeadlockError
from shardtoll.analyzers.roofline import choose_fabric
from tests.unit.analyzers.made_jobs import pipelines


def test_a_circle_in_damaged_records_is_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def circle(*_arguments: Any, **_options: Any) -> Any:
        raise DeadlockError(np.array([0, 1]))

    made = pipelines(3, 2, 5)
    context = make_context(made, choose_fabric(made.run))
    assert recorded_graph(context) is not None
    monkeypatch.setattr(from_points, "order_of", circle)
    assert recorded_graph(context) is None
    assert short_record(make_context(made, choose_fabric(made.run))) is None
    assert run(made).foreseen is None
