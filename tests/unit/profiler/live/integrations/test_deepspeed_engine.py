"""What the DeepSpeed adapter refuses; on real ranks: tests/live/test_deepspeed.py."""

from __future__ import annotations

import pytest
from torch import nn

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.integrations.deepspeed import audit_engine


def test_a_plain_module_is_refused():
    with (
        pytest.raises(UsageError, match=r"audit_engine\(\) was given a Linear: give it the engine") as told,
        audit_engine(nn.Linear(2, 2)),
    ):
        pass
    assert "deepspeed.initialize" in told.value.hint
