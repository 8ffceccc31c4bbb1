"""Which fabric a description of hardware names, as in the column of a measured sweep."""

from __future__ import annotations

import re
from typing import Final

from shardtoll.analyzers.roofline.fabric import Fabric
from shardtoll.analyzers.roofline.gpu import named
from shardtoll.analyzers.roofline.load import known_fabrics

_COUNT: Final = re.compile(r"(?<![a-z0-9])(\d+) ?x ?(?=[a-z])")
"""`8xH100` is eight of them: the name starts after the x."""
_USUAL: Final = 8


def fabric_of(hardware: str) -> Fabric | None:
    """Return the shipped fabric that the description names; None where it names none.

    Where it names an accelerator, only fabrics of that one count. The longest of a fabric's words that is
    found decides. Without any it is the plain machine with that many of the accelerator (8 where the number
    is not said), whose network is not known.
    """
    text = hardware.casefold()
    plain = _COUNT.sub(r"\1 ", text)
    shipped = known_fabrics()
    of_gpu = [fabric for fabric in shipped if named(plain, fabric.device_names, fabric.device_names_not)]
    found = [(_longest(plain, fabric), fabric) for fabric in of_gpu or shipped]
    best = max(found, key=lambda pair: pair[0], default=None)
    if best is not None and best[0]:
        return best[1]
    counted = _COUNT.search(text)
    count = int(counted[1][:6]) if counted else _USUAL
    bare = [fabric for fabric in of_gpu if fabric.inter is None]
    # A stable sort: among equally near ones the first by name.
    return min(bare, key=lambda fabric: abs(_ranks_per_node(fabric) - count), default=None)


def _longest(plain: str, fabric: Fabric) -> int:
    return max((len(word) for word in fabric.hardware if named(plain, (word,))), default=0)


def _ranks_per_node(fabric: Fabric) -> float:
    return fabric.ranks_per_node.value if fabric.ranks_per_node is not None else _USUAL
