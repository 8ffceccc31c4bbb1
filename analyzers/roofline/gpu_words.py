"""Which accelerator a description of machines names, and how many of them a node has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_FAMILY: Final = re.compile(
    r"(?:(?<![a-z0-9.])(?P<count>\d{1,2}) ?[x×*] ?|(?<![a-z0-9]))"
    r"(?:nvidia |tesla |amd |instinct |geforce )*"
    r"(?P<name>g[bh][23]00|[bh][123]00|a100|v100|mi\d{3}[axc]?|l40s?|l4|a10g?|a40|t4|rtx ?\d{4})"
    r"(?P<rest>(?:(?:[ -]|(?<=\d)(?=sxm))(?:sxm\d?|pcie|nvl(?!ink|\d)|oam|hgx|hbm\d?e?|"
    r"\d{2,3} ?g(?:i?b)?(?![a-z/])|(?<=-)(?:16|32|40|64|80)(?!\d)))*)"
    r"(?:(?![a-z0-9])|(?=[x×*]\d))"
)
_COUNT_AFTER: Final = re.compile(r"^ ?(?:gpus? ?)?[x×*] ?(\d{1,2})(?!\d)")
_WHOLE_NODE: Final = re.compile(
    r"(?<![a-z0-9])(\d{1,2})(?:-gpu(?![a-z])| ?gpus?(?: ?/ ?| per | a | in a )?(?:node|tray|server))"
)


@dataclass(frozen=True, slots=True)
class GpuWords:
    """What was said of accelerators; None where nothing was."""

    device: str | None = None
    """As a device name would be, for fabrics and accelerators to be found by."""
    count: int | None = None
    """Accelerators of a node."""
    rest: str = ""
    """The text without what was said of them."""


def gpu_words(text: str) -> GpuWords:
    """Return the first accelerator that the text names, with its form (SXM where none is said)."""
    plain = text.casefold()
    node = _WHOLE_NODE.search(plain)
    found = _FAMILY.search(plain)
    if found is None:
        return GpuWords(None, int(node[1]) if node else None, text)
    after = _COUNT_AFTER.search(plain[found.end() :])
    count = found["count"] or (after[1] if after else None) or (node[1] if node else None)
    name = found["name"].upper()
    rest = f"{text[: found.start()]} , {text[found.end() + (after.end() if after else 0) :]}"
    return GpuWords(_device(name, plain, found["rest"]), None if count is None else int(count), rest)


def _device(name: str, text: str, rest: str) -> str:
    """Return a name as drivers give it, as `A100-SXM4-40GB`."""
    memory = re.search(r"\d{2,3}", re.sub(r"sxm\d|hbm\d", "", rest))
    size = "" if memory is None else f"{memory[0]}GB"
    if name.startswith("MI"):
        return name
    if "sxm" not in text and re.search(r"(?<![a-z])nvl(?!ink|\d|[a-z])", rest):
        return f"{name} NVL"
    pcie = "sxm" not in text and "nvswitch" not in text and "nvlink" not in text and "pcie" in rest
    if name == "A100":
        return f"A100-PCIE-{size or '40GB'}" if pcie else f"A100-SXM4{'-' if size else ''}{size}"
    if name == "V100":
        return (
            f"V100-PCIE-{size or '16GB'}"
            if pcie
            else f"V100-SXM{3 if 'dgx-2' in text else 2}-{size or '32GB'}"
        )
    return f"{name} PCIe" if pcie else name
