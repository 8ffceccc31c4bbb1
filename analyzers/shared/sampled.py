"""Messages with a fingerprint of a sample only: two equal fingerprints do not prove equal bytes."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from shardtoll.ledger import Evidence

SAMPLE: Final = 4096
"""Elements at most that a fingerprint is made of: of longer messages it is a sample."""

WIDTHS: Final = {
    "float64": 8,
    "int64": 8,
    "complex64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
}
"""Bytes of an element; of types that are not here as few as can be."""

SAMPLED: Final = Evidence("fingerprints are of", f"{SAMPLE:,} elements at most, by a fixed stride")


def is_sampled(frame: pd.DataFrame) -> pd.Series[Any]:
    """Return for each collective whether its message has more elements than a fingerprint looks at.

    Then equal fingerprints do not prove equal bytes: one row of a table may differ.
    """
    width = frame["dtype"].map(WIDTHS).fillna(1).astype("int64")
    return (frame["message_bytes"].fillna(0) > SAMPLE * width).astype(bool)
