"""A budget as the text of its file, with a comment if a number needs one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from shardtoll.ledger.answers.budget import Budget, Limits
from shardtoll.ledger.measured.curve_toml import text

HEAD: Final = (
    "# What one training step may send at most. Every limit is per step and rank, on the rank and in the",
    "# step where the figure is largest. All keys: docs/budgets.md. To check a run:",
)


def to_toml(budget: Budget, comments: Mapping[str, Sequence[str]], name: str = "budget.toml") -> str:
    """Return the file; `comments` has lines to write above a key, by its name, or at its place if unset.

    The first lines of the file are under the key `""`. `name`: what the file will be called.
    """
    lines = [*HEAD, _comment(f"  shardtoll check RUN --budget {shlex.quote(name)}"), *_comments(comments, "")]
    for name in Limits.__dataclass_fields__:
        value = getattr(budget.limits, name)
        lines += _comments(comments, name)
        if value is not None:
            lines.append(f"{name} = {_number(value)}")
    for name in ("no_implicit", "forbid"):
        lines += [*_comments(comments, name), *_names(name, getattr(budget, name))]
    if budget.skip_steps:
        lines += [*_comments(comments, "skip_steps"), f"skip_steps = {budget.skip_steps}"]
    for section in budget.sections:
        lines += ["", f"[{section.part}.{text(section.name)}]"]
        lines += [f"{name} = {_number(value)}" for name, value in section.limits.given().items()]
        lines += [*_names("no_implicit", section.no_implicit), *_names("forbid", section.forbid)]
    return "\n".join(lines) + "\n"


def _names(key: str, names: Sequence[str]) -> list[str]:
    if len(names) > 1:
        return [f"{key} = [", *(f"    {text(each)}," for each in names), "]"]
    return [f"{key} = [{text(names[0])}]"] if names else []


def _number(value: int | float) -> str:
    if isinstance(value, float):
        return repr(value)
    return f"{value:_}"


def _comments(comments: Mapping[str, Sequence[str]], key: str) -> list[str]:
    return [_comment(line) for line in comments.get(key, ())]


def _comment(line: str) -> str:
    # A control character would end the comment, or the file.
    return "# " + "".join(char if char.isprintable() else "?" for char in line)
