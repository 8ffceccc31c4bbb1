"""When a message was sent and when it had arrived: both of its ranks know a part of that.

A schedule sends every micro-batch and waits for all its sends at the end of a pass. Then a send's record ends
where the schedule waited, not where the data had moved. The receiver's record tells that: whoever has the
message holds its sender up no longer. Nor can a message arrive before it is sent, though the transport of a
busy host may note its beginning late.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Delivered(Struct, frozen=True):
    """By row; of all that is no send or receive of a single pair: its own times."""

    start_ns: Ints
    """When its rank arrived: when it was issued, if its peer was through between that and its noted start."""
    end_ns: Ints
    """When its data had moved at the latest: of a send, when its receiver had it, if its rank was not yet
    blocked then."""
    exposed_ns: Ints
    """How long its rank was blocked by it."""


def delivered(rows: pd.DataFrame, start: Ints, end: Ints) -> Delivered:
    """Return the times of the rows, those of messages as their peers bound them."""
    exposed = rows["exposed_ns"].to_numpy(dtype=np.int64)
    match = rows["match_id"].to_numpy(dtype=np.int64, na_value=-1)
    is_send, is_recv = (rows["op"].eq(op).to_numpy(dtype=bool) & (match >= 0) for op in ("send", "recv"))
    if not (is_send.any() and is_recv.any()):
        return Delivered(start, end, exposed)
    had, sent = _ends(match, end, is_send, is_recv), _ends(match, end, is_recv, is_send)
    through = np.where(is_send, had, sent)
    issued = rows["issue_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    issued = start - (rows["start_ns"].to_numpy(dtype=np.float64, na_value=np.nan) - issued)
    # If it was issued after its peer was through, clocks are off, or the peer did not wait for it.
    began = np.where((through < start) & (issued <= through), issued, start).astype(np.int64)
    is_done = is_send & (had >= began) & (had <= end - exposed)
    ends = np.where(is_done, np.nan_to_num(had), end).astype(np.int64)
    return Delivered(began, ends, np.where(is_done, 0, exposed))


def _ends(match: Ints, end: Ints, of: Bools, by: Bools) -> Floats:
    """Return for each row of `of` the end of the only one of `by` that it is matched with; else NaN."""
    ends = pd.Series(end[by]).groupby(match[by]).agg(["max", "size"])
    single = ends["max"][ends["size"] == 1].reindex(match).to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(of, single, np.nan)
