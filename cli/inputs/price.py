"""The price of a GPU as the commands take it: a number for an hour, with or without its unit."""

from __future__ import annotations

import re
from typing import Final

from shardtoll.ledger import UsageError

_PRICE: Final = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,12})?)(?:/gpu-hour)?")


def price_per_gpu_hour(text: str | None) -> float | None:
    """Return the number of `2.5` or `2.5/gpu-hour`; None without a text. UsageError for any other."""
    if text is None:
        return None
    given = _PRICE.fullmatch(text.strip())
    if given is None:
        raise UsageError(
            f"--price {text!r:.40}", "give a number below 10 million per GPU and hour, as 2.5/gpu-hour"
        )
    return float(given.group(1))
