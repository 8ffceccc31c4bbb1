"""Shapes of published models by name, for rows that do not state them."""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Final

from shardtoll.ledger.answers.training_plan import ModelShape

DATA: Final = "shardtoll.analyzers.forecast.data"


@cache
def _models() -> tuple[tuple[re.Pattern[str], dict[str, Any]], ...]:
    text = resources.files(DATA).joinpath("forecast_models.json").read_text(encoding="utf-8")
    models: dict[str, dict[str, Any]] = json.loads(text)["models"]
    return tuple((re.compile(rf"(?:{name})(?![0-9a-z.])"), shape) for name, shape in models.items())


@lru_cache(maxsize=4096)
def model_of(name: str) -> ModelShape | None:
    """Return the shape of a published model, as `Llama3.1-8B`; None for a name that is not known."""
    text = re.sub(r"[\s_]+", "-", name.strip().casefold())
    matches = [(pattern.match(text), shape) for pattern, shape in _models()]
    fitting = [(match, shape) for match, shape in matches if match is not None]
    if not fitting:
        return None
    _, shape = max(fitting, key=lambda each: each[0].end() if each[0] else 0)
    return ModelShape(**shape, name=name)


_MOST_NAMED: Final = 4
_NEAR: Final = 0.5
"""Share of equal letters from which on a name may be meant."""


@cache
def names() -> tuple[str, ...]:
    """Return a name of each published model, as `llama-3-8b`: its pattern without the parts to leave out."""
    made = (re.sub(r"\([^)]*\)\??", "", pattern.pattern.removeprefix("(?:").rsplit(")(?!", 1)[0])
            for pattern, _ in _models())  # fmt: skip
    return tuple(each.split("|")[0].replace("?", "").replace("\\.", ".") for each in made)


def alike(name: str) -> list[str]:
    """Return up to four names of published models that a wrong one may mean, the nearest first."""
    return get_close_matches(name.strip().casefold(), names(), _MOST_NAMED, _NEAR)
