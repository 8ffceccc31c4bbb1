"""docs/budgets.md names every key, and its budget is one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from shardtoll.ledger.answers.budget import TOP, budget_of
from shardtoll.ledger.answers.overrun import BudgetCheck, Overrun

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "budgets.md").read_text(encoding="utf-8")


def test_the_example_is_a_budget_with_every_key():
    (block,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    document = tomllib.loads(block)
    assert set(document) == set(TOP)
    assert len(budget_of(document, "docs").sections) == 3


def test_every_key_and_field_is_documented():
    names = {*TOP, *BudgetCheck.__dataclass_fields__, *Overrun.__dataclass_fields__} - {
        "module",
        "group",
        "phase",
    }
    assert [name for name in sorted(names) if f"`{name}`" not in TEXT] == []
