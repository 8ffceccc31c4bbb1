"""A pipeline's messages hidden by compute take no time, and each stage still waits for the one before."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.truth import report

PIPELINE: dict[str, Any] = {"strategy": "pipeline", "ranks": 4, "comm_bytes": 256 << 20}


@pytest.mark.parametrize("more", [{}, {"chunks": 2}])
def test_messages_that_are_hidden_save_what_free_ones_do(more: dict[str, Any]) -> None:
    with_messages = report(**PIPELINE, **more)
    free = report(**PIPELINE, **more, bandwidth_gbps=1e7, latency_ns=0)
    numbers = [
        number
        for number, finding in enumerate(with_messages.findings, 1)
        if finding.kind == "exposed-communication"
    ]
    answer = with_messages.whatif(*numbers)
    assert answer.before.step_ns > 1.05 * free.whatif(network=1.0 + 1e-9).before.step_ns
    assert answer.after.step_ns == pytest.approx(free.whatif(network=1.0 + 1e-9).before.step_ns, rel=0.01)


def test_each_half_of_a_message_frees_both_of_its_ranks() -> None:
    """A send's finding and its receive's are of one message: each saves what the other one does."""
    made = report(**PIPELINE)
    after = sorted(
        made.whatif(number).after.step_ns
        for number, finding in enumerate(made.findings, 1)
        if finding.kind == "exposed-communication"
    )
    # Forward and backward, of each the sends and the receives.
    assert len(after) == 4
    assert (after[0], after[2]) == (after[1], after[3])
