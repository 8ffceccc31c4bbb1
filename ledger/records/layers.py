"""The layers of a model as one place: names that differ in numbers only share a pattern."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd

_NUMBER: Final = re.compile(r"(?<![^.\s])\d+(?![^.,])")


def layer_pattern(name: str) -> str:
    """Return a dotted name with its whole-number parts as `*`: `blocks.3.mlp2` -> `blocks.*.mlp2`."""
    return _NUMBER.sub("*", name)


def pattern(names: pd.Series[Any]) -> pd.Series[Any]:
    """Return the same of every name; unknown stays unknown."""
    import pandas as pd

    # Each name once: a long run has millions of rows and a few hundred names.
    places, different = pd.factorize(names)
    layers = [*(layer_pattern(str(name)) for name in different), None]
    # Unknown is -1, the last one.
    patterns: pd.Series[Any] = pd.Series(
        pd.array(layers, dtype="string").take(places % len(layers)), index=names.index
    )
    return patterns
