"""What the name of a communication kernel says of the algorithm and protocol that ran.

NCCL compiles one kernel for many: its name ends in LL whatever protocol runs, and says RING for everything
but the tree (NVIDIA/nccl issues 1595 and 2196: the name is "not a reliable indication"; `best_kernel` in
src/device/generate.py). Only a name that could not have come about so is taken at its word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(
    r"^ncclDevKernel_\w*?_(RING|TREE|NVLS|NVLS_TREE|COLLNET_DIRECT|COLLNET_CHAIN|PAT)_(LL128|LL|SIMPLE)\b"
)


@dataclass(frozen=True, slots=True)
class Ran:
    """What is certain; None where the name proves nothing."""

    algorithm: str | None
    """`tree`, `ring`, ... as in a cost's algorithm."""
    protocol: str | None
    """`LL128` or `Simple`."""


def ran(kernel: str | None) -> Ran:
    """Return what the kernel's name proves; names of other libraries and old ones prove nothing."""
    found = None if kernel is None else _NAME.match(kernel)
    if found is None:
        return Ran(None, None)
    algorithm, protocol = found[1].lower().replace("_", ""), found[2]
    if protocol != "LL":
        # Built with exact names: both hold.
        return Ran(algorithm, "Simple" if protocol == "SIMPLE" else protocol)
    return Ran("tree" if algorithm == "tree" else None, None)
