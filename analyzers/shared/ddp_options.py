"""Options of DistributedDataParallel by the names that they have in the torch of the run."""

from __future__ import annotations

import re
from typing import Final

RENAMED: Final = (2, 13)
"""torch from which `broadcast_buffers` is `forward_sync_buffers`."""


def no_buffers(torch: str | None) -> str:
    """Return the call that wraps a model without a broadcast of its buffers at each forward."""
    numbers = re.match(r"(\d+)\.(\d+)", torch or "")
    renamed = numbers is not None and tuple(map(int, numbers.groups())) >= RENAMED
    option = "forward_sync_buffers" if renamed else "broadcast_buffers"
    return f"DistributedDataParallel(model, {option}=False)"
