"""The fixture `comm_budget`: a test fails if a step sends more than it may, on any machine.

pytest loads this file in every suite where shardtoll is installed. It therefore imports pytest and nothing
else until a test asks for the fixture. `-p no:shardtoll` leaves it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from shardtoll.profiler.live.entry.budgeted import CommBudget


@pytest.fixture
def comm_budget() -> CommBudget:
    """Hold what runs in `with comm_budget(max_collectives=4, no_implicit=["*"]):` to a budget.

    Arguments are the keys of a budget.toml, or a budget.toml itself. `world_size=` or `mesh=` make a fake
    process group of any size in this process. See docs/budgets.md.
    """
    from shardtoll.profiler.live.entry.budgeted import CommBudget

    return CommBudget(pytest.fail.Exception)
