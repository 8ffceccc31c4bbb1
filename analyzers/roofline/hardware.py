"""Which fabric a description of hardware names, as in the column of a measured sweep."""

from __future__ import annotations

import re
from functools import lru_cache

from shardtoll.analyzers.roofline.fabric import Fabric
from shardtoll.analyzers.roofline.load import known_fabrics


def fabric_of(hardware: str) -> Fabric | None:
    """Return the shipped fabric whose words the description holds; None where none has one in it.

    Of several the one with the most letters found wins, so that `p5.48xlarge` goes before `H100`.
    """
    plain = _plain(hardware)
    best = max(_shipped(), key=lambda fabric: _found(plain, fabric), default=None)
    return best if best is not None and _found(plain, best) else None


@lru_cache(maxsize=1)
def _shipped() -> tuple[Fabric, ...]:
    return tuple(known_fabrics())


def _plain(text: str) -> str:
    # `8xH100` is eight of them: the name starts after the x.
    return re.sub(r"(?<![a-z0-9])(\d+)x(?=[a-z])", r"\1 ", text.casefold())


def _found(plain: str, fabric: Fabric) -> int:
    words = (_plain(word) for word in fabric.hardware)
    return sum(len(word) for word in words if _holds(plain, word))


def _holds(plain: str, word: str) -> bool:
    return re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", plain) is not None
