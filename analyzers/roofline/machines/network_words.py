"""Reads the network from a description of machines: its kind, its cards and their rate.

People write `8x CX-7 IB NDR400`, `EFAv2 32x100G`, `2x Slingshot-11 200G` or `3.2 Tbps RoCE`.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from shardtoll.analyzers.roofline.machines.fabric import InterKind

_KINDS: Final[tuple[tuple[InterKind, str], ...]] = (
    ("efa", r"efa(?:v[1-9])?|elastic fabric adapter"),
    ("tcpx", r"tcpxo?|fastrak|gpudirect tcpxo?"),
    ("slingshot", r"slingshot(?: ?1[01])?|ss ?1[01]|cassini|cxi|hsn"),
    ("roce", r"roce(?:v?[12])?|spectrum ?x?|thor ?2?"),
    ("infiniband", r"infini ?band|ib|i?b? ?(?:[efhnx]dr)(?: ?\d{2,4})?|quantum ?2?|mellanox ib"),
    ("ethernet", r"ethernet|\d+ ?gbe|tcp|sockets?|eth"),
)
"""Words of each kind, those that say most first: a text with `EFA` and `ethernet` means EFA."""

_SIGNALS: Final = {"fdr": 56, "edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
"""Gb/s of a 4x InfiniBand port by the name of its signalling."""
_CARDS: Final = {"5": 100, "6": 200, "7": 400, "8": 800}
"""Gb/s of a ConnectX card by its number."""

_GBIT: Final = r"(?:g|gb|gbe|gbps|gb/s|gbit|gbit/s|gbits)"
_COUNT: Final = re.compile(
    r"(?<![\w.])(\d{1,3}) ?(?:[x×*](?![a-wyz])|(?=(?:cx|connectx|nic|hca|card|efa|slingshot|ndr|hdr|edr)))"
)
_COUNT_AFTER: Final = re.compile(r"(?<![a-z])[x×*] ?(\d{1,2})(?![\w.])")
_RATE: Final = re.compile(rf"(?<![\w.])(\d{{2,4}}) ?{_GBIT}(?![\w])")
_TOTAL: Final = re.compile(r"(?<![\w.])(\d{1,2}(?:\.\d+)?) ?t(?:b|bps|b/s|bit|bit/s)(?![\w])")
_SIGNAL: Final = re.compile(r"(?<![a-z])([efhnx]dr) ?(\d{2,4})?(?!\d)")
_CONNECTX: Final = re.compile(r"(?<![a-z])(?:cx|connectx) ?([5-8])(?!\d)")
_EACH: Final = re.compile(r"(?:/|per|a|each) ?gpu")
_BYTES: Final = re.compile(r"\d+ ?[GT]B(?:ps|/s)")
"""Only the capital B separates GB/s from Gb/s; GB/s are rates of NVLink."""
_MOST_GBIT: Final = 800
"""No card is faster; a larger rate without a number of cards is the node's."""
_NOISE: Final = (
    r"r?nccl ?v?[\d.]+",
    r"\d+ ?gi?b(?![/a-z])(?: hbm\w*)?",
    r"nvlink ?\d?|nvswitch|nvl ?\d+|pcie ?(?:gen)? ?\d?(?:\.0)?|sxm ?\d?|hbm\w*",
)


class NetworkWords(Struct, frozen=True):
    """Facts in the description; None if it does not give them."""

    kind: InterKind | None = None
    cards: int | None = None
    card_gbit: int | None = None
    """Gb/s of one card."""
    node_gbit: float | None = None
    """Gb/s of a node, where the text gives that and no cards."""
    each_gpu: bool = False
    """Whether the card's rate is said to be each GPU's."""

    def node_gbps(self, size: int | None, cards: float | None = None) -> float | None:
        """Return GB/s of a node in one direction, of `size` GPUs and `cards` cards where the text has none.

        None if no rate is given, or neither cards nor GPUs are known.
        """
        if self.node_gbit is not None:
            return self.node_gbit / 8
        number = self.cards or (size if self.each_gpu else None) or cards or size
        return None if self.card_gbit is None or number is None else number * self.card_gbit / 8


def network_words(text: str) -> NetworkWords:
    """Return what the text says; words of GPUs and of machines are to be taken out before."""
    plain = re.sub(r"[-_]+", " ", _BYTES.sub(" , ", text).casefold())
    kind = next((kind for kind, words in _KINDS if _has(plain, words)), None)
    for noise in _NOISE:
        plain = re.sub(rf"(?<![a-z0-9]){noise}" if noise[0].isalpha() else noise, " , ", plain)
    total = _TOTAL.search(plain)
    if total is not None:
        return NetworkWords(kind, node_gbit=1000 * float(total[1]))
    gbit = _card_gbit(plain)
    counted = _COUNT.search(plain) or _COUNT_AFTER.search(plain)
    if gbit is not None and gbit > _MOST_GBIT:
        return NetworkWords(kind, node_gbit=float(gbit))
    return NetworkWords(
        kind,
        cards=int(counted[1]) if counted is not None and gbit is not None else None,
        card_gbit=gbit,
        each_gpu=_EACH.search(plain) is not None,
    )


def _has(text: str, words: str) -> bool:
    return re.search(rf"(?<![a-z0-9])(?:{words})(?![a-z])", text) is not None


def _card_gbit(text: str) -> int | None:
    """Return a card's rate as it is written out; else as its signalling or its number tells."""
    rate = _RATE.search(re.sub(r"\d{1,3} ?[x×*] ?(?=\d)", " ", text))
    if rate is not None:
        return int(rate[1])
    signal = _SIGNAL.search(text)
    if signal is not None:
        return int(signal[2]) if signal[2] else _SIGNALS[signal[1]]
    card = _CONNECTX.search(text)
    return None if card is None else _CARDS[card[1]]
