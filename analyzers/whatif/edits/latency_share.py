"""Which share of a collective's time does not depend on its bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.context.context import Context

Floats = npt.NDArray[np.float64]


def latency_share(context: Context) -> Floats:
    """Return the share of each collective's expected time that is latency; a half if there is no model."""
    frame = context.collectives
    expected = frame["expected_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    latency = frame["expected_latency_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.clip(latency / expected, 0.0, 1.0)
    return np.where(np.isfinite(share), share, 0.5)
