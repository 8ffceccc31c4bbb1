"""Purposes of DistributedDataParallel's communication: its collectives' `caused_by_op`.

Capture writes these values, analyses decide by them.
"""

from __future__ import annotations

from typing import Final

DDP: Final = "DistributedDataParallel"
"""Begins them all; alone, a collective of DDP's whose purpose is unknown."""

REDUCER: Final = f"{DDP}.reducer"
"""A bucket of gradients."""
BUFFERS: Final = f"{DDP}.buffers"
"""The module's buffers, from rank 0, at each forward."""
USED_PARAMETERS: Final = f"{DDP}.used_parameters"
"""Which parameters each rank's backward reached: one number per parameter, if DDP has to find unused ones."""
SETUP: Final = f"{DDP}.setup"
"""Messages that wrapping sends once: shapes to compare, then all parameters and buffers from rank 0."""
BUCKET_ORDER: Final = f"{DDP}.bucket_order"
"""In which order the first backward made gradients ready: buckets are laid out by it, once."""
JOIN: Final = f"{DDP}.join"
"""Whether some rank has run out of data: uneven inputs under `model.join()`."""
