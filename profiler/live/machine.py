"""What the operating system says of this host's make and network cards: a hint for choosing a fabric.

Read from /sys and the environment, as cheap as a few small files; nothing is asked of a network.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import torch

_SYS: Final = Path("/sys")
_AMAZON: Final = "0x1d0f"
_VARIABLES: Final = ("NCCL_NET", "FI_PROVIDER", "NCCL_IB_DISABLE")
"""What a launcher says of the network; a name of a plugin as `FasTrak` tells the cloud."""
_MOST_CARDS: Final = 256
_MOST_TEXT: Final = 200


def machine_hint(root: Path = _SYS, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return words as `p5.48xlarge; 32x efa; NCCL_NET=AWS Libfabric`; None where nothing is said."""
    said = [_text(root / "class/dmi/id/product_name"), _cards(root / "class")]
    said += [f"{name}={environment[name][:40]}" for name in _VARIABLES if environment.get(name)]
    return "; ".join(part for part in said if part)[:_MOST_TEXT] or None


@cache
def this_machine() -> str | None:
    """Return the hint of this host, read once."""
    try:
        return machine_hint()
    except OSError:
        return None


@cache
def nccl_version(backend: str | None) -> str | None:
    """Return the version of NCCL (or RCCL) that torch was built with, where the job uses it."""
    if backend is None or "nccl" not in backend or not torch.cuda.is_available():
        return None
    try:
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    except (RuntimeError, AttributeError):
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else None


def _cards(root: Path) -> str:
    """Return the active network cards, as `8x infiniband 400 Gb/s`: those that are fastest together."""
    slingshot = len(_listed(root / "cxi"))
    if slingshot:
        return f"{slingshot}x slingshot"
    kinds = Counter(card for card in map(_card, _listed(root / "infiniband")) if card is not None)
    if not kinds:
        return ""
    (kind, gbit), number = max(kinds.items(), key=lambda item: item[1] * max(item[0][1], 1))
    return f"{number}x {kind} {gbit} Gb/s" if gbit else f"{number}x {kind}"


def _card(card: Path) -> tuple[str, int] | None:
    """Return the kind and the Gb/s of a card, 0 where it does not say; None where its port is down."""
    port = card / "ports/1"
    state = _text(port / "state")
    if state and "ACTIVE" not in state:
        return None
    if _text(card / "device/vendor") == _AMAZON:
        return "efa", 0
    kind = "roce" if _text(port / "link_layer") == "Ethernet" else "infiniband"
    rate = re.match(r"\d+", _text(port / "rate"))
    return kind, int(rate[0]) if rate else 0


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:_MOST_CARDS]
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()[:80]
    except OSError:
        return ""
