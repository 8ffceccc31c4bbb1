"""Shapes of published models by name, for rows that do not state them."""

from __future__ import annotations

import json
import re
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
