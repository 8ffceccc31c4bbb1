"""Equal edits are simulated once; no more than a few outcomes are held."""

from __future__ import annotations

import numpy as np

from shardtoll.analyzers.recorded.recorded import MOST_KEPT, Simulated
from shardtoll.analyzers.replay.events.outcome import Outcome


class Simulator:
    """Counts what it is asked to simulate."""

    def __init__(self) -> None:
        self.simulated = Simulated()
        self.runs = 0

    def outcome(self, duration: float) -> Outcome:
        """Return the outcome of one node that lasts so long."""
        edited = np.array([duration])

        def simulate() -> Outcome:
            self.runs += 1
            none = np.array([-1])
            return Outcome(np.zeros(1), np.zeros(1), edited, edited, none, none)

        return self.simulated.outcome((edited, np.zeros(1)), simulate)


def test_equal_edits_have_one_outcome_and_others_their_own() -> None:
    simulator = Simulator()
    first = simulator.outcome(1.0)
    assert simulator.outcome(1.0) is first
    assert simulator.outcome(2.0).end_ns.tolist() == [2.0]
    assert simulator.runs == 2


def test_the_outcome_that_was_not_asked_for_longest_is_let_go() -> None:
    simulator = Simulator()
    for duration in range(MOST_KEPT):
        simulator.outcome(float(duration))
    simulator.outcome(0.0)
    simulator.outcome(float(MOST_KEPT))
    assert simulator.runs == MOST_KEPT + 1
    simulator.outcome(0.0)
    assert simulator.runs == MOST_KEPT + 1, "it was asked for in between"
    simulator.outcome(1.0)
    assert simulator.runs == MOST_KEPT + 2
